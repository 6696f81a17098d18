"""Copies of the example DAGs, changed for a test."""

import re
import shutil
from pathlib import Path

from tests.pages import ROOT
from tests.system.local_airflow import LocalAirflow

EXAMPLES = ROOT / "example_dags"
WITH_LEDGER = {'once_per="key"': 'once_per="key", fsm_conn_id="fsm_with_ledger"'}
"""With the connection whose ledger is in a database."""


def copy_example(
    airflow: LocalAirflow,
    folder: Path,
    example: str,
    dag_id: str,
    *,
    by_hand: bool = True,
    **replaced: str,
) -> None:
    """Copy an example, under an id of its own.

    :param by_hand: whether it has no schedule, no retries and starts unpaused; if not, that stays
        as it is.
    :param replaced: what else is put for a text that is there once.
    """
    text = (EXAMPLES / f"{example}.py").read_text()
    text = text.replace(example, dag_id)
    if by_hand:
        (schedule,) = re.findall(r'schedule="@\w+"', text)
        replaced |= {
            "is_paused_upon_creation=True": "is_paused_upon_creation=False",
            schedule: "schedule=None",
            '"retries": 2': '"retries": 0',
        }
    for old, new in replaced.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    shutil.copy(EXAMPLES / "answer_reader.py", folder)
    (folder / f"{dag_id}.py").write_text(text)
    airflow.wait_for_dag(dag_id)
