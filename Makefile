# Two commands for a newcomer: `make demo` and `make test`. Each does all of its own set-up in .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-fast test-all lint docs site release-check bench gpu-test clean

demo: $(VENV)/demo
	$(BIN)/ddp-lint check --no-cache examples; test $$? -eq 1  # 1: there are findings
	$(BIN)/ddp-lint verify examples/verdicts.py --nproc 2 --wrap ddp --device cpu; test $$? -eq 1  # 1: one is confirmed

test: lint
	$(BIN)/python -m pytest --durations=10

# What a contributor runs again and again: no launches, no other tools, no long searches.
test-fast: $(VENV)/dev
	$(BIN)/python -m pytest -m "not launch and not slow"

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/ddp-lint check src

# The suite on every supported Python that is installed; `verify` is tested where torch 2.13.0 can be had.
test-all: $(VENV)/dev
	$(BIN)/tox run

docs: $(VENV)/dev
	$(BIN)/python -m ddp_lint dev docs

# The site, in site/; a link that leads nowhere ends it.
site: $(VENV)/site
	$(BIN)/python -m ddp_lint dev docs --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

# What is published, built, looked at, and tried in an empty environment.
release-check: $(VENV)/site
	rm -rf dist $(VENV)/release
	$(BIN)/python -m build --quiet --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(VENV)/release
	$(VENV)/release/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$(echo dist/*.whl)[verify]"
	cd examples && ../$(VENV)/release/bin/ddp-lint check --isolated --no-cache .; test $$? -eq 1
	cd examples && ../$(VENV)/release/bin/ddp-lint verify verdicts.py --nproc 2 --wrap ddp --device cpu; test $$? -eq 1

# Downloads public packages to measure on; nothing of them is kept in the repository.
bench: $(VENV)/dev
	$(BIN)/python benchmarks/speed.py

gpu-test:
	$(PYTHON) -m pytest -m gpu -rs tests/verify

$(VENV)/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[verify]'
	touch $@

# Dependency groups need pip 25.1.
$(VENV)/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --upgrade 'pip>=25.1'
	$(PIP_INSTALL) --editable '.[verify,flake8,lsp,watch]' --group dev
	touch $@

$(VENV)/site: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --upgrade 'pip>=25.1'
	$(PIP_INSTALL) --editable . --group site
	touch $@

clean:
	rm -rf $(VENV) .tox build dist site .pytest_cache .mypy_cache .ruff_cache .ddp_lint_cache
