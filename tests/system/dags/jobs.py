"""Jobs of mapped tasks, each then waited for by a deferred sensor, and of one that is asked to wait."""

from datetime import timedelta

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.retry_policy import FsmRetryPolicy
from fsm_provider.sensors.forms import FsmFormSensor

WAIT = {"deferrable": True, "poke_interval": 15, "timeout": timedelta(minutes=2)}
RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=1)}


@task
def job_requests(prefix, property_ids):
    return [
        {"property_id": property_id, "job": {"customerReference": f"{prefix}-{property_id}"}}
        for property_id in property_ids
    ]


@task
def id_for(job):
    return job["id"]


@dag(schedule=None, default_args=RETRIES)
def mapped_jobs():
    create = FsmCreateJobOperator.partial(task_id="create").expand_kwargs(job_requests("MAPPED", [11, 12]))
    FsmFormSensor.partial(task_id="wait", **WAIT).expand(job_id=id_for.expand(job=create.output))


@dag(schedule=None, default_args={**RETRIES, "retry_policy": FsmRetryPolicy()})
def asked_to_wait():
    FsmCreateJobsOperator(
        task_id="create",
        fsm_conn_id="fsm_unrepeated",
        jobs=job_requests("LATER", range(41, 45)),
        max_concurrency=1,
    )


mapped_jobs()
asked_to_wait()
