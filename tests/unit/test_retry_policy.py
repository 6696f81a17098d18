"""The service's Retry-After as a task's retry delay."""

from datetime import timedelta

import pytest

from fsm_provider.api import (
    FsmConnectionError,
    FsmNotFoundError,
    FsmRateLimitedError,
    FsmServerError,
    FsmUncertainWriteError,
)
from fsm_provider.testing import faults
from tests.capabilities import RETRY_POLICIES
from tests.unit.operators.jobs import attempt_of, create, request
from tests.unit.state_store import IN_AIRFLOW

RETRY_POLICIES.require()

from airflow.providers.common.compat.sdk import RetryAction  # noqa: E402

from fsm_provider.retry_policy import FsmRetryPolicy  # noqa: E402

ASKS_TO_WAIT = FsmRateLimitedError(429, "GET", "/forms", retry_after=300.0)
UNCERTAIN = FsmUncertainWriteError("POST", "/x", "no response", "2026-01-01T00:00:00+00:00", {})


@pytest.mark.parametrize(
    ("error", "action", "delay"),
    [
        (ASKS_TO_WAIT, RetryAction.RETRY, timedelta(minutes=5)),
        (
            FsmServerError(503, "GET", "/forms", retry_after=1e9),
            RetryAction.RETRY,
            timedelta(hours=6),
        ),
        (FsmRateLimitedError(429, "GET", "/forms"), RetryAction.DEFAULT, None),
        (FsmConnectionError("not reached"), RetryAction.DEFAULT, None),
        (FsmNotFoundError(404, "GET", "/forms", retry_after=5.0), RetryAction.FAIL, None),
        (UNCERTAIN, RetryAction.FAIL, None),
        (ValueError("somebody else's"), RetryAction.DEFAULT, None),
    ],
)
def test_decisions(error, action, delay):
    decision = FsmRetryPolicy().evaluate(error, try_number=1, max_tries=2)

    assert (decision.action, decision.retry_delay) == (action, delay)


@IN_AIRFLOW
def test_many_jobs_of_which_one_is_asked_to_wait_are_retried_then(service, connect, store):
    connect(service, max_retries=0)
    service.fail("POST", "/properties/2/jobs", faults.Status(429, headers={"Retry-After": "9"}))

    _, error = attempt_of(store, create([request(1), request(2)], max_concurrency=1))

    decision = FsmRetryPolicy().evaluate(error, try_number=1, max_tries=2)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(seconds=9))


def test_max_delay_caps_the_delay():
    policy = FsmRetryPolicy.deserialize(FsmRetryPolicy(max_delay=timedelta(seconds=60)).serialize())

    assert policy.evaluate(ASKS_TO_WAIT, 1, 2).retry_delay == timedelta(seconds=60)
