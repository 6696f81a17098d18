"""Deferred sensors on one stream of polls, beside a watcher: a refusal, a dead triggerer, a paused DAG.

No form may be lost. ``FSM_KILLS_SEED`` repeats the random kill of a failed test.
"""

import random
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.testing.faults import Exchange
from tests.seeds import SEED
from tests.system.airflow_api import PATIENCE, wait_until
from tests.system.dags.watched import POKE_INTERVAL
from tests.system.form_events import (
    DAG_ID,
    FIRST_JOBS_EVERY,
    WAITS_ID,
    Waits,
    add,
    are_one_a_poll,
    is_from_sensors,
    listings,
    times_emitted,
    until_emitted,
)
from tests.system.local_airflow import LocalAirflow

WAITS = 24
SHORT_WAITS = 8
"""The number of them whose forms exist as soon as they defer."""
RETRY_AFTER = 4
OF_PROPERTY = "forms_of_a_property"
DAG_OF_A_PROPERTY = f"""\
from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.assets.forms import completed_forms, forms_from_events

SINCE = "{datetime.now(UTC).isoformat()}"
FORMS = {{"fsm_conn_id": "fsm_watched", "property_id": 77, "poll_interval": 1, "start_from": SINCE}}


@dag(schedule=completed_forms("{OF_PROPERTY}", **FORMS))
def {OF_PROPERTY}():
    @task
    def read(*, triggering_asset_events):
        return forms_from_events(triggering_asset_events)

    read()


{OF_PROPERTY}()
"""


class FormAtOnce:
    """Completes the forms of the first jobs as soon as a sensor has found none."""

    def __init__(self, service: FakeFieldService, jobs: int) -> None:
        self._service, self._jobs = service, jobs

    async def play(self, exchange: Exchange) -> None:
        await exchange.respond(await exchange.handle())
        job = exchange.request.query_params.get("jobID")
        if job and int(job) % FIRST_JOBS_EVERY <= self._jobs:
            self._service.add_form(job_id=int(job))


class AccountRefused:
    """Refuses to list the forms of the whole account."""

    async def play(self, exchange: Exchange) -> None:
        if {"jobID", "propertyID"} & exchange.request.query_params.keys():
            await exchange.respond(await exchange.handle())
        else:
            await faults.Status(403).play(exchange)


@pytest.fixture(scope="module")
def waits(airflow: LocalAirflow, watched_service: FakeFieldService) -> Waits:
    """Sensors of which some have their forms, which came as soon as they deferred, and the others wait."""
    at_once = FormAtOnce(watched_service, SHORT_WAITS)
    watched_service.fail("GET", "/forms", at_once, every=True)
    try:
        waits = Waits.start(airflow, watched_service, WAITS)
        waits.until_deferred(SHORT_WAITS)
    finally:
        watched_service.clear_faults()
    waits.done |= set(range(SHORT_WAITS))
    return waits


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


def test_a_storm_of_429_loses_nothing_and_retry_after_is_kept(
    airflow: LocalAirflow, watched: FakeFieldService, waits: Waits
) -> None:
    start = len(watched.requests)

    def gaps(of_sensors: bool) -> list[float]:
        """The seconds between repeats of a request: a watcher has listings beside each other."""
        times = defaultdict(list)
        for request in watched.requests[start:]:
            if request.status == 429 and is_from_sensors(request) is of_sensors:
                times[str(request.query)].append(request.at)
        pairs = [pair for one in times.values() for pair in pairwise(one)]
        return [(later - earlier).total_seconds() for earlier, later in pairs]

    def until_repeated(times: int) -> None:
        watched.wait_for(lambda: min(len(gaps(True)), len(gaps(False))) >= times, PATIENCE)

    watched.fail("GET", "/forms", faults.Status(429, retry_after=RETRY_AFTER), every=True)
    until_repeated(1)
    added, forms = add(watched, 3), waits.complete(set(range(WAITS)) - waits.done)
    until_repeated(2)
    watched.clear_faults()
    found = gaps(True), gaps(False)

    until_emitted(airflow, added)
    waits.until_found(forms)

    print(f"429, Retry-After {RETRY_AFTER}: sensors and watcher asked again after {found} s")
    assert all(gap >= RETRY_AFTER for gap in [*found[0], *found[1]])
    assert set(times_emitted(airflow, added).values()) == {1}
    assert len(waits.done) == WAITS
    assert airflow.wait_for_run(WAITS_ID, waits.run_id) == "success"


def times_asked(service: FakeFieldService, start: int, one: tuple[str, str]) -> int:
    return sum(one in request.query for request in service.requests[start:])


def test_where_the_account_wide_listing_is_refused_jobs_and_properties_are_served(
    airflow: LocalAirflow, watched: FakeFieldService, dags_folder: Path
) -> None:
    watched.fail("GET", "/forms", AccountRefused(), every=True)
    (dags_folder / f"{OF_PROPERTY}.py").write_text(DAG_OF_A_PROPERTY)
    start = len(watched.requests)
    waits = Waits.start(airflow, watched, SHORT_WAITS)
    waits.until_deferred()
    asked = [("jobID", str(waits.first_job + number)) for number in range(SHORT_WAITS)]
    for one in [*asked, ("propertyID", "77")]:
        watched.wait_for(lambda one=one: times_asked(watched, start, one) >= 4, PATIENCE)

    forms = waits.complete(range(SHORT_WAITS))
    form = watched.add_form(property_id=77)["id"]

    waits.until_found(forms)
    until_emitted(airflow, [form], OF_PROPERTY)
    airflow.pause(OF_PROPERTY, True)


def test_one_of_two_triggerers_is_killed_and_nothing_is_lost(
    airflow: LocalAirflow, watched: FakeFieldService
) -> None:
    chance = random.Random(SEED)
    airflow.start_another("triggerer", "triggerer-2")
    waits = Waits.start(airflow, watched, WAITS)
    waits.until_deferred()
    numbers = chance.sample(range(WAITS), WAITS)
    half, delay = chance.randint(0, WAITS), chance.uniform(0.0, 5.0)

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
        f"seed {SEED}: one of two triggerers killed {delay:.1f} s after {half} of {WAITS} forms: "
        f"emitted {Counter(times.values())}"
    )
    assert max(times[form] for form in before) <= 2
    assert {times[form] for form in after} == {1}


def test_a_paused_dag_gets_the_forms_of_its_pause(airflow: LocalAirflow, watched: FakeFieldService) -> None:
    airflow.pause(DAG_ID, True)
    try:
        early = add(watched)
        until_silent(watched)
        late = add(watched, 3)
    finally:
        airflow.pause(DAG_ID, False)

    until_emitted(airflow, [*early, *late])

    assert set(times_emitted(airflow, [*early, *late]).values()) == {1}


def until_silent(service: FakeFieldService) -> None:
    """Wait until the watcher is gone, because every DAG of its asset is paused."""
    wait_until(lambda: datetime.now(UTC) - service.requests[-1].at > timedelta(seconds=5), "no request")
