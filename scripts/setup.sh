#!/bin/sh
# Make a virtual environment with LMDeploy, its known-good versions and this project, editable.
#   usage: scripts/setup.sh RELEASE VENV       RELEASE: the LMDeploy release, as in requirements/constraints-RELEASE.txt
# Doing it again costs nothing: a stamp in VENV holds a hash of all that decides what is installed.
set -eu
release=$1
venv=$2
root=$(cd "$(dirname "$0")/.." && pwd)
constraints=$root/requirements/constraints-$release.txt
needed_gb=8

fail() {
  echo "setup: $*" >&2
  exit 1
}

# The first interpreter that is 3.10 to 3.12 and can make virtual environments, or the one that PYTHON names.
find_python() {
  for candidate in ${PYTHON:-python3.11 python3.12 python3.10 python3 python}; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
      >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
}

[ -e "$constraints" ] || fail "LMDeploy $release is not supported; use LMDEPLOY=X with X one of:" \
  "$(cd "$root/requirements" && ls constraints-*.txt | sed 's/constraints-//; s/\.txt//' | tr '\n' ' ')"

wanted=$(cat "$constraints" "$root/requirements/base.txt" "$root/setup.cfg" "$root/pyproject.toml" "$0" | cksum)" $root"
stamp=$venv/.lmdeploy-ext-setup
is_installed='import importlib.util as i; raise SystemExit(not (i.find_spec("lmdeploy") and i.find_spec("lmdeploy_ext")))'
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -c "$is_installed" 2>/dev/null; then
  exit 0
fi

if ! "$venv/bin/python" -c '' 2>/dev/null; then
  python=$(find_python)
  [ -n "$python" ] || fail "no Python 3.10 to 3.12 with venv and ensurepip found${PYTHON:+ (PYTHON=$PYTHON)};" \
    "install one (on Debian: python3 python3-venv), or name it: make setup PYTHON=/path/to/python3.11"
  mkdir -p "$(dirname "$venv")"
  free_kb=$(df -Pk "$(dirname "$venv")" | awk 'NR == 2 { print $4 }')
  [ "$free_kb" -ge $((needed_gb * 1024 * 1024)) ] || fail "LMDeploy and torch need $needed_gb GB," \
    "$((free_kb / 1024 / 1024)) GB are free beside $venv; free some, or put it elsewhere: make setup VENV=/other/disk/venv"
  "$python" -m venv "$venv" || fail "$python could not make $venv"
fi

echo "setup: installing LMDeploy $release into $venv (about 6 GB, a few minutes)"
rm -f "$stamp"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$constraints" \
  --editable "$root[bench,test]" "lmdeploy==$release" ||
  fail "pip could not install LMDeploy $release (its message is above); mend that and run make setup again"
echo "$wanted" > "$stamp"
