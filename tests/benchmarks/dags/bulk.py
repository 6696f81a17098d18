"""Jobs created in one task, or in a mapped task each; a run's conf says how many, and how many at once."""

import time
from concurrent.futures import ThreadPoolExecutor

from airflow.providers.common.compat.sdk import dag, task
from airflow.providers.http.hooks.http import HttpHook
from airflow.providers.http.operators.http import HttpOperator

from fsm_provider.operators.jobs import FsmCreateJobsOperator
from tests.benchmarks import pages
from tests.unit.state_store import MemoryStateStore

CONNECTION = "fsm_bench"


def start_clock(context):
    context["started"] = time.perf_counter()


def start_clock_without_ledger(context):
    context["task_state_store"] = MemoryStateStore()
    start_clock(context)


def push_seconds(context, result):
    context["ti"].xcom_push(key="seconds", value=time.perf_counter() - context["started"])


def property_ids(conf):
    return range(conf["first"], conf["first"] + conf["count"])


def job_requests(conf):
    return [
        {"property_id": property_id, "job": pages.job_payload(property_id)}
        for property_id in property_ids(conf)
    ]


@task
def jobs(**context):
    return job_requests(context["dag_run"].conf)


def create_jobs(start, fsm_conn_id=CONNECTION):
    FsmCreateJobsOperator(
        task_id="create",
        fsm_conn_id=fsm_conn_id,
        jobs=jobs(),
        max_concurrency="{{ dag_run.conf['at_once'] }}",
        pre_execute=start,
        post_execute=push_seconds,
    )


@dag(schedule=None)
def ledger():
    create_jobs(start_clock)


@dag(schedule=None)
def ledger_sqlite():
    create_jobs(start_clock, f"{CONNECTION}_sqlite")


@dag(schedule=None)
def ledger_postgresql():
    create_jobs(start_clock, f"{CONNECTION}_postgresql")


@dag(schedule=None)
def no_ledger():
    create_jobs(start_clock_without_ledger)


@dag(schedule=None)
def http_hook():
    @task(pre_execute=start_clock, post_execute=push_seconds)
    def create(**context):
        conf = context["dag_run"].conf
        hook = HttpHook(http_conn_id="http_bench")
        path = "/properties/{property_id}/jobs"
        with ThreadPoolExecutor(conf["at_once"]) as pool:
            responses = pool.map(
                lambda request: hook.run(path.format_map(request), json=request["job"]).json()["id"],
                job_requests(conf),
            )
        assert list(responses) == [pages.job_id(property_id) for property_id in property_ids(conf)]

    create()


@dag(schedule=None)
def http_operator():
    @task
    def requests(**context):
        return [
            {"endpoint": f"/properties/{request['property_id']}/jobs", "data": request["job"]}
            for request in job_requests(context["dag_run"].conf)
        ]

    HttpOperator.partial(task_id="create", http_conn_id="http_bench").expand_kwargs(requests())


ledger()
ledger_sqlite()
ledger_postgresql()
no_ledger()
http_hook()
http_operator()
