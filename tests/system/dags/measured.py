"""Jobs that the service refuses, loses or takes later, and a sensor that times out."""

from datetime import timedelta

from airflow.providers.common.compat.sdk import dag

from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.sensors.forms import FsmFormSensor

CONN_ID = "fsm_measured"
PROPERTIES = {
    "created": 921,
    "later": 922,
    "refused": 923,
    "uncertain": 924,
}


def job_request(name):
    return {
        "property_id": PROPERTIES[name],
        "job": {"customerReference": f"MEASURED-{name}"},
    }


@dag(schedule=None)
def measured():
    FsmCreateJobsOperator(
        task_id="create",
        fsm_conn_id=CONN_ID,
        jobs=[job_request(name) for name in PROPERTIES],
        max_concurrency=1,
        fail_on="none",
    )
    FsmCreateJobOperator(
        task_id="create_one",
        fsm_conn_id=CONN_ID,
        property_id=925,
        job={"customerReference": "MEASURED-one"},
    )
    FsmFormSensor(
        task_id="wait",
        fsm_conn_id=CONN_ID,
        job_id=921921,
        deferrable=True,
        poke_interval=1,
        timeout=timedelta(seconds=25),
        soft_fail=True,
    )


measured()
