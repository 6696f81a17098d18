"""DAGs that start with completed forms, and sensors that wait for theirs, many at once."""

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import Variable, dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.sensors.forms import FsmFormSensor

CONN_ID = "fsm_watched"
WATCHED_NAME = "Watched Record"
WATCHED_PROPERTY = 77_001
LEAVE = "Leave to go on"
POKE_INTERVAL = 2
WATERMARK = "held_records_watermark"
LOOK_BACK = timedelta(minutes=1)
LATE_BY = timedelta(days=3)
WAITS = {"source": "waits"}
"""By which the service tells the listings of the sensors from those of the watcher."""

watched = completed_forms(
    "watched_records",
    fsm_conn_id=CONN_ID,
    poll_interval=1,
    form_names=WATCHED_NAME,
    start_from=os.environ.get("FSM_WATCHED_SINCE", "now"),
    late_by=LATE_BY,
)

of_property = completed_forms(
    "property_records", fsm_conn_id=CONN_ID, poll_interval=1, property_id=WATCHED_PROPERTY
)


@dag(schedule=watched, catchup=False, max_active_runs=16)
def watched_records():
    @task
    def read(*, triggering_asset_events):
        return forms_from_events(triggering_asset_events)

    read()


@dag(schedule=of_property, catchup=False, max_active_runs=16)
def property_records():
    @task
    def read(*, triggering_asset_events):
        return forms_from_events(triggering_asset_events)

    read()


@dag(schedule=watched, catchup=False, max_active_runs=1, is_paused_upon_creation=True)
def held_records():
    """One run at a time, held until a form releases it: forms from the events, and from the service."""

    @task
    def read(*, triggering_asset_events):
        return forms_from_events(triggering_asset_events)

    @task
    def read_since_watermark():
        start = datetime.now(UTC) - LOOK_BACK
        since = Variable.get(WATERMARK, default=start.isoformat())
        forms = FsmHook(CONN_ID).list_forms(updated_since=since)
        ids = [form.id for form in forms if form.form_name == WATCHED_NAME]
        return {"forms": ids, "next": start.isoformat()}

    @task
    def commit(seen):
        Variable.set(WATERMARK, seen["next"])

    hold = FsmFormSensor(
        task_id="hold", fsm_conn_id=CONN_ID, form_names=LEAVE, mode="poke", poke_interval=1, timeout=600
    )
    seen = read_since_watermark()
    [read(), seen] >> hold >> commit(seen)


@dag(schedule=None, params={"first_job_id": 0, "jobs": 1}, max_active_tasks=300)
def many_waits():
    @task
    def job_ids(*, params):
        return [params["first_job_id"] + number for number in range(params["jobs"])]

    FsmFormSensor.partial(
        task_id="wait",
        fsm_conn_id=CONN_ID,
        query_params=WAITS,
        poke_interval=POKE_INTERVAL,
        deferrable=True,
        timeout=1800,
    ).expand(job_id=job_ids())


watched_records()
property_records()
held_records()
many_waits()
