from __future__ import annotations

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
    delay = POLICY.delay_after(error, attempt=attempt, waited=0)

    assert (delay is not None) is repeated


@pytest.mark.parametrize("error", NEVER_REPEATED, ids=named)
def test_what_cannot_pass_is_never_repeated(error):
    assert POLICY.delay_after(error, attempt=1, waited=0) is None


@pytest.mark.parametrize("error", REPEATED, ids=named)
def test_no_retries_means_none(error):
    assert RetryPolicy(max_retries=0).delay_after(error, attempt=1, waited=0) is None


def test_the_bound_doubles_up_to_the_cap():
    policy = RetryPolicy(max_retries=9, base=1.0, cap=6.0)

    bounds = [policy.delay_after(UNREACHED, attempt=attempt, waited=0, draw=1) for attempt in range(1, 7)]

    assert bounds == [1, 2, 4, 6, 6, 6]


@pytest.mark.parametrize(("draw", "delay"), [(0, 0), (0.25, 1), (1, 4)])
def test_the_draw_is_a_share_of_the_bound(draw, delay):
    assert POLICY.delay_after(UNREACHED, attempt=3, waited=0, draw=draw) == delay


def test_the_jitter_is_drawn_over_the_full_range():
    delays = [POLICY.delay_after(UNREACHED, attempt=3, waited=0) for _ in range(2000)]

    assert 0 <= min(delays) < 0.2
    assert 3.8 < max(delays) <= 4
    assert 1.7 < sum(delays) / len(delays) < 2.3


@pytest.mark.parametrize(("error", "bound"), [(error_for(429), 10), (error_for(503), 0.5), (UNREACHED, 0.5)])
def test_a_limit_is_waited_for_longer_than_another_error(error, bound):
    assert RetryPolicy().delay_after(error, attempt=1, waited=0, draw=1) == bound


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("asked", "delay"), [(0.0, 1), (0.5, 1), (1.5, 1.5), (19.0, 19)])
def test_retry_after_is_obeyed_even_beyond_the_cap_but_never_below_the_backoff(status, asked, delay):
    assert POLICY.delay_after(error_for(status, retry_after=asked), attempt=1, waited=0, draw=1) == delay


@pytest.mark.parametrize(("waited", "delay"), [(0, 8), (12, 8), (12.5, None), (20, None)])
def test_a_delay_past_the_remaining_budget_is_not_begun(waited, delay):
    assert POLICY.delay_after(error_for(429, retry_after=8), attempt=1, waited=waited) == delay


def test_the_budget_holds_for_delays_of_our_own_too():
    assert POLICY.delay_after(UNREACHED, attempt=3, waited=17, draw=1) is None
    assert POLICY.delay_after(UNREACHED, attempt=3, waited=16, draw=1) == 4


def test_a_retry_after_past_the_budget_raises_at_once_and_says_how_long():
    asked = error_for(429, retry_after=3600)

    with pytest.raises(FsmRateLimitedError) as raised:
        Attempts(POLICY).delay_after(asked)

    assert raised.value is asked
    assert raised.value.retry_after == 3600


def test_delays_add_up_to_the_budget():
    attempts, asked = Attempts(POLICY), error_for(429, retry_after=10)

    assert [attempts.delay_after(asked) for _ in range(2)] == [10, 10]
    with pytest.raises(FsmRateLimitedError):
        attempts.delay_after(asked)


def test_a_wait_is_said_with_its_reason(caplog):
    Attempts(POLICY).delay_after(error_for(503, retry_after=7))

    assert "GET /forms returned HTTP 503" in caplog.text
    assert "7.0 s" in caplog.text


def test_attempts_are_counted_over_errors_of_different_kinds():
    attempts = Attempts(POLICY)
    for error in REPEATED[:3]:
        attempts.delay_after(error)

    with pytest.raises(FsmApiError) as raised:
        attempts.delay_after(REPEATED[3])

    assert raised.value is REPEATED[3]


@pytest.mark.parametrize("error", NEVER_REPEATED, ids=named)
def test_what_is_not_repeated_is_raised_as_it_is(error):
    with pytest.raises(type(error)) as raised:
        Attempts(POLICY).delay_after(error)

    assert raised.value is error
