"""Jobs created in one task, with each ledger; a run's conf says how many, and how many at once."""

import time

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.operators.jobs import FsmCreateJobsOperator
from tests.benchmarks import pages

CONNECTIONS = {
    "airflow": "fsm_bench",
    "sqlite": "fsm_bench_sqlite",
    "postgresql": "fsm_bench_postgresql",
}


@task
def jobs(**context):
    count = context["dag_run"].conf["count"]
    return [job_request(property_id) for property_id in range(count)]


def job_request(property_id):
    return {
        "property_id": property_id,
        "job": pages.job_payload(property_id),
    }


def start_clock(context):
    context["started"] = time.perf_counter()


def check_and_push_seconds(context, result):
    seconds = time.perf_counter() - context["started"]
    count = context["dag_run"].conf["count"]
    created = [outcome["jobID"] for outcome in result]
    assert created == [pages.job_id(property_id) for property_id in range(count)]
    context["ti"].xcom_push(key="seconds", value=seconds)


for dag_id, fsm_conn_id in CONNECTIONS.items():

    @dag(dag_id=dag_id, schedule=None)
    def create_jobs(fsm_conn_id=fsm_conn_id):
        FsmCreateJobsOperator(
            task_id="create",
            fsm_conn_id=fsm_conn_id,
            jobs=jobs(),
            max_concurrency="{{ dag_run.conf['at_once'] }}",
            pre_execute=start_clock,
            post_execute=check_and_push_seconds,
        )

    create_jobs()
