"""The service's Retry-After as a task's retry delay."""

from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.api import (
    FsmConnectionError,
    FsmNotFoundError,
    FsmRateLimitedError,
    FsmServerError,
    FsmUncertainWriteError,
)
from tests.capabilities import RETRY_POLICIES

RETRY_POLICIES.require()

from airflow.providers.common.compat.sdk import RetryAction  # noqa: E402

from fsm_provider.retry_policy import FsmRetryPolicy  # noqa: E402

ASKS_TO_WAIT = FsmRateLimitedError(429, "GET", "/forms", retry_after=300.0)
UNCERTAIN = FsmUncertainWriteError("POST", "/x", "no response", "2026-01-01T00:00:00+00:00", {})


def wrapped(cause):
    try:
        raise AirflowException("3 jobs: 1 created, 2 not created") from cause
    except AirflowException as error:
        return error


@pytest.mark.parametrize(
    ("error", "action", "delay"),
    [
        (ASKS_TO_WAIT, RetryAction.RETRY, timedelta(minutes=5)),
        (wrapped(ASKS_TO_WAIT), RetryAction.RETRY, timedelta(minutes=5)),
        (FsmServerError(503, "GET", "/forms", retry_after=1e9), RetryAction.RETRY, timedelta(hours=6)),
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


def test_max_delay_caps_the_delay():
    policy = FsmRetryPolicy.deserialize(FsmRetryPolicy(max_delay=timedelta(seconds=60)).serialize())

    assert policy.evaluate(ASKS_TO_WAIT, 1, 2).retry_delay == timedelta(seconds=60)
