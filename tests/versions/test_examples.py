"""The examples by ``dag.test()`` on the fake service, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsm_provider.testing import FakeFieldService, FormPdf
from tests.processes import inherited_environment
from tests.smtp import Mailbox, mail_server
from tests.system.examples import EXAMPLES
from tests.system.ledger import connections_with_ledger
from tests.system.local_airflow import create_database
from tests.versions.examples import CASES

RUN = """
import importlib, json, sys
module, dag_id, conf = sys.argv[1:]
dag = getattr(importlib.import_module(module), dag_id)()
print("ended:", dag.test(run_conf=json.loads(conf)).state)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An Airflow home with a database, whose DAGs are the examples."""
    home = tmp_path_factory.mktemp("home")
    made = inherited_environment() | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
        "PYTHONPATH": str(EXAMPLES),
    }
    create_database(made)
    # A DAG that is triggered has to be in the database.
    store_dags = [sys.executable, "-m", "airflow", "dags", "reserialize"]
    subprocess.run(store_dags, env=made, check=True, capture_output=True, timeout=300)
    return made


@pytest.fixture(scope="module")
def mailbox() -> Iterator[Mailbox]:
    with mail_server() as running:
        yield running


@pytest.mark.parametrize(("module", "dag_id"), CASES, ids=[dag_id for _, dag_id in CASES])
def test_an_example_succeeds(
    environment: dict[str, str],
    service: FakeFieldService,
    mailbox: Mailbox,
    tmp_path: Path,
    module: str,
    dag_id: str,
) -> None:
    service.add_form(pdf=FormPdf(answers={"Is the appliance safe to use?": "Unsafe"}))
    service.add_form(form_name="Warning Notice")
    conf = json.dumps(CASES[module, dag_id]).replace("{folder}", str(tmp_path))
    home = Path(environment["AIRFLOW_HOME"])
    connections = connections_with_ledger(service, home)

    run = subprocess.run(
        [sys.executable, "-c", RUN, module, dag_id, conf],
        env={**environment, **mailbox.env, **connections},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )

    _, _, last_line = run.stdout.strip().rpartition("\n")
    assert last_line in ("ended: success", "ended: DagRunState.SUCCESS"), run.stdout + run.stderr
