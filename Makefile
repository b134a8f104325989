# Two commands from a fresh clone: `make demo` and `make test`. They need python3.11 (or 3.12), make and git.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 3

.PHONY: help demo cloud test check format chaos simulate bench emulators lock clean

help: ## this list
	@echo "Sendonce. Commands:"
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS=$$'\t' read -r name words; do printf '  make %-9s %s\n' "$$name" "$$words"; done
	@echo "Options: DEMO_ARGS='--fresh', TEST_ARGS='tests/rendering -x', CHAOS_ARGS='--seed 7', SIM_ARGS='--seeds 10000', BENCH_ARGS='--large'"

demo: $(VENV)/.local ## install, make a campaign of 20,000, send it into a folder, count every outcome
	@echo "== the demo (the command sendonce is $(BIN)/sendonce)"
	@$(BIN)/sendonce demo $(DEMO_ARGS)

cloud: $(VENV)/.cloud ## install what live jobs, Spanner and every sender need, too (all extras)
	@echo "== installed, with all extras (the command sendonce is $(BIN)/sendonce)"

test: $(VENV)/.dev ## install, then run the tests
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(TEST_ARGS)

check: $(VENV)/.dev ## lint, types, and who may import whom
	@echo "== lint"; $(BIN)/ruff check .; $(BIN)/ruff format --check .
	@echo "== types"; $(BIN)/mypy
	@echo "== structure"; $(BIN)/lint-imports --no-logo

format: $(VENV)/.dev ## put imports and layout in order
	@$(BIN)/ruff check --fix .; $(BIN)/ruff format .

chaos: $(VENV)/.dev ## kill sending processes again and again; nothing may be lost or sent twice
	@$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

simulate: $(VENV)/.dev ## play the delivery core through random histories with faults; each must keep every invariant
	@$(BIN)/python -m tests.simulator $(SIM_ARGS)

bench: $(VENV)/.dev ## measure: the pipeline beside a raw loop, load, permits, limits; writes docs/benchmarks.md
	@$(BIN)/python -m benchmarks.report $(BENCH_ARGS)

emulators: $(VENV)/.dev ## start the Spanner and Pub/Sub emulators of an installed gcloud SDK, until Ctrl-C
	@$(BIN)/python -m tests.emulated

lock: $(VENV)/.dev ## write the lock files anew from pyproject.toml (needs a package index)
	@requirements/compile.sh $(BIN)/python

clean: ## remove the environment, caches and builds; .sendonce/ (store and letters) stays
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Stamps: an environment is installed once, and again only when a lock or pyproject.toml has changed.
$(VENV)/.local: requirements/local.lock pyproject.toml | $(VENV)/.made
	@requirements/install.sh $(BIN)/python requirements/local.lock
	@touch $@

$(VENV)/.cloud: requirements/cloud.lock pyproject.toml | $(VENV)/.made
	@requirements/install.sh $(BIN)/python requirements/cloud.lock
	@touch $@ $(VENV)/.local

$(VENV)/.dev: requirements/dev.lock pyproject.toml | $(VENV)/.made
	@requirements/install.sh $(BIN)/python requirements/dev.lock
	@touch $@ $(VENV)/.local

$(VENV)/.made:
	@requirements/venv.sh $(VENV)
	@touch $@
