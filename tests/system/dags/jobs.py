"""Jobs of a task that is asked to wait."""

from datetime import timedelta

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.operators.jobs import FsmCreateJobsOperator
from fsm_provider.retry_policy import FsmRetryPolicy

RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=1)}


@task
def job_requests():
    return [{"property_id": one, "job": {"customerReference": f"LATER-{one}"}} for one in range(41, 45)]


@dag(schedule=None, default_args={**RETRIES, "retry_policy": FsmRetryPolicy()})
def asked_to_wait():
    FsmCreateJobsOperator(
        task_id="create",
        fsm_conn_id="fsm_unrepeated",
        jobs=job_requests(),
        max_concurrency=1,
    )


asked_to_wait()
