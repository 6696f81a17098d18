"""When a request is repeated, and when one may be sent at all."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import uuid4

import pytest

from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmInputError,
    FsmPaginationError,
    FsmRateLimitedError,
    FsmRegistrationError,
    FsmResponseError,
    FsmUncertainWriteError,
    error_class_for,
)
from fsm_provider.api.retry import RetryState
from fsm_provider.api.throttling import reserve_time

RETRIES = 3
UNREACHED = FsmConnectionError("refused")


def error_for(status: int, retry_after: float | None = None) -> FsmApiError:
    error_class = error_class_for(status)
    return error_class(status=status, method="GET", path="/forms", retry_after=retry_after)


def delay_after(error, retries=RETRIES, attempt=1, waited=0.0):
    """Return the delay, None if the error is raised."""
    attempts = RetryState(retries, attempt - 1, waited)
    try:
        return attempts.delay_after(error)
    except type(error):
        return None


REPEATED = [
    UNREACHED,
    FsmResponseError("cut off"),
    error_for(429),
    error_for(500),
    error_for(503),
]
NEVER_REPEATED = [
    error_for(302),
    error_for(400),
    error_for(401),
    error_for(403),
    error_for(404),
    error_for(409),
    error_for(418),
    error_for(409, retry_after=1),
    FsmInputError("bad"),
    FsmPaginationError("endless"),
    FsmRegistrationError("other events", webhook_id=1),
    FsmUncertainWriteError("POST", "/properties/7/jobs", "timeout", "2026-01-31T08:00:00Z", {}),
]


def class_and_status(error: object) -> str:
    return f"{type(error).__name__}-{getattr(error, 'status', '')}"


@pytest.mark.parametrize(
    ("attempt", "repeated"),
    [
        (1, True),
        (2, True),
        (3, True),
        (4, False),
        (5, False),
    ],
)
@pytest.mark.parametrize("error", REPEATED, ids=class_and_status)
def test_what_may_pass_is_repeated_max_retries_times(error, attempt, repeated):
    assert (delay_after(error, attempt=attempt) is not None) is repeated
    assert delay_after(error, retries=0) is None


@pytest.mark.parametrize("error", NEVER_REPEATED, ids=class_and_status)
def test_what_cannot_pass_is_raised_as_it_is(error):
    with pytest.raises(type(error)) as raised:
        RetryState(RETRIES).delay_after(error)

    assert raised.value is error


def retry_after(seconds, status=429):
    return error_for(status, retry_after=seconds)


@pytest.mark.parametrize(
    ("error", "attempt", "waited", "draw", "delay"),
    [
        # The bound doubles up to the cap, and the draw is a share of it.
        (UNREACHED, 1, 0, 1, 0.5),
        (UNREACHED, 2, 0, 1, 1),
        (UNREACHED, 3, 0, 1, 2),
        (UNREACHED, 4, 0, 1, 4),
        (UNREACHED, 5, 0, 1, 8),
        (UNREACHED, 6, 0, 1, 16),
        (UNREACHED, 7, 0, 1, 30),
        (UNREACHED, 8, 0, 1, 30),
        (UNREACHED, 3, 0, 0, 0),
        (UNREACHED, 3, 0, 0.25, 0.5),
        # A limit is waited for longer.
        (error_for(429), 1, 0, 1, 10),
        (error_for(429), 2, 0, 1, 20),
        (error_for(429), 3, 0, 1, 30),
        (error_for(503), 1, 0, 1, 0.5),
        # Retry-After is obeyed even beyond the cap, but not below the backoff.
        (retry_after(0.0, 429), 1, 0, 1, 0.5),
        (retry_after(0.4, 429), 1, 0, 1, 0.5),
        (retry_after(1.5, 429), 1, 0, 1, 1.5),
        (retry_after(119.0, 429), 1, 0, 1, 119),
        (retry_after(0.0, 503), 1, 0, 1, 0.5),
        (retry_after(0.4, 503), 1, 0, 1, 0.5),
        (retry_after(1.5, 503), 1, 0, 1, 1.5),
        (retry_after(119.0, 503), 1, 0, 1, 119),
        # No delay past the remaining budget is begun.
        (retry_after(8), 1, 0, 0, 8),
        (retry_after(8), 1, 112, 0, 8),
        (retry_after(8), 1, 112.5, 0, None),
        (UNREACHED, 3, 118.5, 1, None),
        (UNREACHED, 3, 118, 1, 2),
        (retry_after(3600), 1, 0, 1, None),
    ],
)
def test_a_delay(monkeypatch, error, attempt, waited, draw, delay):
    monkeypatch.setattr(random, "random", lambda: draw)

    assert delay_after(error, 9, attempt, waited) == delay


def test_delays_add_up_to_the_budget():
    attempts = RetryState(RETRIES)

    assert attempts.delay_after(retry_after(60)) == 60
    assert attempts.delay_after(retry_after(60)) == 60
    with pytest.raises(FsmRateLimitedError):
        attempts.delay_after(retry_after(60))


def test_a_wait_is_said_with_its_reason(caplog):
    RetryState(RETRIES).delay_after(retry_after(7, 503))

    assert "GET /forms returned HTTP 503" in caplog.text
    assert "7.0 s" in caplog.text


@pytest.fixture
def reserve():
    """Reserve the times of a service that no other test knows."""
    return partial(reserve_time, f"https://{uuid4()}.example.com")


def test_requests_are_evenly_spaced_and_idle_time_is_not_saved_up_for_a_burst(clock, reserve):
    for expected in (0, 0.25, 0.5, 0.75):
        assert reserve(4) == expected

    clock.now += 0.5
    assert reserve(4) == 0.5

    clock.now += 60
    for expected in (0, 0.25, 0.5):
        assert reserve(4) == expected


def test_no_time_is_given_to_two_threads(reserve):
    started = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: reserve(10), range(400)))

    assert reserve(10) >= 40 - (time.monotonic() - started)


def test_the_times_of_one_service_are_not_those_of_another(clock, reserve):
    reserve(1)

    assert reserve_time(f"https://{uuid4()}.example.com", 1) == 0
