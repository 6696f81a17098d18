from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import uuid4

import pytest

from fsm_provider.api.retry import reserve_time


@pytest.fixture
def reserve():
    """Reserves the times of a service that no other test knows."""
    return partial(reserve_time, f"https://{uuid4()}.example.com")


def test_moments_are_evenly_spaced(clock, reserve):
    assert [reserve(4) for _ in range(4)] == [0, 0.25, 0.5, 0.75]


def test_time_that_passes_is_not_waited_again(clock, reserve):
    reserve(2)
    clock.now += 0.25

    assert reserve(2) == 0.25


def test_idle_time_is_not_saved_up_for_a_burst(clock, reserve):
    reserve(2)
    clock.now += 60

    assert [reserve(2) for _ in range(3)] == [0, 0.5, 1]


def test_no_time_is_given_to_two_threads(reserve):
    started = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: reserve(10), range(400)))

    assert reserve(10) >= 40 - (time.monotonic() - started)


def test_the_times_of_one_service_are_not_those_of_another(clock, reserve):
    reserve(1)

    assert reserve_time(f"https://{uuid4()}.example.com", 1) == 0
