from datetime import datetime, timedelta

from airflow.providers.common.compat.sdk import dag

from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.sensors.forms import FsmFormSensor


@dag(schedule=None, start_date=datetime(2026, 1, 1))
def work_order():
    create_job = FsmCreateJobOperator(
        task_id="create_job",
        property_id=7,
        job={"customerReference": "PO-4711"},
    )
    wait_for_form = FsmFormSensor(
        task_id="wait_for_form",
        job_id="{{ ti.xcom_pull(task_ids='create_job')['id'] }}",
        form_names="Gas Safety Record",
        deferrable=True,
        poke_interval=1,
        timeout=timedelta(seconds=10),
    )
    create_job >> wait_for_form


work_order()
