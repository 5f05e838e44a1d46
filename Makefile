# make demo   train small models on a synthetic corpus and print a table
# make test   the tests
# make test-all   and those that repeat in another shape what others test (some five minutes more)
# make lint   ruff and mypy
# make mutants   put seeded faults into a copy, one at a time: a test must catch each (some ten minutes)
# make chaos  kill trainings, fill their disk: none loses anything (some ten minutes; a full disk needs root)
# make test-python PYTHON=python3.13   the tests with another Python, in an environment of its own
# make test-install   the README's install commands in new environments, with new and old pip and uv (minutes)
# make bench  how fast it is and how much memory it takes, as ratios (some twenty minutes, on an idle machine)
#             DEVICE=cuda: on a GPU, in each precision, against the prediction of docs/performance.md
# make test-gpu   right on a GPU: errors as multiples of torch's own, repeats equal, nothing that waits
#             KERBS_TEST_DEVICE=cuda:1 names another one, cpu runs the same tests on a CPU, in small sizes
# make results-table  the tables of README.md and the documentation, from the scores in docs/results/
# make setup  only the environment, in .venv; the others call it when it is missing or out of date
#
# PYTHON=python3.12 make ...  chooses the Python for a new .venv (3.10 or newer)
# ARGS="-k doctor" make test  passes arguments on to pytest, or to kerbs-demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=
DEVICE ?= cpu

.PHONY: help setup test test-all test-python test-gpu test-install mutants chaos demo bench results-table lint clean

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

setup: $(READY)

# torch first, alone and pinned: anything that asks for an unpinned torch would fetch gigabytes of another build.
# fairseq without its dependencies: its metadata demands an omegaconf that newer versions of pip refuse.
$(READY): setup.py pyproject.toml requirements/pinned.txt requirements/dev.txt boot/* build_support/*
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "make: needs Python 3.10 or newer (torch 2.13 does); '$(PYTHON)' is missing or older: PYTHON=/path/to/python3 make" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "make: '$(PYTHON)' cannot make virtual environments: install its venv package (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "Setting up $(VENV): about two minutes, once."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet torch==2.13.0
	$(PIP) install --quiet --no-warn-conflicts --constraint requirements/pinned.txt \
	  --editable ".[fairseq,recipes,report,dev]"
	$(PIP) install --quiet --no-deps fairseq==0.12.2
	@touch $@

test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(ARGS)

test-all: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not install" $(ARGS)

test-gpu: export KERBS_TEST_DEVICE ?= cuda
test-gpu: $(READY)
	@$(BIN)/python tests/on_device.py
	@$(BIN)/python -m pytest -s tests/test_on_device.py $(ARGS)

test-install: $(READY)
	$(BIN)/python -m pytest -m install $(ARGS)

# The environment is kept, named after the version: torch is large.
test-python:
	@version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
	$(MAKE) test VENV=.venv-$$version PYTHON=$(PYTHON) ARGS="$(ARGS)"

mutants: $(READY)
	@$(BIN)/python tests/mutants $(ARGS)

chaos: $(READY)
	@$(BIN)/python tests/chaos $(ARGS)

demo: $(READY)
	@$(BIN)/kerbs-demo $(ARGS)

bench: $(READY)
	@$(BIN)/python -m benchmarks --device $(DEVICE) $(ARGS)

results-table: $(READY)
	@$(BIN)/kerbs-evaluate pages README.md docs/results.md docs/settings.md

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-* build dist *.egg-info demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
