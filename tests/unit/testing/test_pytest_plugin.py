"""The pytest plugin, as far as it goes without Airflow.

More is in tests/system/test_testing_kit.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsm_provider.testing import Engineer


@pytest.fixture
def run_pytest(tmp_path):
    """Run pytest in a project of its own; return its exit code and its output."""

    def run(*arguments, settings="", test=""):
        (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}\n")
        (tmp_path / "test_it.py").write_text(test)
        plugin = ("-p", "fsm_provider.testing.pytest_plugin")
        # Other plugins take seconds.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugin, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
        return result.returncode, result.stdout + result.stderr

    return run


@pytest.mark.fake_field_service(fsm_conn_id="fsm_uk", page_size=3, engineer=Engineer(after=0))
def test_a_marker_names_the_connection_and_gives_the_parameters(fake_field_service):
    fake_field_service.add_job(7)

    assert fake_field_service.wait_for(lambda: fake_field_service.forms, timeout=5)
    assert fake_field_service.settings.page_size == 3
    connection = json.loads(os.environ["AIRFLOW_CONN_FSM_UK"])
    assert connection["host"] == fake_field_service.base_url
    assert "AIRFLOW_CONN_FSM_DEFAULT" not in os.environ


def test_its_connection_has_a_ledger_in_the_folder_of_the_test(fake_field_service, tmp_path):
    connection = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
    ledger = json.loads(os.environ["AIRFLOW_CONN_FSM_FAKE_LEDGER"])

    assert connection["extra"] == {"state_conn_id": "fsm_fake_ledger"}
    assert ledger == {"conn_type": "sqlite", "host": str(tmp_path / "fsm_ledger.db")}


def test_a_fault_that_was_never_used_is_a_warning_that_names_it(run_pytest):
    test = """
from urllib.request import urlopen

import pytest

from fsm_provider.testing import faults

def test_it(fake_field_service):
    fake_field_service.fail("POST", "/properties/*/jobs", faults.Status(503))
    fake_field_service.fail("GET", "/forms", faults.Status(204))
    assert urlopen(f"{fake_field_service.base_url}/forms").status == 204
"""

    code, output = run_pytest(test=test)

    assert code == 0, output
    warned = [line for line in output.splitlines() if "used: <" in line]
    assert len(warned) == 1, output
    assert "<POST /properties/*/jobs: Status(status=503" in warned[0]
    assert "0 hits in 0 calls" in warned[0]


def test_beside_pytest_it_loads_no_module_but_its_own_and_the_standard_library_s():
    """Whoever has the package installed pays for this in each run of pytest."""
    program = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import fsm_provider.testing.pytest_plugin\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = result.stdout.split()
    assert [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names] == [
        "fsm_provider",
        "fsm_provider.testing",
        "fsm_provider.testing.pytest_plugin",
    ]
    assert len(loaded) <= 8


def test_without_a_folder_of_dags_the_environment_is_left_alone(run_pytest, monkeypatch):
    for name in list(os.environ):
        if name.startswith("AIRFLOW"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AIRFLOW_HOME", "/home/of/the/project")
    test = """
import os

def test_it():
    (airflow,) = [variable for variable in os.environ.items() if variable[0].startswith("AIRFLOW")]
    assert airflow == ("AIRFLOW_HOME", "/home/of/the/project")

def test_dags(fsm_dags):
    pass
"""

    code, output = run_pytest(test=test)

    assert "fsm_dags_folder is not set: name the folder of your DAG files" in output
    assert "1 passed, 1 error" in output, output
    assert code == 1


def test_a_folder_that_is_not_there_is_named(run_pytest):
    code, output = run_pytest(settings="fsm_dags_folder = dag")

    assert "fsm_dags_folder: there is no folder" in output
    assert code == 4


def test_with_one_airflow_has_a_home_of_its_own_that_is_removed(run_pytest, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONFIG", "/home/of/the/user/airflow.cfg")
    for name in ("SQL_ALCHEMY_CONN", "SQL_ALCHEMY_CONN_ASYNC"):
        monkeypatch.setenv(f"AIRFLOW__DATABASE__{name}", "postgresql://of-the-user/airflow")
    test = """
import os

def test_it():
    found = {name: value for name, value in os.environ.items() if name.startswith("AIRFLOW")}
    print("home", found["AIRFLOW_HOME"])
    assert "AIRFLOW_CONFIG" not in found
    databases = [value for name, value in found.items() if "SQL_ALCHEMY_CONN" in name]
    assert sorted(url.partition(":")[0] for url in databases) == ["sqlite", "sqlite+aiosqlite"]
    assert all(found["AIRFLOW_HOME"] in url for url in databases)
"""

    code, output = run_pytest("-s", settings="fsm_dags_folder = .", test=test)

    assert code == 0, output
    [line] = [line for line in output.splitlines() if line.startswith("home")]
    home = line.split()[1]
    assert home != os.environ["AIRFLOW_HOME"]
    assert not Path(home).exists()
