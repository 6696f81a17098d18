from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from fsm_provider.api.retry import Throttle, throttle_for


def test_moments_are_evenly_spaced(clock):
    line = Throttle()

    assert [line.reserve(4) for _ in range(4)] == [0, 0.25, 0.5, 0.75]


def test_time_that_passes_is_not_waited_again(clock):
    line = Throttle()
    line.reserve(2)
    clock.now += 0.25

    assert line.reserve(2) == 0.25


def test_idle_time_is_not_saved_up_for_a_burst(clock):
    line = Throttle()
    line.reserve(2)
    clock.now += 60

    assert [line.reserve(2) for _ in range(3)] == [0, 0.5, 1]


def test_a_rate_below_one_is_kept(clock):
    line = Throttle()

    assert [line.reserve(0.1) for _ in range(2)] == [0, 10]


def test_no_time_is_given_to_two_threads():
    line, started = Throttle(), time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: line.reserve(10), range(400)))

    assert line.reserve(10) >= 40 - (time.monotonic() - started)


def test_all_clients_of_one_service_share_one_throttle():
    one = throttle_for("https://one.example.com")

    assert throttle_for("https://one.example.com") is one
    assert throttle_for("https://two.example.com") is not one
