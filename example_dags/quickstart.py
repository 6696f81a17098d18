"""The two DAGs of ``docs/quickstart.md``: wait for a form; create a job and wait for its form.

``first_form`` writes nothing to the service: start with it on your own service. ``first_job``
creates a job in each run, which on a real service is an engineer's visit.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.common.compat.sdk import Param, dag

from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.sensors.forms import FsmFormSensor

RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=10)}


@dag(schedule=None, default_args=RETRIES, tags=["fsm", "example"])
def first_form():
    # No form is named, so the next form of any job ends the wait.
    FsmFormSensor(
        task_id="wait_for_a_form",
        deferrable=True,
        poke_interval=30,
        timeout=timedelta(days=1),
    )


first_form()


@dag(
    schedule=None,
    default_args=RETRIES,
    tags=["fsm", "example"],
    params={"property_id": Param(7, type="integer", minimum=1, title="Property")},
)
def first_job():
    create_job = FsmCreateJobOperator(
        task_id="create_job",
        property_id="{{ params.property_id }}",
        job={"customerReference": "{{ run_id }}", "notes": "From the quickstart"},
    )
    # The sensor takes the output of create_job, so it also runs after it.
    FsmFormSensor(
        task_id="wait_for_its_form",
        job=create_job.output,
        deferrable=True,
        poke_interval=5,
        timeout=timedelta(days=14),
    )


first_job()
