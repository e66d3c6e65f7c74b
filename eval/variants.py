"""Variants: what is compared. Each is a name, the environment that its process gets, and settings
that differ from the run's."""
import difflib
import re
from dataclasses import dataclass
from typing import Dict, Tuple, Union

from lmdeploy_ext.patching import PatchError
from lmdeploy_ext.patching.catalogue import discover
from lmdeploy_ext.patching.selection import VARIABLE as PATCHES
from lmdeploy_ext.patching.selection import select

from .errors import EvalError

_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]*')
_ASSIGNMENT = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)=(.*)', re.DOTALL)
_NEXT = re.compile(r':(?=[A-Za-z_][A-Za-z0-9_]*=)')
#: Settings of the run that a variant may have its own value of: numbers from 1, and switches.
NUMBERS = ('max_dynamic_patch', 'concurrency', 'vision_batch')
SWITCHES = ('prefix_caching', 'prompt_first')
OWN_SETTINGS = (*NUMBERS, *SWITCHES)


@dataclass(frozen=True)
class Variant:
    """One way to run LMDeploy.

    Attributes:
        name: a word; also the name of its folder in the run.
        env: variables set in its process, on top of this process's environment.
        settings: its own values of some of `OWN_SETTINGS`.
    """
    name: str
    env: Tuple[Tuple[str, str], ...]
    settings: Tuple[Tuple[str, Union[int, bool]], ...] = ()


def built_in(has_gpu: bool) -> Dict[str, Variant]:
    """`stock`: upstream as released, with the CPU backend alone where there is no GPU; `patched`:
    everything."""
    return {
        'stock': Variant('stock', ((PATCHES, 'none' if has_gpu else 'cpu'), )),
        'patched': Variant('patched', ((PATCHES, 'all'), ))
    }


def parse_variants(text: str, has_gpu: bool) -> Tuple[Variant, ...]:
    """Read `--variants`: names, or `NAME:VARIABLE=VALUE[:VARIABLE=VALUE…]`, separated by commas.

    In a value `+` stands for a comma: `mine:LMDEPLOY_EXT_PATCHES=cpu+-some_patch`. A variable in
    lower case is one of `OWN_SETTINGS`: `few:LMDEPLOY_EXT_PATCHES=none:max_dynamic_patch=3`,
    `cached:prefix_caching=1`.

    Raises:
        EvalError: no variant, an unknown one, a name twice, a wrong assignment, or no such patch
            or setting.
    """
    variants = [
        _parse_one(item.strip(), built_in(has_gpu)) for item in text.split(',') if item.strip()
    ]
    names = [variant.name for variant in variants]
    if not names:
        raise EvalError(f'no variant in --variants {text!r}; expected for example stock,patched')
    for name in names:
        if names.count(name) > 1:
            raise EvalError(
                f'the variant {name} stands twice in --variants {text!r}; give each its own name')
    for variant in variants:
        _check_patches(variant)
    return tuple(variants)


def _check_patches(variant: Variant) -> None:
    """Check a variant's patches now, not after the variants before it have run."""
    try:
        select(dict(variant.env)[PATCHES], discover())
    except PatchError as error:
        raise EvalError(f'variant {variant.name}: {error}') from error


def _parse_one(item: str, known: Dict[str, Variant]) -> Variant:
    """One item of `--variants`."""
    name, colon, rest = item.partition(':')
    if not _NAME.fullmatch(name):
        raise EvalError(
            f'a variant named {name!r}; expected letters, digits, dots, dashes and underscores')
    if not colon:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f'did you mean {close[0]}?' if close else f'expected {" or ".join(known)}'
            raise EvalError(
                f'unknown variant {name}; {hint} (your own: NAME:{PATCHES}=all+-some_patch)')
        return known[name]
    if name in known:
        raise EvalError(f'the variant {name} is built in and cannot be redefined; '
                        f'choose another name for {item!r}')
    env, settings = {PATCHES: 'all'}, {}
    for assignment in _NEXT.split(rest):
        match = _ASSIGNMENT.fullmatch(assignment)
        if not match:
            raise EvalError(
                f'{assignment!r} in the variant {name} sets nothing; expected NAME:VARIABLE=VALUE')
        variable, value = match.groups()
        if variable == variable.upper():
            env[variable] = value.replace('+', ',')
        else:
            settings[variable] = _setting(name, variable, value)
    return Variant(name, tuple(sorted(env.items())), tuple(sorted(settings.items())))


def _setting(name: str, variable: str, value: str) -> Union[int, bool]:
    """A variant's own value of a setting."""
    if variable not in OWN_SETTINGS:
        close = difflib.get_close_matches(variable, OWN_SETTINGS, n=1)
        hint = (f'did you mean {close[0]}?' if close else
                f'expected {", ".join(OWN_SETTINGS)}, or an environment variable in capitals')
        raise EvalError(f'the variant {name} sets {variable}; {hint}')
    if variable in SWITCHES:
        if value not in ('0', '1'):
            raise EvalError(f'{variable}={value} in the variant {name}; expected 0 or 1')
        return value == '1'
    if not value.isdecimal() or int(value) < 1:
        raise EvalError(
            f'{variable}={value} in the variant {name}; expected a whole number of at least 1')
    return int(value)
