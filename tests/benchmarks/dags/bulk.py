"""Jobs created in one task; a run's conf says how many, and how many at once."""

import time

from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.operators.jobs import FsmCreateJobsOperator
from tests.benchmarks import pages
from tests.unit.state_store import MemoryStateStore

CONNECTIONS = {
    "no_ledger": "fsm_bench",
    "airflow": "fsm_bench",
    "sqlite": "fsm_bench_sqlite",
    "postgresql": "fsm_bench_postgresql",
}


@task
def jobs(**context):
    conf = context["dag_run"].conf
    return [
        {"property_id": property_id, "job": pages.job_payload(property_id)}
        for property_id in range(conf["first"], conf["first"] + conf["count"])
    ]


def start_clock(context):
    if context["dag"].dag_id == "no_ledger":
        context["task_state_store"] = MemoryStateStore()
    context["started"] = time.perf_counter()


def check_and_push_seconds(context, result):
    seconds = time.perf_counter() - context["started"]
    conf = context["dag_run"].conf
    property_ids = range(conf["first"], conf["first"] + conf["count"])
    assert [one["jobID"] for one in result] == [pages.job_id(property_id) for property_id in property_ids]
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
