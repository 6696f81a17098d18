"""DAGs that start with completed forms, and sensors that wait for theirs, many at once."""

import os

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events
from fsm_provider.sensors.forms import FsmFormSensor

CONN_ID = "fsm_watched"
WATCHED_NAME = "Watched Record"
POKE_INTERVAL = 2
WAITS = {"source": "waits"}
"""By which the service tells the listings of the sensors from those of the watcher."""

watched = completed_forms(
    "watched_records",
    fsm_conn_id=CONN_ID,
    poll_interval=1,
    form_names=WATCHED_NAME,
    start_from=os.environ.get("FSM_WATCHED_SINCE", "now"),
)


@dag(schedule=watched, catchup=False, max_active_runs=16)
def watched_records():
    @task
    def read(*, triggering_asset_events):
        return forms_from_events(triggering_asset_events)

    read()


@dag(schedule=None, params={"first_job_id": 0, "jobs": 1}, max_active_tasks=300)
def many_waits():
    @task
    def job_ids(*, params):
        first = params["first_job_id"]
        return list(range(first, first + params["jobs"]))

    FsmFormSensor.partial(
        task_id="wait",
        fsm_conn_id=CONN_ID,
        query_params=WAITS,
        poke_interval=POKE_INTERVAL,
        deferrable=True,
        timeout=3 * 3600,
    ).expand(job_id=job_ids())


watched_records()
many_waits()
