"""Many deferred sensors on one stream of polls, beside a watcher, while the service or a triggerer fails.

No form may be lost. ``FSM_KILLS_SEED`` repeats the random kill of a failed test.
"""

import random
import time
from collections import Counter
from itertools import pairwise

import pytest

from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.testing.faults import Exchange
from tests.seeds import SEED
from tests.system.airflow_api import PATIENCE
from tests.system.dags.watched import POKE_INTERVAL
from tests.system.form_events import (
    FIRST_JOBS_EVERY,
    WAITS_ID,
    Waits,
    add,
    are_one_a_poll,
    is_from_sensors,
    listings,
    mismatches,
    times_emitted,
    until_emitted,
)
from tests.system.local_airflow import LocalAirflow

WAITS = 60
SHORT_WAITS = 24
"""The number of them whose forms exist as soon as they defer."""
SHARE = 10
"""Sensors for each test of a failure, out of those that wait through all failures."""
SURVIVED_WAITS = 16
DOWN_SECONDS = 60.0
STORM_SECONDS = 15.0


class FormAtOnce:
    """Completes the forms of the first jobs as soon as a sensor has found none."""

    def __init__(self, service: FakeFieldService, jobs: int) -> None:
        self._service, self._jobs = service, jobs

    async def play(self, exchange: Exchange) -> None:
        await exchange.respond(await exchange.handle())
        job = exchange.request.query_params.get("jobID")
        if job and int(job) % FIRST_JOBS_EVERY <= self._jobs:
            self._service.add_form(job_id=int(job))


@pytest.fixture(scope="module")
def waits(airflow: LocalAirflow, watched_service: FakeFieldService) -> Waits:
    """Sensors of which some find their forms at once, and some wait through all failures."""
    at_once = FormAtOnce(watched_service, SHORT_WAITS)
    watched_service.fail("GET", "/forms", at_once, every=True)
    try:
        waits = Waits.start(airflow, watched_service, WAITS)
        waits.until_deferred(SHORT_WAITS)
    finally:
        watched_service.clear_faults()
    waits.done |= set(range(SHORT_WAITS))
    return waits


def test_forms_that_exist_as_soon_as_a_sensor_defers_are_found(airflow: LocalAirflow, waits: Waits) -> None:
    print(f"{SHORT_WAITS} short deferrals: {mismatches(airflow)} state mismatches")
    assert mismatches(airflow) == 0


def test_deferred_sensors_share_one_listing_a_poll(watched: FakeFieldService, waits: Waits) -> None:
    start = len(watched.requests)
    watched.wait_for(lambda: len(listings(watched, start)) >= 10, PATIENCE)

    found = listings(watched, start)
    took = (found[-1].at - found[0].at).total_seconds()
    waiting = WAITS - SHORT_WAITS
    print(f"{waiting} sensors, a poll every {POKE_INTERVAL} s: {len(found)} listings in {took:.1f} s")
    assert are_one_a_poll(found)
    requests = [request for request in watched.requests[start:] if is_from_sensors(request)]
    assert all("jobID" not in dict(request.query) for request in requests)


def test_a_service_that_is_down_loses_no_form(
    airflow: LocalAirflow, watched: FakeFieldService, waits: Waits
) -> None:
    with watched.refuse_connections():
        added = add(watched, 3)
        forms = waits.complete(share(0))
        time.sleep(DOWN_SECONDS)

    until_emitted(airflow, added)
    waits.until_found(forms)
    times = times_emitted(airflow, added)
    print(f"{DOWN_SECONDS:g} s down: forms by how often they were emitted: {Counter(times.values())}")
    assert set(times.values()) == {1}


def share(number: int) -> range:
    return range(WAITS)[SHORT_WAITS + number * SHARE :][:SHARE]


@pytest.mark.parametrize("retry_after", [4, None])
def test_a_storm_of_429_loses_nothing_and_is_not_hammered(
    airflow: LocalAirflow, watched: FakeFieldService, waits: Waits, retry_after: int | None
) -> None:
    start = len(watched.requests)
    storm = watched.fail("GET", "/forms", faults.Status(429, retry_after=retry_after), every=True)
    watched.wait_for(lambda: storm.hits >= 2, PATIENCE)
    added = add(watched, 3)
    forms = waits.complete(share(1 if retry_after else 2))
    time.sleep(STORM_SECONDS)
    watched.clear_faults()
    refused = [request for request in watched.requests[start:] if request.status == 429]

    until_emitted(airflow, added)
    waits.until_found(forms)

    for name, of_sensors in (("watcher", False), ("sensors", True)):
        times = [request.at for request in refused if is_from_sensors(request) is of_sensors]
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
        print(f"429, Retry-After {retry_after}: {name} sent {len(times)} requests, {gaps} s apart")
        assert times
        if retry_after:
            assert gaps, f"{name} sent only one request in {STORM_SECONDS:g} s"
            assert all(gap >= retry_after for gap in gaps)
        else:
            assert len(times) < STORM_SECONDS / 2
    assert set(times_emitted(airflow, added).values()) == {1}


def test_all_of_them_end_with_their_own_forms(airflow: LocalAirflow, waits: Waits) -> None:
    waits.until_found(waits.complete(set(range(WAITS)) - waits.done))

    assert len(waits.done) == WAITS
    assert airflow.wait_for_run(WAITS_ID, waits.run_id) == "success"


def test_one_of_two_triggerers_is_killed_and_nothing_is_lost(
    airflow: LocalAirflow, watched: FakeFieldService
) -> None:
    chance = random.Random(SEED)
    airflow.start_another("triggerer", "triggerer-2")
    waits = Waits.start(airflow, watched, SURVIVED_WAITS)
    waits.until_deferred()
    numbers = chance.sample(range(SURVIVED_WAITS), SURVIVED_WAITS)
    half, delay = chance.randint(0, SURVIVED_WAITS), chance.uniform(0.0, 5.0)

    forms, before = waits.complete(numbers[:half]), add(watched, 3)
    time.sleep(delay)
    airflow.kill("triggerer")
    airflow.processes["triggerer"] = airflow.processes.pop("triggerer-2")
    forms, after = forms | waits.complete(numbers[half:]), add(watched, 3)

    until_emitted(airflow, [*before, *after])
    waits.until_found(forms)
    assert airflow.wait_for_run(WAITS_ID, waits.run_id) == "success"
    times = times_emitted(airflow, [*before, *after])
    print(
        f"seed {SEED}: one of two triggerers killed {delay:.1f} s after {half} of {SURVIVED_WAITS} forms: "
        f"emitted {Counter(times.values())}"
    )
    assert max(times[form] for form in before) <= 2
    assert {times[form] for form in after} == {1}
    assert mismatches(airflow) == 0
