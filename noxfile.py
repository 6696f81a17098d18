"""The tests on every supported Airflow; which those are is in tests/versions/versions.toml."""

import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nox

nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
# An interpreter that is not on PATH is skipped, and reported as such, on CI too.
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["airflow", "oldest", "kit", "kills", "tables"]

EXTRAS = ".[parquet,sql,testing]"
VERSIONS: dict[str, dict[str, Any]] = tomllib.loads(
    Path("tests/versions/versions.toml").read_text()
)
RUNS = [(python, airflow) for airflow, version in VERSIONS.items() for python in version["pythons"]]
# `make test` covers the newest Airflow; of the others one runs each day, in turn, on the oldest
# Python.
OTHERS = [run for run in RUNS if run[0] == "3.11" and run[1] != list(VERSIONS)[-1]]
TODAY = OTHERS[datetime.now(UTC).toordinal() % len(OTHERS)]


@nox.session
@nox.parametrize(
    "python,airflow",
    [
        nox.param(
            *run, id=f"{run[1]}-py{run[0]}", tags=[run[1], *(["rotating"] if run == TODAY else [])]
        )
        for run in RUNS
    ],
)
def airflow(session: nox.Session, airflow: str) -> None:
    """Run the unit tests, a boot of Airflow's processes, and the examples; with options, the first
    alone.
    """
    install(session, airflow)
    in_parallel = ["--numprocesses", "3", "--dist", "worksteal"]
    suites = {
        "unit": [*in_parallel, *session.posargs, "tests/unit"],
        "boot": ["tests/versions/test_boot.py"],
        "examples": ["tests/versions/test_examples.py"],
    }
    wanted = VERSIONS[airflow]["suites"]
    for suite in wanted[:1] if session.posargs else wanted:
        test(session, airflow, suite, *suites[suite])


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """Run the unit tests with the oldest versions that the metadata allows, of all that it names."""
    # Airflow 2.11.0 does not work with a newer universal-pathlib, which its metadata allows.
    session.install(
        "--compile-bytecode",
        "--resolution",
        "lowest-direct",
        "universal-pathlib>=0.2.6,<0.3",
        "-e",
        EXTRAS,
    )
    session.install("--compile-bytecode", "universal-pathlib<0.3", "--group", "test")
    suite = ["--numprocesses", "3", "--dist", "worksteal", *session.posargs, "tests/unit"]
    test(session, "oldest", "unit", *suite)


EACH_ON_OLDEST_PYTHON = nox.parametrize(
    "python,airflow",
    [nox.param(*run, id=run[1], tags=[run[1]]) for run in RUNS if run[0] == "3.11"],
)


@nox.session
@EACH_ON_OLDEST_PYTHON
def kit(session: nox.Session, airflow: str) -> None:
    """Run DAGs that completed forms start with the testing kit; before Airflow 3.3 each task is
    slow.
    """
    install(session, airflow)
    test(session, airflow, "kit", "tests/versions/test_form_runs.py")


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


@nox.session(python="3.11")
@nox.parametrize("airflow", ["3.0.6", "3.1.8"], ids=["3.0.6", "3.1.8"])
def ui(session: nox.Session, airflow: str) -> None:
    """Show the page in Chromium with the oldest Airflow that has it, and with a menu for it."""
    install(session, airflow)
    session.install("playwright>=1.50")
    test(session, airflow, "ui", "tests/ui/test_field_service.py")


def install(session: nox.Session, airflow: str) -> None:
    """Install a version of Airflow, and this package."""
    version = VERSIONS[airflow]
    constraints = ["-c", version["constraints"]] if "constraints" in version else []
    wanted = [f"apache-airflow=={airflow}", *version["pins"], "-e", EXTRAS, "--group", "test"]
    session.install("--compile-bytecode", *constraints, *wanted)


def test(session: nox.Session, airflow: str, suite: str, *options: str) -> None:
    """Run tests, and write their results down for the tables."""
    # Airflow itself, and what it allows to be installed with it, warns of what is deprecated by
    # now.
    pytest = [
        "pytest",
        "--quiet",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        "-o",
        "junit_family=xunit1",
    ]
    results = Path("build", "versions", f"{airflow}-py{session.python}-{suite}.xml")
    session.run(*pytest, f"--junitxml={results}", *options)


@nox.session(venv_backend="none")
def tables(session: nox.Session) -> None:
    """Write the results down, and the tables of docs/tested.md."""
    session.run(sys.executable, "-m", "tests.versions.report", external=True)
