"""What an upgrade finds under way: a task in retry, a sensor that waits, a watcher, a key."""

from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.sensors.forms import FsmFormSensor

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
FORMS = completed_forms("upgraded_forms", poll_interval=1)


@dag(schedule=None, start_date=BEGIN)
def in_retry():
    """The service refuses one of two jobs until it is upgraded."""
    jobs = [
        {"property_id": 1, "job": {"customerReference": "UP-1"}},
        {"property_id": 2, "job": {"customerReference": "UP-2"}},
    ]
    FsmCreateJobsOperator(
        task_id="create_jobs", jobs=jobs, retries=100, retry_delay=timedelta(seconds=10)
    )


@dag(schedule=None, start_date=BEGIN)
def waiting():
    FsmFormSensor(
        task_id="wait", job_id=77, since=BEGIN, deferrable=True, poke_interval=1, timeout=3600
    )


@dag(schedule=None, start_date=BEGIN)
def by_key():
    FsmCreateJobOperator(
        task_id="create_job",
        property_id=3,
        key="UP-3",
        once_per="key",
        job={"customerReference": "UP-3"},
    )


@dag(schedule=[FORMS], start_date=BEGIN)
def watching():
    @task
    def form_ids(triggering_asset_events=None):
        return [form["id"] for form in forms_from_events(triggering_asset_events or {})]

    form_ids()


in_retry()
waiting()
by_key()
watching()
