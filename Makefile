# `make help` is the menu. LMDEPLOY=0.6.4 makes any of these use LMDeploy 0.6.4, in a virtual environment of its own.
LMDEPLOY ?= 0.6.0
VENV ?= $(CURDIR)/.venv$(if $(filter-out 0.6.0,$(LMDEPLOY)),-$(LMDEPLOY))
PYTHON_IN_VENV := '$(VENV)/bin/python'
PATCHING := $(PYTHON_IN_VENV) -m lmdeploy_ext.patching

VARIANTS ?= stock,patched
MODEL ?= eval/demo/model
OUT ?= eval/runs/$(subst $(comma),-,$(VARIANTS))
comma := ,

.DEFAULT_GOAL := help
.PHONY: help setup patch unpatch status check diff table lint test demo eval sweep bench-images bench-vit bench-qpm bench-prefix

help: ## this menu
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## the virtual environment: LMDeploy, its known-good versions, this project (again: costs nothing)
	@scripts/setup.sh '$(LMDEPLOY)' '$(VENV)'

patch: setup ## patch LMDeploy wherever this environment's Python runs it: `lmdeploy serve …` is then the fast one
	@$(PATCHING) patch

unpatch: setup ## take the patches back; site-packages is as it was
	@$(PATCHING) unpatch

status: setup ## which patches are ready, applied, off, not needed or drifted
	@$(PATCHING) status

check: setup ## every patch's fingerprint against the installed LMDeploy, and the README's patch table
	@$(PATCHING) check
	@$(PATCHING) table --check README.md

diff: setup ## what upstream's source of PATCH=name looks like against what the patch expects
	@$(PATCHING) diff $(if $(PATCH),'$(PATCH)')

table: setup ## write the README's patch table anew
	@$(PATCHING) table --write README.md

lint: setup ## flake8 and isort, changing nothing
	@$(PYTHON_IN_VENV) -m flake8 overlay patches scripts eval tests
	@$(PYTHON_IN_VENV) -m isort --check-only --quiet overlay patches scripts eval tests

test: setup ## the tests (ARGS='-k name' for some of them)
	@$(PYTHON_IN_VENV) -m pytest $(ARGS)

demo: setup ## a few hundred room pictures labelled by stock and by patched LMDeploy: recall and images a minute
	@$(PYTHON_IN_VENV) -m lmdeploy_ext.eval demo $(ARGS)

eval: setup ## MANIFEST=file [MODEL=folder VARIANTS=stock,patched OUT=folder]: recall and QPM on your labelled set
	@[ -n '$(MANIFEST)' ] || { echo 'eval: no manifest of labelled images; make eval MANIFEST=labelled.jsonl' >&2; exit 2; }
	@$(PYTHON_IN_VENV) -m lmdeploy_ext.eval run --model '$(MODEL)' --manifest '$(MANIFEST)' \
		--variants '$(VARIANTS)' --out '$(OUT)' $(ARGS)

sweep: OUT = eval/runs/sweep
sweep: setup ## [MANIFEST=file MODEL=folder OUT=folder]: recall against image tokens and QPM, for every tile policy
	@$(PYTHON_IN_VENV) -m lmdeploy_ext.eval sweep --model '$(MODEL)' $(if $(MANIFEST),--manifest '$(MANIFEST)') \
		--out '$(OUT)' $(ARGS)

bench-images: setup ## [PHOTOS=folder]: image preprocessing, stock against ours, into eval/results/images.*
	@$(PYTHON_IN_VENV) -m lmdeploy_ext.eval.bench.images $(if $(PHOTOS),--photos '$(PHOTOS)') $(ARGS)

bench-vit: setup ## [SHAPE=8b DEVICE=cpu]: the vision encoder, stock against ours, into eval/results/vit-*
	@$(PYTHON_IN_VENV) -m lmdeploy_ext.eval.bench.vit $(if $(SHAPE),--shape '$(SHAPE)') \
		$(if $(DEVICE),--device '$(DEVICE)') $(ARGS)

bench-qpm: setup ## [MODEL=folder MANIFEST=file]: images a minute end to end, stock against ours, into eval/results/qpm.*
	@$(PYTHON_IN_VENV) -m lmdeploy_ext.eval.bench.qpm $(if $(filter command environment,$(firstword $(origin MODEL))),--model '$(MODEL)') \
		$(if $(MANIFEST),--manifest '$(MANIFEST)') $(ARGS)

bench-prefix: setup ## [MODEL=folder BACKEND=pytorch]: the prefix cache off against on, into eval/results/prefix-*
	@$(PYTHON_IN_VENV) -m lmdeploy_ext.eval.bench.prefix $(if $(filter command environment,$(firstword $(origin MODEL))),--model '$(MODEL)') \
		$(if $(BACKEND),--backend '$(BACKEND)') $(ARGS)
