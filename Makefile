# Everything runs in .venv, which is made on first use. Needs Python 3.11 or newer, with pip.

PYTHON ?= python3
CONSTRAINTS := constraints/airflow-3.3.2.txt
BIN := .venv/bin
INSTALLED := .venv/.installed
BENCH := build/bench-venv

# Whatever imports Airflow would create ~/airflow without a home of its own.
IN_TEMPORARY_HOME = home=$$(mktemp -d); trap 'rm -rf "$$home"' EXIT; \
	trap 'exit 130' INT; trap 'exit 143' TERM; AIRFLOW_HOME="$$home"

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo ui test test-matrix lint test-unit test-system bench kills constraints clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

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
	@$(IN_TEMPORARY_HOME) $(BIN)/mypy

test-unit: $(INSTALLED) ## Tests without a running Airflow
	@echo "== pytest tests/unit"
	@$(IN_TEMPORARY_HOME) $(BIN)/pytest --quiet --numprocesses 3 --dist worksteal tests/unit

# Much of a system test is waiting: two run at a time, each on an Airflow of its own.
test-system: $(INSTALLED) ## Tests on a real Airflow
	@echo "== pytest tests/system"
	@$(IN_TEMPORARY_HOME) $(BIN)/pytest --quiet --numprocesses 2 --dist loadfile tests/system

test-matrix: $(INSTALLED) ## The tests on every supported Airflow (OPTIONS="-t 3.1.8", "-t rotating", "--list")
	@$(BIN)/nox $(OPTIONS)

bench: $(BENCH)/.installed ## CPU, memory and imports against other clients (OPTIONS=--help)
	@$(BENCH)/bin/python -m tests.benchmarks $(OPTIONS)

kills: $(BENCH)/.installed ## Tasks killed while they create jobs: ours and HttpOperator's (OPTIONS=--help)
	@$(BENCH)/bin/python -m tests.system.kills $(OPTIONS)

constraints: ## Write down the versions installed in .venv
	@airflow=$$($(BIN)/pip show apache-airflow | sed -n 's/^Version: //p') && \
	python=$$($(BIN)/python -c 'import platform; print(platform.python_version())') && \
	file=constraints/airflow-$$airflow.txt && mkdir -p constraints && \
	{ echo "# Airflow $$airflow, Python $$python" && \
	  $(BIN)/pip freeze --exclude-editable --exclude airflow-provider-fsm \
	  | grep '^[A-Za-z0-9._-]*==[^ ]*$$' | LC_ALL=C sort -f; } > $$file && \
	echo "$$file: $$(grep -c == $$file) packages"

clean: ## Remove .venv and everything else that was made
	@rm -rf .venv .nox .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "installing into .venv ..." && start=$$(date +%s) && \
	$(PYTHON) -m venv .venv && \
	$(BIN)/pip install -qq --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]' && \
	touch $@ && echo "installed in $$(($$(date +%s) - start)) s"

# The clients that are compared with stay out of .venv.
$(BENCH)/.installed: pyproject.toml $(CONSTRAINTS)
	@echo "installing into $(BENCH) ..." && $(PYTHON) -m venv $(BENCH) && \
	$(BENCH)/bin/pip install -qq --disable-pip-version-check -c $(CONSTRAINTS) -e '.[bench]' && touch $@
