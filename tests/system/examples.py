"""Copies of the example DAGs, which a test runs by hand."""

import re
from pathlib import Path

from tests.system.conftest import DAGS
from tests.system.local_airflow import LocalAirflow


def copy(airflow: LocalAirflow, folder: Path, example: str, dag_id: str, **replaced: str) -> None:
    """Copy an example, to be run by hand only, and once; it starts unpaused."""
    text = (DAGS["examples"] / f"{example}.py").read_text().replace(example, dag_id)
    text = re.sub(r'schedule="@\w+"', "schedule=None", text).replace('"retries": 2', '"retries": 0')
    text = text.replace("is_paused_upon_creation=True", "is_paused_upon_creation=False")
    for old, new in replaced.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / f"{dag_id}.py").write_text(text)
    airflow.wait_for_dag(dag_id)
