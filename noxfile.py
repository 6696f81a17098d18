"""The tests on every supported Airflow; which those are is in tests/versions/versions.toml."""

import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nox

nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
# An interpreter that is not on PATH is skipped, and reported as such, on CI too.
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["airflow", "oldest", "kit", "kills", "upgrade", "tables"]

EXTRAS = ".[parquet,sql,testing]"
VERSIONS: dict[str, dict[str, Any]] = tomllib.loads(
    Path("tests/versions/versions.toml").read_text()
)
OLDEST_PYTHON = "3.11"
# `make test` covers the newest Airflow; of the others one runs each day, in turn, on the oldest
# Python.
*OTHERS, NEWEST = VERSIONS
AIRFLOW_OF_TODAY = OTHERS[datetime.now(UTC).toordinal() % len(OTHERS)]
IN_PARALLEL = ["--numprocesses", "3", "--dist", "worksteal"]


def runs() -> Iterator[Any]:
    """Give each version of Airflow with each Python that it runs on."""
    for airflow, version in VERSIONS.items():
        for python in version["pythons"]:
            tags = [airflow]
            if airflow == AIRFLOW_OF_TODAY and python == OLDEST_PYTHON:
                tags.append("rotating")
            yield nox.param(python, airflow, id=f"{airflow}-py{python}", tags=tags)


def runs_on_oldest_python() -> Iterator[Any]:
    """Give each version of Airflow with the oldest Python."""
    for airflow, version in VERSIONS.items():
        if OLDEST_PYTHON in version["pythons"]:
            yield nox.param(OLDEST_PYTHON, airflow, id=airflow, tags=[airflow])


EACH = nox.parametrize("python,airflow", list(runs()))
EACH_ON_OLDEST_PYTHON = nox.parametrize("python,airflow", list(runs_on_oldest_python()))


@nox.session
@EACH
def airflow(session: nox.Session, airflow: str) -> None:
    """Run the unit tests, a boot of Airflow and the examples; with options, the first alone."""
    install(session, airflow)
    suites = {
        "unit": [*IN_PARALLEL, *session.posargs, "tests/unit"],
        "boot": ["tests/versions/test_boot.py"],
        "examples": ["tests/versions/test_examples.py"],
    }
    wanted = VERSIONS[airflow]["suites"]
    if session.posargs:
        wanted = wanted[:1]
    for suite in wanted:
        test(session, airflow, suite, *suites[suite])


@nox.session(python=OLDEST_PYTHON)
def oldest(session: nox.Session) -> None:
    """Run the unit tests with the oldest versions that the metadata allows of what it names."""
    # Airflow 2.11.0 does not work with a newer universal-pathlib, which its metadata allows.
    session.install(
        "--compile-bytecode",
        "--resolution",
        "lowest-direct",
        "universal-pathlib>=0.2.6,<0.3",
        "-e",
        EXTRAS,
    )
    tools = [*VERSIONS["2.11.2"]["pins"], "universal-pathlib<0.3"]
    session.install("--compile-bytecode", *tools, "--group", "test")
    test(session, "oldest", "unit", *IN_PARALLEL, *session.posargs, "tests/unit")


@nox.session
@EACH_ON_OLDEST_PYTHON
def kit(session: nox.Session, airflow: str) -> None:
    """Run the project of docs/testing.md, DAGs that completed forms start, and README's Try it."""
    # Before Airflow 3.3 each task is slow.
    install(session, airflow)
    projects = [
        "tests/system/test_testing_kit.py",
        "tests/versions/test_form_runs.py",
        "tests/versions/test_readme.py",
    ]
    test(session, airflow, "kit", "--noconftest", *projects)


@nox.session
@EACH_ON_OLDEST_PYTHON
def kills(session: nox.Session, airflow: str) -> None:
    """Kill tasks that create jobs, and triggerers; with PostgreSQL too, from Debian's packages."""
    install(session, airflow)
    # The files have an Airflow of their own; the one in conftest.py needs Airflow 3.3.
    jobs = ["tests/system/test_kills.py", "tests/system/test_kills_database.py"]
    session.env["FSM_KILLS_STORES"] = "Airflow,SQLite,PostgreSQL"
    test(session, airflow, "kills", "--noconftest", *jobs)
    if airflow.startswith("3."):
        test(session, airflow, "watchers", "--noconftest", "tests/system/test_watcher_kills.py")


@nox.session(python=OLDEST_PYTHON)
@nox.parametrize("airflow", ["3.1.8", NEWEST], ids=["3.1.8", NEWEST])
def upgrade(session: nox.Session, airflow: str) -> None:
    """Go on with this version after that of a tag, before and since Airflow has its own store."""
    install(session, airflow)
    test(session, airflow, "upgrade", "--noconftest", "tests/versions/test_upgrade.py")


@nox.session(python=OLDEST_PYTHON)
@nox.parametrize("airflow", ["3.0.6", "3.1.8"], ids=["3.0.6", "3.1.8"])
def ui(session: nox.Session, airflow: str) -> None:
    """Show the page in Chromium with the oldest Airflow that has it, and with a menu for it."""
    install(session, airflow)
    session.install("playwright>=1.50")
    test(session, airflow, "ui", "tests/ui/test_field_service.py", "tests/ui/test_office.py")


def install(session: nox.Session, airflow: str) -> None:
    """Install a version of Airflow, and this package."""
    version = VERSIONS[airflow]
    constraints: list[str] = []
    if "constraints" in version:
        constraints = ["-c", version["constraints"]]
    pins = [f"apache-airflow=={airflow}", *version["pins"]]
    session.install(
        "--compile-bytecode",
        *constraints,
        *pins,
        "-e",
        EXTRAS,
        "--group",
        "test",
    )


def test(session: nox.Session, airflow: str, suite: str, *options: str) -> None:
    """Run tests, and write their results down for the tables."""
    results = Path("build", "versions", f"{airflow}-py{session.python}-{suite}.xml")
    session.run(
        "pytest",
        "--quiet",
        # Airflow itself, and what it allows to be installed with it, warns of what is deprecated
        # by now.
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        "-o",
        "junit_family=xunit1",
        f"--junitxml={results}",
        *options,
    )


@nox.session(venv_backend="none")
def tables(session: nox.Session) -> None:
    """Write the results down, and the tables of docs/tested.md and docs/measured.md."""
    session.run(sys.executable, "-m", "tests.versions.report", external=True)
