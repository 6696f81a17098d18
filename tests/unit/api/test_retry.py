from __future__ import annotations

import random

import pytest

from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmInputError,
    FsmPaginationError,
    FsmRateLimitedError,
    FsmRegistrationMismatchError,
    FsmResponseError,
    FsmUncertainWriteError,
    error_class_for,
)
from fsm_provider.api.retry import Attempts, RetryPolicy

POLICY = RetryPolicy(max_retries=3, base=1.0, cap=6.0, budget=20.0)
UNREACHED = FsmConnectionError("refused")


def error_for(status: int, retry_after: float | None = None) -> FsmApiError:
    return error_class_for(status)(status=status, method="GET", path="/forms", retry_after=retry_after)


def delay_after(error, policy=POLICY, attempt=1, waited=0.0):
    """Return the delay, None if the error is raised."""
    try:
        return Attempts(policy, attempt - 1, waited).delay_after(error)
    except type(error):
        return None


REPEATED = [UNREACHED, FsmResponseError("cut off"), error_for(429), error_for(500), error_for(503)]
NEVER_REPEATED = [
    *map(error_for, [302, 400, 401, 403, 404, 409, 418]),
    error_for(409, retry_after=1),
    FsmInputError("bad"),
    FsmPaginationError("endless"),
    FsmRegistrationMismatchError("other events", webhook_id=1),
    FsmUncertainWriteError("POST", "/properties/7/jobs", "timeout", "2026-01-31T08:00:00Z", {}),
]


def named(error: object) -> str:
    return f"{type(error).__name__}-{getattr(error, 'status', '')}"


@pytest.mark.parametrize(("attempt", "repeated"), [(1, True), (2, True), (3, True), (4, False), (5, False)])
@pytest.mark.parametrize("error", REPEATED, ids=named)
def test_what_may_pass_is_repeated_max_retries_times(error, attempt, repeated):
    assert (delay_after(error, attempt=attempt) is not None) is repeated
    assert delay_after(error, RetryPolicy(max_retries=0)) is None


@pytest.mark.parametrize("error", NEVER_REPEATED, ids=named)
def test_what_cannot_pass_is_raised_as_it_is(error):
    with pytest.raises(type(error)) as raised:
        Attempts(POLICY).delay_after(error)

    assert raised.value is error


def asks(seconds, status=429):
    return error_for(status, retry_after=seconds)


@pytest.mark.parametrize(
    ("policy", "error", "attempt", "waited", "draw", "delay"),
    [
        # The bound doubles up to the cap, and the draw is a share of it.
        *[
            (RetryPolicy(max_retries=9, base=1.0, cap=6.0), UNREACHED, attempt, 0, 1, bound)
            for attempt, bound in enumerate([1, 2, 4, 6, 6, 6], 1)
        ],
        *[(POLICY, UNREACHED, 3, 0, draw, delay) for draw, delay in ((0, 0), (0.25, 1), (1, 4))],
        # A limit is waited for longer.
        (RetryPolicy(), error_for(429), 1, 0, 1, 10),
        (RetryPolicy(), error_for(503), 1, 0, 1, 0.5),
        (RetryPolicy(), UNREACHED, 1, 0, 1, 0.5),
        # Retry-After is obeyed even beyond the cap, but not below the backoff.
        *[
            (POLICY, asks(asked, status), 1, 0, 1, delay)
            for status in (429, 503)
            for asked, delay in ((0.0, 1), (0.5, 1), (1.5, 1.5), (19.0, 19))
        ],
        # No delay past the remaining budget is begun.
        *[(POLICY, asks(8), 1, waited, 0, delay) for waited, delay in ((0, 8), (12, 8), (12.5, None))],
        (POLICY, UNREACHED, 3, 17, 1, None),
        (POLICY, UNREACHED, 3, 16, 1, 4),
        (POLICY, asks(3600), 1, 0, 1, None),
    ],
)
def test_a_delay(monkeypatch, policy, error, attempt, waited, draw, delay):
    monkeypatch.setattr(random, "random", lambda: draw)

    assert delay_after(error, policy, attempt, waited) == delay


def test_delays_add_up_to_the_budget():
    attempts = Attempts(POLICY)

    assert [attempts.delay_after(asks(10)) for _ in range(2)] == [10, 10]
    with pytest.raises(FsmRateLimitedError):
        attempts.delay_after(asks(10))


def test_a_wait_is_said_with_its_reason(caplog):
    Attempts(POLICY).delay_after(asks(7, 503))

    assert "GET /forms returned HTTP 503" in caplog.text
    assert "7.0 s" in caplog.text
