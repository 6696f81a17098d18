"""Two DAGs that define one asset with different arguments: Airflow replaces one's watcher by the other's.

It does so each time it reads their files, every 5 s here: a watcher has some seconds before it is
cancelled, and Airflow silently drops an event of one that was just replaced.
"""

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest

from fsm_provider.testing import FakeFieldService
from tests.system.airflow_api import wait_until
from tests.system.form_events import times_emitted, until_emitted
from tests.system.local_airflow import LocalAirflow

FORM_NAME = "Disputed Record"
DISPUTES = {
    "interval": ("poll_interval=1", "poll_interval=2"),
    "filter": ("poll_interval=1", f"poll_interval=1, form_names=['{FORM_NAME}', 'Another']"),
}
DAG = """\
    from airflow.providers.common.compat.sdk import dag, task
    from fsm_provider.assets.forms import completed_forms, forms_from_events

    ASSET = completed_forms("disputed_{dispute}", fsm_conn_id="fsm_watched", {arguments})

    @dag(dag_id="{dag_id}", schedule=ASSET, catchup=False, max_active_runs=16)
    def disputed():
        @task
        def read(*, triggering_asset_events):
            return forms_from_events(triggering_asset_events)

        read()

    disputed()
"""


@pytest.fixture(params=DISPUTES)
def disputed(
    request: pytest.FixtureRequest,
    airflow: LocalAirflow,
    dags_folder: Path,
    watched_service: FakeFieldService,
) -> Iterator[str]:
    """A DAG whose asset another DAG defines differently; both are unpaused."""
    dispute = request.param
    dag_ids = [f"disputed_{dispute}_{number}" for number in (1, 2)]
    for dag_id, arguments in zip(dag_ids, DISPUTES[dispute], strict=True):
        text = dedent(DAG).format(dispute=dispute, arguments=arguments, dag_id=dag_id)
        (dags_folder / f"{dag_id}.py").write_text(text)
        if dag_id == dag_ids[0]:
            airflow.wait_for_dag(dag_id)
            wait_until(lambda: has(airflow, dispute, "fsm_forms/configuration"), f"{dag_id} is watched")
    for dag_id in dag_ids:
        airflow.wait_for_dag(dag_id)
    # What is there at the first poll is history.
    wait_until(
        lambda: has(airflow, dispute, "%watermark"),
        f"disputed_{dispute} has been polled for the first time",
    )
    yield dag_ids[0]
    for dag_id in dag_ids:
        airflow.pause(dag_id, True)
        (dags_folder / f"{dag_id}.py").unlink()


def has(airflow: LocalAirflow, dispute: str, key: str) -> bool:
    query = (
        """SELECT 1 FROM asset_state_store JOIN asset ON asset.id = asset_id WHERE name = ? AND key LIKE ?"""
    )
    with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=10)) as database:
        return bool(database.execute(query, (f"disputed_{dispute}", key)).fetchall())


def test_no_form_is_lost(airflow: LocalAirflow, watched_service: FakeFieldService, disputed: str) -> None:
    forms = []
    for _ in range(16):
        forms.append(watched_service.add_form(form_name=FORM_NAME)["id"])
        time.sleep(1)

    until_emitted(airflow, forms, disputed)

    times = Counter(times_emitted(airflow, forms, disputed).values())
    print(f"{disputed}: forms by how often they were emitted: {times}")
    assert set(times) == {1}
