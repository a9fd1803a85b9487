# Everything that a contributor or CI runs. `make help` lists it. PYTHON chooses the interpreter that makes .venv.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
RECIPE ?= recipes/quickstart.toml

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.PHONY: help quickstart nano test check lint types layers fuzz bench-update bench-rollouts clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

quickstart: $(STAMP) ## install, train the bundled policy, evaluate it; continues where it was stopped
	$(BIN)/toolorchestra train $(RECIPE) --resume
	$(BIN)/toolorchestra evaluate $(RECIPE)

nano: $(STAMP) ## make the bundled start model anew (about 20 minutes) and put it into the package
	$(BIN)/toolorchestra train recipes/nano.toml --resume
	cp runs/nano/checkpoints/step-000000/{config.json,generation_config.json,model.safetensors,tokenizer.json,tokenizer_config.json} src/toolorchestra/assets/nano/

test: $(STAMP) ## run the test suite, offline
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q

check: lint types layers ## everything but the tests

lint: $(STAMP) ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## static types
	$(BIN)/pyright

layers: $(STAMP) ## imports go downwards only
	$(BIN)/lint-imports

fuzz: $(STAMP) ## the property tests with many more, and random, examples
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile=fuzz

bench-update: $(STAMP) benchmarks/.venv-trl/.installed ## one policy update beside TRL's and the plain one (needs 24 GB of memory)
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/update.py

bench-rollouts: $(STAMP) benchmarks/.venv-verifiers/.installed ## the rollout loop beside that of verifiers and a lock-step loop
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/rollouts.py

benchmarks/.venv-%/.installed: benchmarks/requirements-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet -r $<
	@touch $@

clean: ## remove .venv and caches; runs/ stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "ToolOrchestra needs Python 3.11 to 3.13, and '$(PYTHON)' is not: run 'make PYTHON=python3.12 ...'." >&2; \
	  exit 2; }
	@echo "Installing into .venv (a few minutes the first time) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[world,train,dev]'
	@touch $@
