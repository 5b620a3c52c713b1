# `make setup` once; then `make check` is what CI runs, and nothing else.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test test-all check format docs questions transcripts bench lock clean

setup: $(STAMP)

# Everything is pinned in requirements.lock, torch among them: an open range would bring another build.
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || \
	  { echo "make: headstart needs Python 3.11 or newer with venv and pip; name it with PYTHON=/path/to/python3"; exit 2; }
	$(PYTHON) -m venv .venv
	@echo "installing what requirements.lock names: some minutes, once"
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(STAMP)

# The main job, on what ships with the package: no network, no compiler.
demo: setup
	@$(BIN)/headstart demo

test: setup
	$(BIN)/python -m pytest

test-all: setup
	$(BIN)/python -m pytest -m ""

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/generate.py --check
	$(BIN)/python -m pytest

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup
	$(BIN)/python tools/generate.py

# docs/questions.md from the beginning, with the small models that it is about trained anew: some minutes.
questions: setup
	$(BIN)/python tools/questions.py

# What the commands of README.md and docs/quickstart.md print, and the picture of the report: some minutes.
transcripts: setup
	env -u MAKELEVEL -u MAKEFLAGS $(BIN)/python tools/transcripts.py --picture # its own make says nothing of folders

bench: setup
	$(BIN)/python -m bench

# Resolve the dependencies of pyproject.toml anew; torch stays at the version named here.
lock:
	rm -rf .cache/lock && $(PYTHON) -m venv .cache/lock
	.cache/lock/bin/pip install --quiet torch==2.13.0 setuptools '.[all,dev]'
	( echo "# Every dependency, pinned: made by 'make lock', installed by 'make setup'."; \
	  .cache/lock/bin/pip freeze --all | grep -v -E '^(headstart|pip|wheel)\b' | sed 's/+cpu$$//' ) > requirements.lock

clean:
	rm -rf .venv .cache build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
