# `make setup` once; then `make check` is what CI runs, and nothing else.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Test files side by side, each in one process.
PARALLEL ?= -n auto --maxprocesses 4 --dist loadfile

.PHONY: setup demo test test-all check format docs questions transcripts bench attack dist lock clean

setup: $(STAMP)

# Everything is pinned, and all but torch by hash. What torch's build for this machine needs comes with it.
$(STAMP): pyproject.toml requirements.lock requirements-torch.lock
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || \
	  { echo "make: headstart needs Python 3.11 or newer with venv and pip; name it with PYTHON=/path/to/python3"; exit 2; }
	$(PYTHON) -m venv .venv
	@echo "installing what requirements.lock names: some minutes, once"
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet -r requirements-torch.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(STAMP)

# The main job, on what ships with the package: no network, no compiler.
demo: setup
	@$(BIN)/headstart demo

test: setup
	$(BIN)/python -m pytest $(PARALLEL)

test-all: setup
	$(BIN)/python -m pytest $(PARALLEL) -m ""

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/generate.py --check
	$(BIN)/python -m pytest $(PARALLEL)

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

# Damaged files, odd options, kills, limits and hostile clients, at random: about an hour; SCALE=0.02 takes minutes.
SCALE ?= 1
SEED ?= 1
attack: setup
	$(BIN)/python -m tools.attack --scale $(SCALE) --seed $(SEED)

# A release of the last commit: wheel, sdist, bill of materials, SHA256SUMS; the same bytes each time.
dist: setup
	rm -rf dist
	$(BIN)/python tools/dist.py --out dist

# Resolve the dependencies of pyproject.toml anew, with the hashes of their files on PyPI, for torch without CUDA: what
# another build of torch needs is installed with it. Where pytorch.org cannot be reached: LOCK_OPTIONS='--find-links FOLDER'.
LOCK_OPTIONS ?= --torch-backend cpu
lock:
	rm -rf .cache/lock && $(PYTHON) -m venv .cache/lock
	.cache/lock/bin/pip install --quiet uv
	echo setuptools > .cache/lock/setuptools.in
	( echo "# Every dependency but torch, with the hashes of its files on PyPI: made by 'make lock', installed by 'make setup'."; \
	  .cache/lock/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 \
	    --no-emit-package torch $(LOCK_OPTIONS) --extra all --extra dev \
	    pyproject.toml requirements-torch.lock .cache/lock/setuptools.in ) > .cache/lock/new
	mv .cache/lock/new requirements.lock

clean:
	rm -rf .venv .cache build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
