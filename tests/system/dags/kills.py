"""Tasks that create jobs and are killed in their first attempt; Airflow retries each twice."""

import os
import signal
import time
from datetime import timedelta

from airflow.providers.common.compat.sdk import dag

from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.state.variable_store import state_store_for

CALLS_OF_SET = {
    "before the POST": ("after", 1),
    "answered, not recorded": ("before", 2),
    "recorded": ("after", 2),
}
"""Around which call of the store's ``set`` the task dies: the first is the intent, the second the job."""


class DeadlyStore:
    """The store of a task's state, in one of whose ``set`` the task is killed."""

    def __init__(self, store, dies_at, victim):
        self._store, self._dies_at, self._victim = store, dies_at, victim
        self._sets = 0

    def get(self, key, default=None):
        return self._store.get(key, default)

    def set(self, key, value, *, retention=None):
        self._sets += 1
        self._die_if("before")
        self._store.set(key, value, retention=retention)
        self._die_if("after")

    def _die_if(self, when):
        if (when, self._sets) == self._dies_at:
            for pid in {"task": [os.getpid()], "both": [os.getppid(), os.getpid()]}[self._victim]:
                os.kill(pid, signal.SIGKILL)


def arm(context):
    conf = context["dag_run"].conf
    if context["ti"].try_number == 1 and (dies_at := CALLS_OF_SET.get(conf["point"])):
        context["task_state_store"] = DeadlyStore(state_store_for(context), dies_at, conf["victim"])


def wait_to_be_killed(context, result=None):
    """A kill that comes late still finds the first attempt, and not another task of the same worker."""
    worker = os.getppid()
    while context["dag_run"].conf["killed"] and context["ti"].try_number == 1 and os.getppid() == worker:
        time.sleep(0.05)


def job_requests(number, jobs):
    return [
        {"property_id": number * 1000 + index, "job": {"customerReference": f"PO-{number}-{index}"}}
        for index in range(jobs)
    ]


settings = {
    "schedule": None,
    "max_active_runs": 50,
    "default_args": {"retries": 2, "retry_delay": timedelta(seconds=1)},
}


@dag(**settings)
def kills_one():
    FsmCreateJobOperator(
        task_id="create",
        property_id="{{ dag_run.conf['number'] * 1000 }}",
        job={"customerReference": "PO-{{ dag_run.conf['number'] }}-0"},
        if_uncertain="{{ dag_run.conf.get('if_uncertain', 'fail') }}",
        if_already_done="{{ dag_run.conf.get('if_already_done', 'reuse') }}",
        pre_execute=arm,
    )


@dag(**settings, user_defined_macros={"job_requests": job_requests})
def kills_bulk():
    FsmCreateJobsOperator(
        task_id="create",
        jobs="{{ job_requests(dag_run.conf['number'], dag_run.conf['jobs']) | tojson }}",
        max_concurrency="{{ dag_run.conf['concurrency'] }}",
        post_execute=wait_to_be_killed,
    )


kills_one()
kills_bulk()
