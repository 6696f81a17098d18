"""The DAGs of ``dags/kills.py`` as they are with the http provider, which is not in .venv."""

import json
import os
import signal
import time
from datetime import timedelta

from airflow.providers.common.compat.sdk import dag, task
from airflow.providers.http.hooks.http import HttpHook
from airflow.providers.http.operators.http import HttpOperator

HEADERS = {"X-API-VERSION": "2.0", "Content-Type": "application/json"}


def die_at(point, context):
    is_first_attempt = context["ti"].try_number == 1
    if is_first_attempt and context["dag_run"].conf["point"] == point:
        os.kill(os.getpid(), signal.SIGKILL)


def before_the_post(context):
    die_at("before the POST", context)


def job_for(response, **context):
    die_at("answered, not recorded", context)
    return response.json()


def afterwards(context, result=None):
    die_at("recorded", context)


settings = {
    "schedule": None,
    "max_active_runs": 50,
    "default_args": {"retries": 2, "retry_delay": timedelta(seconds=1)},
}


@dag(**settings)
def control_one():
    HttpOperator(
        task_id="create",
        http_conn_id="fsm_http",
        method="POST",
        endpoint="properties/{{ dag_run.conf['number'] * 1000 }}/jobs",
        headers=HEADERS | {"Authorization": "Bearer {{ conn.fsm_http.password }}"},
        data='{"customerReference": "PO-{{ dag_run.conf["number"] }}-0"}',
        pre_execute=before_the_post,
        response_filter=job_for,
        post_execute=afterwards,
    )


@dag(**settings)
def control_bulk():
    @task
    def create(dag_run=None, ti=None):
        number = dag_run.conf["number"]
        hook = HttpHook(method="POST", http_conn_id="fsm_http")
        token = hook.get_connection("fsm_http").password
        headers = HEADERS | {"Authorization": f"Bearer {token}"}
        outcomes = []
        for index in range(dag_run.conf["jobs"]):
            reference = f"PO-{number}-{index}"
            response = hook.run(
                f"properties/{number * 1000 + index}/jobs",
                data=json.dumps({"customerReference": reference}),
                headers=headers,
            )
            job_id = response.json()["id"]
            outcomes.append({"customerReference": reference, "outcome": "created", "jobID": job_id})
        worker = os.getppid()
        while ti.try_number == 1 and os.getppid() == worker:
            time.sleep(0.05)
        return outcomes

    create()


control_one()
control_bulk()
