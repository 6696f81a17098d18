"""Turn a client's work order into a job, and wait for the forms that close it days later.

The purchase order is the job's ``customerReference``. The sensor waits in the triggerer, so a wait
of days holds no worker slot.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import Param, dag, task

from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.sensors.forms import FsmFormSensor

FORMS = ["Gas Safety Record", "Job Sign-off"]


# [START howto_sensor_missing]
def alert_the_office(context):
    """Say which forms are missing; put your mail or chat in place of the print."""
    ti = context["ti"]
    missing = ti.xcom_pull(task_ids=ti.task_id, key="missing", map_indexes=ti.map_index)
    # Nothing is missing if the sensor failed for another reason.
    if missing:
        print(f"{ti.task_id} of {context['run_id']}: {missing['text']}")


# [END howto_sensor_missing]


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "property_id": Param(7, type="integer", minimum=1, title="Property"),
        "purchase_order": Param("PO-4711", type="string", minLength=1, title="Purchase order"),
        "notes": Param("Annual gas safety check", type="string", title="Notes for the engineer"),
        "quoted_amount": Param("120.00", type="string", title="Quoted amount"),
    },
)
def work_order_roundtrip():
    # [START howto_operator_create_job]
    create_job = FsmCreateJobOperator(
        task_id="create_job",
        property_id="{{ params.property_id }}",
        job={
            "customerReference": "{{ params.purchase_order }}",
            "notes": "{{ params.notes }}",
            "quotedAmount": "{{ params.quoted_amount }}",
            "priority": "Important",
        },
    )
    # [END howto_operator_create_job]

    # [START howto_sensor_form]
    wait_for_forms = FsmFormSensor(
        task_id="wait_for_forms",
        job=create_job.output,
        form_names=FORMS,
        deferrable=True,
        poke_interval=15,
        timeout=timedelta(days=14),
        on_failure_callback=alert_the_office,
    )
    # [END howto_sensor_form]

    @task
    def report(job: dict, forms: list[dict]) -> dict:
        """Report what was completed."""
        # If create_job was cleared, its job has only an id, times and the reference.
        completed = []
        for form in forms:
            print(f"{form['formName']} was completed at {form['createdOnDateTime']}")
            completed.append(form["formName"])
        print(f"Work order {job['customerReference']} is done: job {job['id']}")
        return {
            "purchaseOrder": job["customerReference"],
            "jobID": job["id"],
            "forms": completed,
        }

    report(create_job.output, wait_for_forms.output)


work_order_roundtrip()
