"""The form sensor in ``dag.test()``, which loses what a deferral passes on (apache/airflow #69942)."""

import json
import os
import subprocess
import sys

from tests.capabilities import TASK_SDK

SCRIPT = """
import json, os
from datetime import UTC, datetime

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.sdk import dag, task_group
from airflow.utils.db import initdb

from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.testing import Engineer, FakeFieldService

initdb()
MODES = {"poke": {}, "reschedule": {"mode": "reschedule"}, "deferred": {"deferrable": True}}


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))
def sensors():
    @task_group
    def work(property_id):
        create = FsmCreateJobOperator(task_id="create", property_id=property_id, job={"notes": "as usual"})
        for mode, arguments in MODES.items():
            FsmFormSensor(
                task_id=mode, job=create.output, poke_interval=1, timeout=300, xcom="full", **arguments
            )

    work.expand(property_id=[7, 8])


made = sensors()
if __name__ == "__main__":
    with FakeFieldService(engineer=Engineer(after=3.0)) as service:
        connection = service.connection()
        if not AIRFLOW_V_3_3_PLUS:
            connection["extra"]["state_conn_id"] = "ledger"
        os.environ["AIRFLOW_CONN_FSM_DEFAULT"] = json.dumps(connection)
        run = made.test()
        tasks = {(ti.task_id, ti.map_index): ti for ti in run.get_task_instances()}
        for map_index, form in enumerate(sorted(service.forms, key=lambda form: int(form["propertyID"]))):
            for mode in MODES:
                (found,) = tasks[f"work.{mode}", map_index].xcom_pull(
                    task_ids=f"work.{mode}", map_indexes=map_index
                )
                assert found["id"] == form["id"] and found["formPDFURL"], (mode, map_index, found)
        print("ends as", run.state)
"""


@TASK_SDK.needed
def test_each_mode_waits_for_the_forms_of_its_job_in_a_mapped_task_group(tmp_path):
    (tmp_path / "dags").mkdir()
    script = tmp_path / "dags" / "sensors.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW_CONN_LEDGER": json.dumps({"conn_type": "sqlite", "host": f"{tmp_path}/ledger.db"}),
        "AIRFLOW__CORE__DAGS_FOLDER": str(script.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    }

    for _ in range(6):
        command = [sys.executable, script]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if "is already attached to session" not in ended.stdout + ended.stderr:
            break  # at times dag.test() itself adds a deferred task to a second session

    assert "ends as success" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-3000:]
