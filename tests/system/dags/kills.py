"""Tasks that create jobs and are killed in their first attempt; Airflow retries each twice."""

import os
import signal
import time
from datetime import timedelta

from airflow.providers.common.compat.sdk import dag
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import Pool

import fsm_provider.writes.runner as runner
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.writes.task_ledger import PAGE

# Two minutes by default, for which other attempts wait.
runner.MIN_LEASE = 16.0
runner.LEASE_TIMEOUTS = 0

STORES = {
    "before the POST": ("after", "sending"),
    "answered, not recorded": ("before", "done"),
    "recorded": ("after", "done"),
}
"""Whether the task dies before or after a state is stored, and which state."""


def die(victim):
    if victim == "both":
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyStore:
    """The store of a task's state, in one of whose ``set`` the task is killed."""

    def __init__(self, store, dies_at, victim):
        self._store = store
        self._dies_at = dies_at
        self._victim = victim

    def get(self, key, default=None):
        return self._store.get(key, default)

    def set(self, key, value, *, retention=None):
        states = set()
        if key.startswith(PAGE):
            states = {entry.get("state") for entry in value["entries"].values()}
        self._die_if("before", states)
        self._store.set(key, value, retention=retention)
        self._die_if("after", states)

    def _die_if(self, when, states):
        dies_when, dies_at_state = self._dies_at
        if when == dies_when and dies_at_state in states:
            die(self._victim)


def die_in_database(dies_at, victim):
    """Kill the task before it sends the COMMIT that stores this, or after it has gone through."""

    def note(connection, cursor, statement, parameters, *args):
        if not statement.startswith("UPDATE fsm_ledger "):
            return
        values = parameters.values() if isinstance(parameters, dict) else parameters
        connection.info["stored"] = None
        for state in ("sending", "done"):
            if state in values:
                connection.info["stored"] = state
                return

    def forget(connection):
        connection.info.pop("stored", None)

    def commit(connection):
        if ("before", connection.info.get("stored")) == dies_at:
            die(victim)

    def checkin(_, record):
        if ("after", record.info.pop("stored", None)) == dies_at:
            die(victim)

    event.listen(Engine, "before_cursor_execute", note)
    event.listen(Engine, "rollback", forget)
    event.listen(Engine, "commit", commit)
    event.listen(Pool, "checkin", checkin)


def arm(context):
    """Let the first attempt die where the run's conf says, if that is at something stored."""
    conf = context["dag_run"].conf
    dies_at = STORES.get(conf["point"])
    is_first_attempt = context["ti"].try_number == 1
    if dies_at is None or not is_first_attempt:
        return
    victim = conf["victim"]
    if FsmHook(conf["fsm_conn_id"]).settings.state_conn_id:
        die_in_database(dies_at, victim)
    else:
        store = context["task_state_store"]
        context["task_state_store"] = DeadlyStore(store, dies_at, victim)


def wait_to_be_killed(context, result=None):
    """Let a kill that comes late find the first attempt, not another task of the same worker."""
    is_first_attempt = context["ti"].try_number == 1
    if not is_first_attempt or not context["dag_run"].conf["killed"]:
        return
    worker = os.getppid()
    while os.getppid() == worker:
        time.sleep(0.05)


def job_requests(number, jobs, once_per, **other):
    return [job_request(number, index, once_per) for index in range(jobs)]


def job_request(number, index, once_per):
    reference = f"PO-{number}-{index}"
    request = {
        "property_id": number * 1000 + index,
        "job": {"customerReference": reference},
    }
    if once_per == "key":
        request["key"] = reference
    return request


settings = {
    "schedule": None,
    "max_active_runs": 50,
    "default_args": {
        "retries": 2,
        "retry_delay": timedelta(seconds=1),
        "fsm_conn_id": "{{ dag_run.conf['fsm_conn_id'] }}",
    },
}


@dag(**settings)
def kills_one():
    FsmCreateJobOperator(
        task_id="create",
        property_id="{{ dag_run.conf['number'] * 1000 }}",
        job={"customerReference": "PO-{{ dag_run.conf['number'] }}-0"},
        pre_execute=arm,
    )


@dag(**settings, user_defined_macros={"job_requests": job_requests})
def kills_bulk():
    FsmCreateJobsOperator(
        task_id="create",
        jobs="{{ job_requests(**dag_run.conf) | tojson }}",
        once_per="{{ dag_run.conf['once_per'] }}",
        max_concurrency="{{ dag_run.conf['concurrency'] }}",
        post_execute=wait_to_be_killed,
    )


kills_one()
kills_bulk()
