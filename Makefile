# Needs Python 3.11 or newer, with pip. .venv is made on first use; what benchmarks, pages, releases and the tests in a
# browser and a cluster need besides is in environments under build.

PYTHON ?= python3
CONSTRAINTS := constraints/airflow.txt
BIN := .venv/bin
INSTALLED := .venv/.installed
RELEASE := build/release-venv

FROZEN = $(1)/bin/pip freeze --exclude-editable --exclude airflow-provider-fsm \
	| grep '^[A-Za-z0-9._-]*==[^ ]*$$' | LC_ALL=C sort -f

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo ui test lint test-unit test-system test-matrix test-distributed test-ui bench kills \
	docs release constraints clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(INSTALLED) ## A work order, planned maintenance and a form that starts a DAG, on a real Airflow
	@$(BIN)/python -m tests.system.demo

ui: $(INSTALLED) ## The same, then stay up for a look at Airflow's UI
	@$(BIN)/python -m tests.system.demo --ui

test: lint test-unit test-system ## All checks: lint, types, unit tests, system tests

lint: $(INSTALLED) ## Ruff and mypy
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy

test-unit: $(INSTALLED) ## Tests without a running Airflow
	@echo "== pytest tests/unit"
	@$(BIN)/pytest --quiet --numprocesses 3 --dist worksteal tests/unit

# Much of a system test is waiting: two run at a time, each on an Airflow of its own.
test-system: $(INSTALLED) ## Tests on a real Airflow
	@echo "== pytest tests/system"
	@$(BIN)/pytest --quiet --numprocesses 2 --dist loadfile tests/system

test-matrix: $(INSTALLED) ## The tests on every supported Airflow (OPTIONS="-t 3.1.8", "-t rotating", "--list")
	@$(BIN)/nox $(OPTIONS)

test-distributed: build/distributed-venv/.installed ## Kills in a cluster (Debian's postgresql and redis-server; FSM_KILLS_SEED=n)
	@echo "== pytest tests/distributed"
	@$(<D)/bin/pytest --quiet tests/distributed

test-ui: build/ui-venv/.installed ## Airflow's UI in the Chromium on the PATH (OPTIONS="--pictures docs/images")
	@echo "== pytest tests/ui"
	@$(<D)/bin/pytest --quiet tests/ui $(OPTIONS)

bench: build/bench-venv/.installed ## CPU, memory and imports against other clients (OPTIONS=--help)
	@$(<D)/bin/python -m tests.benchmarks $(OPTIONS)

kills: build/bench-venv/.installed ## Tasks killed while they create jobs: ours and HttpOperator's (OPTIONS=--help)
	@$(<D)/bin/python -m tests.system.kills $(OPTIONS)

docs: build/docs-venv/.installed ## The pages of docs/ as build/docs/html; a warning fails the build
	@$(<D)/bin/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going \
		--builder html docs build/docs/html
	@echo "build/docs/html/index.html"

# Its tools have an environment of their own, and the wheel another, without any extra.
release: $(RELEASE)/.installed ## Build into dist, and check: metadata, SBOM, licences, types, known vulnerabilities
	@rm -rf dist && $(RELEASE)/bin/python -m build --outdir dist
	@$(RELEASE)/bin/twine check --strict dist/*
	@$(RELEASE)/bin/python -m tests.release

constraints: ## Write down the versions installed in .venv, and what else build/distributed-venv has
	@airflow=$$($(BIN)/pip show apache-airflow | sed -n 's/^Version: //p') && \
	python=$$($(BIN)/python -c 'import platform; print(platform.python_version())') && \
	{ echo "# Airflow $$airflow, Python $$python" && $(call FROZEN,.venv); } > $(CONSTRAINTS)
	@[ ! -d build/distributed-venv ] || \
	{ echo "# Of the distributed tests, beside $(CONSTRAINTS)" && \
	  $(call FROZEN,build/distributed-venv) | grep -vxFf $(CONSTRAINTS); } > constraints/distributed.txt
	@grep -c == constraints/*.txt

clean: ## Remove .venv and everything else that was made
	@rm -rf .venv .nox .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "installing into .venv ..." && start=$$(date +%s) && \
	$(PYTHON) -m venv .venv && \
	$(BIN)/pip install -qq --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]' && \
	touch $@ && echo "installed in $$(($$(date +%s) - start)) s"

# What tests, benchmarks and pages of one kind need besides stays out of .venv: the extra of that name, with its
# constraints where it has any.
build/%-venv/.installed: pyproject.toml $(wildcard constraints/*.txt)
	@echo "installing into build/$*-venv ..." && $(PYTHON) -m venv build/$*-venv && \
	build/$*-venv/bin/pip install -qq --disable-pip-version-check -c $(CONSTRAINTS) \
		$(addprefix -c ,$(wildcard constraints/$*.txt)) -e '.[$*]' && touch $@

# The tools alone, without the package.
$(RELEASE)/.installed: pyproject.toml
	@echo "installing into $(RELEASE) ..." && $(PYTHON) -m venv $(RELEASE) && \
	$(RELEASE)/bin/python -c 'import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["release"], sep="\n")' \
	> $(RELEASE)/requirements.txt && \
	$(RELEASE)/bin/pip install -qq --disable-pip-version-check -r $(RELEASE)/requirements.txt && touch $@
