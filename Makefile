# Needs Python 3.11 or newer, with pip. .venv is made on first use: with what the demo needs, or with all that the tests
# do. What benchmarks, pages, releases and the tests in a browser and a cluster need is in environments under build.

PYTHON ?= python3
CONSTRAINTS := constraints/airflow.txt
BIN := .venv/bin
INSTALLED := .venv/.installed
DEMO_INSTALLED := $(if $(wildcard $(INSTALLED)),$(INSTALLED),.venv/.demo-installed)
RELEASE := build/release-venv
MERMAID := build/mermaid/mermaid.min.js
AXE := build/axe/axe.min.js
KILLS := $(wildcard tests/unit/*/test_*_kills.py)
RECIPES := tests/system/test_howto.py tests/system/test_approved_jobs.py
# The tests start many Pythons.
export PYTHONDONTWRITEBYTECODE =
COMMA := ,

FROZEN = $(1)/bin/pip freeze --exclude-editable --exclude airflow-provider-fsm \
	| grep '^[A-Za-z0-9._-]*==[^ ]*$$' | LC_ALL=C sort -f

# Makes the environment $(1) with what $(2) names. uv is ten times as fast as pip; pip knows indexes of its own.
define INSTALL
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "installing into $(1) ..." && start=$$(date +%s) && $(PYTHON) -m venv $(1) && \
	$(1)/bin/pip install -qq --disable-pip-version-check --upgrade pip uv && \
	{ $(1)/bin/uv pip install --quiet --compile-bytecode --python $(1)/bin/python $(2) || \
	  $(1)/bin/pip install -qq --disable-pip-version-check $(2); } && \
	touch $@ && echo "installed in $$(($$(date +%s) - start)) s"
endef

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo ui test test-all lint test-quick test-unit test-system test-matrix versions test-distributed test-databases test-alerts test-ui newcomer bench kills prove coverage \
	snippets docs docs-links release constraints clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(DEMO_INSTALLED) ## A work order, planned maintenance and a form that starts a DAG, on a real Airflow
	@$(BIN)/python -m tests.system.demo

ui: $(DEMO_INSTALLED) ## The same, then stay up for a look at Airflow's UI
	@$(BIN)/python -m tests.system.demo --ui

test: lint test-quick ## Lint, types, unit tests and the main job on a real Airflow

test-all: test test-system docs test-matrix ## All that a machine with only Python can test; test-matrix takes hours

lint: $(INSTALLED) ## Ruff, mypy, import-linter, and whether the code is plain
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== import-linter"
	@$(BIN)/lint-imports --no-logo
	@echo "== density"
	@$(BIN)/python -m tests.density

# Much of a test is waiting, so more run at a time than a small machine has cores; not many more, as some tests race with
# a clock. Tasks that are killed some dozens of times are part of test-system.
test-quick: $(INSTALLED)
	@echo "== pytest tests/unit, and the main job on a real Airflow"
	@$(BIN)/pytest --quiet --numprocesses 6 --dist worksteal $(KILLS:%=--ignore %) tests/system/test_roundtrip.py tests/unit

test-unit: $(INSTALLED) ## Tests without a running Airflow
	@echo "== pytest tests/unit"
	@$(BIN)/pytest --quiet --numprocesses 6 --dist worksteal tests/unit

coverage: $(INSTALLED) ## Which lines and branches the tests without a running Airflow do not reach
	@echo "== pytest tests/unit, measured"
	@$(BIN)/pytest --quiet --numprocesses 6 --dist worksteal --cov --cov-report term --cov-report html:build/coverage \
		$(KILLS:%=--ignore %) tests/unit
	@echo "build/coverage/index.html"

# Two of the four have an Airflow that many tests share, one has that of the kills: tests/system/conftest.py.
# The kills of watchers, and of several runs that share a database, are part of test-matrix: with them this takes too long.
test-system: export FSM_KILLS ?= few
test-system: $(INSTALLED) ## Tests on a real Airflow (FSM_KILLS=all: with all kills)
	@echo "== pytest tests/system"
	@$(BIN)/pytest --quiet --numprocesses 4 --dist loadfile --ignore tests/system/test_roundtrip.py \
		--ignore tests/system/test_watcher_kills.py --ignore tests/system/test_kills_database.py \
		--ignore tests/system/test_approved_jobs.py tests/system $(KILLS)

test-matrix: $(INSTALLED) ## The tests on every supported Airflow (OPTIONS="-t 3.1.8", "-t rotating", "--list")
	@$(BIN)/nox $(OPTIONS)

versions: ## List the versions of Airflow and Python that test-matrix runs, as JSON
	@$(PYTHON) -m tests.versions

test-distributed: export FSM_PATIENCE ?= 2400
test-distributed: build/distributed-venv/.installed ## Kills in a cluster (Debian's postgresql and redis-server; FSM_KILLS_SEED=n, FSM_CLUSTER_RUNS=n, FSM_CLUSTER_SENSORS=n)
	@echo "== pytest tests/distributed"
	@$(<D)/bin/pytest --quiet -o faulthandler_timeout=7200 tests/distributed

test-databases: build/databases-venv/.installed ## A shared ledger (Debian's postgresql, pgbouncer, mariadb-server, libmariadb-dev, gcc)
	@echo "== pytest tests of a shared ledger on PostgreSQL by two drivers, PgBouncer and MariaDB"
	@FSM_DATABASES=postgresql,psycopg2,pgbouncer,mariadb $(<D)/bin/pytest --quiet --numprocesses 2 \
		tests/unit/writes/test_shared_ledger.py tests/unit/writes/test_services.py \
		tests/unit/operators/test_shared_webhooks.py tests/unit/polling/test_asset_stores.py \
		tests/unit/state/test_database.py

test-alerts: ## The alerts and the dashboard's queries of docs/monitoring (Debian's prometheus)
	@promtool test rules tests/monitoring/alerts_test.yml tests/monitoring/dashboard_test.yml

test-ui: export FSM_AXE = $(CURDIR)/$(AXE)
test-ui: build/ui-venv/.installed $(INSTALLED) $(AXE) ## Airflow's UI in the Chromium on the PATH (OPTIONS="--pictures docs/images")
	@echo "== pytest tests/ui"
	@$(<D)/bin/pytest --quiet tests/ui $(OPTIONS)
	@.venv/bin/nox --session ui

# What a change of the install, the quickstart or a message may break, and nothing else runs: weekly, and before a release.
newcomer: $(INSTALLED) ## A newcomer: installs, follows the quickstart and recipes, makes mistakes (OPTIONS="-k token": without the recipes)
	@echo "== pytest tests/newcomer, and beside it $(RECIPES)"
	@mkdir -p build
	@$(if $(OPTIONS),true,$(BIN)/pytest --quiet $(RECIPES)) >build/newcomer-recipes.log 2>&1 & recipes=$$!; \
	trap 'kill $$recipes 2>/dev/null' EXIT; \
	$(BIN)/pytest --quiet --capture no tests/newcomer $(OPTIONS); code=$$?; \
	wait $$recipes || code=1; \
	cat build/newcomer-recipes.log; exit $$code

bench: build/bench-venv/.installed ## CPU, memory and imports against other clients (OPTIONS=--help)
	@$(<D)/bin/python -m tests.benchmarks $(OPTIONS)

kills: build/bench-venv/.installed ## Tasks killed while they create jobs: ours and HttpOperator's (OPTIONS=--help)
	@$(<D)/bin/python -m tests.system.kills $(OPTIONS)

prove: export FSM_LINE = $(LINE)
prove: $(INSTALLED) ## What no example shows, in a minute: states, days, and rules taken out (SEED=n, LINE="a line of it")
	@$(BIN)/python -m tests.proof $(if $(SEED),--seed $(SEED)) $(if $(LINE),--line "$$FSM_LINE")

snippets: $(INSTALLED) ## Write into the pages what they show of tested code
	@$(BIN)/python -m tests.snippets

docs: build/docs-venv/.installed ## The pages of docs/ as build/docs/html; a warning or a broken link fails the build
	@[ -e $(MERMAID) ] || $(MAKE) --silent $(MERMAID) || echo "without npm, the pages show the text of their diagrams" >&2
	@rm -rf build/docs/html
	@$(<D)/bin/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going \
		--builder html docs build/docs/html
	@$(<D)/bin/python -m tests.links build/docs/html README.md CONTRIBUTING.md CHANGELOG.md
	@echo "build/docs/html/index.html"

# What draws the diagrams: fetched once. docs/_ext/diagrams.py knows its digest.
$(MERMAID):
	@mkdir -p $(@D) && cd $(@D) && npm pack --silent --fetch-retries 0 mermaid@11.16.0 > /dev/null && \
	tar -xzf mermaid-11.16.0.tgz --strip-components 2 package/dist/mermaid.min.js && rm mermaid-11.16.0.tgz

# What looks for what keeps people from reading the page: fetched once.
$(AXE):
	@mkdir -p $(@D) && cd $(@D) && npm pack --silent --fetch-retries 0 axe-core@4.14.1 > /dev/null && \
	tar -xzf axe-core-4.14.1.tgz --strip-components 1 package/axe.min.js && rm axe-core-4.14.1.tgz || \
	echo "without npm, the page is not checked with axe" >&2

docs-links: build/docs-venv/.installed ## Follow the links that lead out of docs/, which needs the network
	@$(<D)/bin/sphinx-build --quiet --fresh-env --builder linkcheck docs build/docs/linkcheck

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
	@rm -rf docs/reference .venv .nox .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(call INSTALL,.venv,-c $(CONSTRAINTS) -e .[parquet$(COMMA)sql$(COMMA)testing] --group dev)

.venv/.demo-installed: pyproject.toml $(CONSTRAINTS)
	$(call INSTALL,.venv,-c $(CONSTRAINTS) -e .[sql$(COMMA)testing])

# What tests, benchmarks and pages of one kind need besides: the dependency group of that name, with its constraints
# where it has any.
build/%-venv/.installed: pyproject.toml $(wildcard constraints/*.txt)
	$(call INSTALL,build/$*-venv,-c $(CONSTRAINTS) $(addprefix -c ,$(wildcard constraints/$*.txt)) -e .[parquet$(COMMA)sql$(COMMA)testing] --group $*)

# The tools alone, without the package.
$(RELEASE)/.installed: pyproject.toml
	$(call INSTALL,$(RELEASE),--group release)
