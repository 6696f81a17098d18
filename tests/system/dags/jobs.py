"""Jobs created in mapped tasks and in one bulk task, each then waited for by a deferred sensor."""

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
def ids(outcomes):
    return [outcome["jobID"] for outcome in outcomes]


@task
def id_for(job):
    return job["id"]


@dag(schedule=None, default_args=RETRIES)
def mapped_jobs():
    create = FsmCreateJobOperator.partial(task_id="create").expand_kwargs(job_requests("MAPPED", [11, 12]))
    FsmFormSensor.partial(task_id="wait", **WAIT).expand(job_id=id_for.expand(job=create.output))


@dag(schedule=None, default_args=RETRIES)
def bulk_jobs():
    create = FsmCreateJobsOperator(task_id="create", jobs=job_requests("BULK", [21, 22]))
    FsmFormSensor.partial(task_id="wait", **WAIT).expand(job_id=ids(create.output))


@dag(schedule=None, default_args=RETRIES)
def bad_mapped_job():
    FsmCreateJobOperator.partial(task_id="create", property_id=31).expand(job=[{"quotedAmount": "1,5"}])


@dag(schedule=None, default_args={**RETRIES, "retry_policy": FsmRetryPolicy()})
def asked_to_wait():
    FsmCreateJobsOperator(
        task_id="create",
        fsm_conn_id="fsm_unrepeated",
        jobs=job_requests("LATER", range(41, 45)),
        max_concurrency=1,
    )


mapped_jobs()
bulk_jobs()
bad_mapped_job()
asked_to_wait()
