"""Attempts to register webhooks, by tasks on Airflow's own SDK, on ``tests.unit.supervisor``."""

import json
from contextlib import contextmanager
from functools import partial

import pytest

from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.testing import faults
from tests.unit.state_store import MemoryStateStore, context_for

TARGET = "https://hooks.example.com/fsm"
BOTH = ["jobs.created", "jobs.closed"]
VARIABLE = "fsm_webhook_secret_fsm_default_jobs_"
"""How the names of registrations begin."""
UNCERTAIN = "may or may not have taken effect"
RECEIVER = {
    "base_url": "https://airflow.example.com",
    "endpoints": {"fsm_default/jobs": {"signature": "standard-webhooks"}},
}


def operator(**options):
    given = {"object": "jobs", "event_types": "jobs.created", "target_url": TARGET}
    return FsmRegisterWebhookOperator(task_id="register", **{**given, **options})


def register(context, **options):
    return operator(**options).execute(context)


register_for_receiver = partial(register, target_url=None)


def run(run_id, dag_id="dag", **more):
    """Make the context of an attempt in a run, whose task state store nobody else has."""
    context = context_for(MemoryStateStore(), run_id=run_id, **more)
    context["ti"].dag_id = dag_id
    return context


def ids(registered):
    return [registration["id"] for registration in registered]


def records(variables):
    """What is stored of each registration."""
    return [json.loads(text) for name, text in variables.items() if name.startswith(VARIABLE)]


def tokens(variables):
    return [record["token"] for record in records(variables)]


class Echo:
    """Handles a request, and responds with an error that quotes the path token."""

    def __init__(self, status):
        self.status = status

    async def play(self, exchange):
        await exchange.handle()
        url = exchange.request.query_params["targetURL"]
        text = f"no such host: {url}, at {url.rpartition('/')[2]}"
        await exchange.respond(faults.Response(self.status, text.encode()))


class Killed(BaseException):
    """A kill: nobody catches it."""


@contextmanager
def killed_after(steps, supervisor, owner, name):
    """Let so many messages to the supervisor and calls of a method pass, then kill the task."""
    passed, method = [], getattr(owner, name)

    def pass_on(step):
        if type(step).__name__ == "MaskSecret":  # as many as the connections have values
            return
        if len(passed) == steps:
            raise Killed
        passed.append(step)

    def pass_on_and_call(*given, **options):
        pass_on(name)
        return method(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "before", pass_on)
        patch.setattr(owner, name, pass_on_and_call)
        yield
