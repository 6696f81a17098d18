"""The examples by ``dag.test()`` on the fake service, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsm_provider.testing import FakeFieldService
from tests.processes import inherited_environment
from tests.smtp import Mailbox, mail_server
from tests.system.ledger import connections_with_ledger
from tests.system.local_airflow import create_database

EXAMPLES = Path(__file__).parents[2] / "example_dags"
RUN = """
import importlib, json, sys
module, dag_id, conf = sys.argv[1:]
dag = getattr(importlib.import_module(module), dag_id)()
print("ended:", dag.test(run_conf=json.loads(conf)).state)
"""
CASES = {
    # first_form waits for a form that comes after it has begun.
    ("quickstart", "first_job"): {},
    ("work_order_roundtrip", "work_order_roundtrip"): {},
    ("planned_maintenance_jobs", "planned_maintenance_jobs"): {
        "due_list": str(EXAMPLES / "data" / "planned_maintenance.csv"),
        "due_on": "2026-01-06",
    },
    ("compliance_gap_report", "compliance_gap_report"): {
        "portfolio": str(EXAMPLES / "data" / "portfolio.csv"),
        "reports": "{folder}/reports",
    },
    ("asset_field_quality", "asset_field_quality"): {"folder": "{folder}", "max_similar_names": 99},
    ("certificate_by_mail", "certificate_by_mail"): {"records": "{folder}"},
    ("forms_since_watermark", "forms_since_watermark"): {},
    ("forms_to_warehouse", "forms_to_warehouse"): {
        "folder": "{folder}/forms",
        "warehouse": "{folder}/forms.duckdb",
    },
    ("gas_safety_pdf_delivery", "gas_safety_pdf_delivery"): {"records": "{folder}"},
    ("invoice_on_signoff", "invoice_on_signoff"): {
        "due_list": str(EXAMPLES / "data" / "planned_maintenance.csv"),
        "invoices": "{folder}/invoices",
    },
    ("remedial_from_warning_notice", "remedial_from_warning_notice"): {},
}
STARTED_BY_FORMS = ["gas_safety_forms", "forms_beside_webhooks"]
"""Run by test_form_runs.py."""
NOT_BY_DAG_TEST = {
    "webhook_bootstrap": "deliveries to an API server start it",
}


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
    for name in ("Gas Safety Record", "Warning Notice"):
        service.add_form(form_name=name)
    conf = json.dumps(CASES[module, dag_id]).replace("{folder}", str(tmp_path))

    ended = subprocess.run(
        [sys.executable, "-c", RUN, module, dag_id, conf],
        env={
            **environment,
            **mailbox.env,
            **connections_with_ledger(service, Path(environment["AIRFLOW_HOME"])),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )

    last = ended.stdout.strip().rpartition("\n")[2]
    assert last in ("ended: success", "ended: DagRunState.SUCCESS"), ended.stdout + ended.stderr
