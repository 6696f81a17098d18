"""Forms as events on a real Airflow: the watcher of an asset, and many sensors on one stream.

No form may be lost, whatever is killed or fails. ``FSM_KILLS_SEED`` repeats the random kill of a failed
test.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.testing.faults import Exchange
from fsm_provider.testing.state import RecordedRequest
from tests.seeds import SEED
from tests.system.airflow_api import wait_until
from tests.system.dags.watched import LEAVE, POKE_INTERVAL, RECONCILE_BACK
from tests.system.form_events import (
    DAG_ID,
    FIRST_JOBS_EVERY,
    WAITS_ID,
    Waits,
    add,
    are_one_a_poll,
    emitted,
    forms_from_run,
    listings,
    mismatches,
    times_emitted,
    until_emitted,
)
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import is_from_sensors, until_polled

HELD_ID = "held_records"
WAITS = 200
SHORT_WAITS = 101
"""The number of them whose forms exist as soon as they defer."""
SHARE = 33
"""Sensors for each test of a failure, out of those that wait through all failures."""
SURVIVED_WAITS = 30
DOWN_SECONDS = 60.0
STORM_SECONDS = 15.0


def until_reconciled(service: FakeFieldService) -> None:
    """Wait until the watcher has reconciled again."""

    def seen() -> int:
        return sum(goes_back(request) for request in service.requests)

    enough = seen() + 2
    service.wait_for(lambda: seen() >= enough, timeout=120)


def goes_back(request: RecordedRequest) -> bool:
    query = dict(request.query)
    since = query.get("lastUpdatedOnDateTime[gte]")
    first_page = request.status == 200 and "cursor" not in query
    return bool(since) and first_page and request.at - datetime.fromisoformat(since) > RECONCILE_BACK


@pytest.fixture
def watched(airflow: LocalAirflow, watched_service: FakeFieldService) -> Iterator[FakeFieldService]:
    """The service, polled by a watcher at least three times; a test may make it fail."""
    airflow.wait_for_dag(DAG_ID)
    page_size = watched_service.settings.page_size
    until_polled(watched_service)
    yield watched_service
    watched_service.clear_faults()
    watched_service.settings.page_size = page_size


def test_new_forms_start_a_run_and_history_does_not(airflow: LocalAirflow, watched: FakeFieldService) -> None:
    history = {form["id"] for form in watched.forms}
    added = add(watched, 3)

    until_emitted(airflow, added)

    assert history.isdisjoint(form for run in emitted(airflow) for form in run)


def test_odd_forms_are_emitted_once(airflow: LocalAirflow, watched: FakeFieldService) -> None:
    now = datetime.now(UTC)
    watched.settings.page_size = 40
    overlapping = watched.fail("GET", "/forms", faults.RepeatedRecords(3), every=True)
    odd = {
        "48 h late": add(watched, at=now - timedelta(hours=48)),
        "an hour in the future": add(watched, at=now + timedelta(hours=1)),
        "ten years in the future": add(watched, at=now + timedelta(days=3652)),
        "a burst on pages that overlap": add(watched, 210),
    }

    for forms in odd.values():
        until_emitted(airflow, forms)
    until_reconciled(watched)
    (after,) = add(watched)
    until_emitted(airflow, [after])

    times = {kind: Counter(times_emitted(airflow, forms).values()) for kind, forms in odd.items()}
    print(f"{overlapping.hits} overlapping pages; forms by how often they were emitted: {times}")
    assert times == {kind: {1: len(forms)} for kind, forms in odd.items()}
    assert max(map(len, emitted(airflow))) <= 100


@pytest.mark.parametrize("killed", ["waiting", "after a poll that found it", "after its event"])
def test_a_killed_triggerer_loses_no_form(
    airflow: LocalAirflow, watched: FakeFieldService, killed: str
) -> None:
    if killed == "waiting":
        airflow.kill("triggerer")
        (form,) = add(watched)
    else:
        before = len(airflow.runs(DAG_ID))
        (form,) = add(watched)
        if killed == "after its event":
            wait_until(lambda: len(airflow.runs(DAG_ID)) > before, 60, f"{DAG_ID} has another run")
        else:
            until_polled(watched, 1)
        airflow.kill("triggerer")
    airflow.restart("triggerer")

    (after,) = add(watched)
    until_emitted(airflow, [form, after])

    times = times_emitted(airflow, [form, after])
    print(f"killed {killed}: the form was emitted {times[form]} times")
    assert times[form] <= 2
    assert times[after] == 1


def test_a_paused_dag_gets_the_forms_of_its_pause(airflow: LocalAirflow, watched: FakeFieldService) -> None:
    airflow.pause(DAG_ID, True)
    try:
        early = add(watched)
        until_silent(watched)
        late = add(watched, 3)
    finally:
        airflow.pause(DAG_ID, False)

    until_emitted(airflow, [*early, *late])

    times = times_emitted(airflow, [*early, *late])
    print(f"paused: forms by how often they were emitted: {Counter(times.values())}")
    assert set(times.values()) == {1}


def until_silent(service: FakeFieldService) -> None:
    """Wait until the watcher is gone, because every DAG of its asset is paused."""
    wait_until(lambda: datetime.now(UTC) - service.requests[-1].at > timedelta(seconds=5), 300, "no request")


def test_events_that_come_while_a_dag_cannot_start_are_in_its_runs(
    airflow: LocalAirflow, watched: FakeFieldService
) -> None:
    def add_emitted(how_many: int = 1) -> list[int]:
        """Add forms, each with an event of its own before the next."""
        added = []
        for _ in range(how_many):
            added += add(watched)
            until_emitted(airflow, added)
        return added

    def held(run: int) -> tuple[set[int], set[int]]:
        """The forms of a run's events, and those that it has read since its watermark."""
        wait_until(lambda: len(airflow.runs(HELD_ID)) >= run, 300, f"{HELD_ID} has {run} runs")
        run_id = airflow.runs(HELD_ID)[run - 1]["dag_run_id"]
        airflow.wait_for_tasks(
            HELD_ID, run_id, lambda states: states["read"] == states["read_since_watermark"] == "success", 300
        )
        since = airflow.xcom(HELD_ID, run_id, "read_since_watermark")["forms"]
        return set(forms_from_run(airflow, HELD_ID, run_id)), set(since)

    paused = set(add_emitted(2))
    airflow.pause(HELD_ID, False)
    try:
        first = set(add_emitted())
        from_events_first, _ = held(1)
        waiting = add_emitted(3)
        watched.add_form(form_name=LEAVE, created=datetime.now(UTC) + timedelta(days=1))
        from_events_second, read_second = held(2)
        last = set(add_emitted())
        from_events_third, _ = held(3)
        wait_until(
            lambda: len(emitted(airflow, HELD_ID)) == 3, 300, f"three runs of {HELD_ID} have succeeded"
        )
    finally:
        airflow.pause(HELD_ID, True)

    print(
        f"paused: {len(paused & from_events_first)} of {len(paused)} forms in the next event's run; at "
        f"max_active_runs: {len(from_events_second & set(waiting))} of {len(waiting)} in the next run, "
        f"{len(from_events_third & set(waiting))} in that of the next event; "
        f"{len(read_second & set(waiting))} read since the watermark in the next run"
    )
    assert paused | first <= from_events_first
    assert set(waiting) <= read_second
    assert from_events_second == set(waiting[:1])
    assert from_events_third == set(waiting[1:]) | last


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
    watched.wait_for(lambda: len(listings(watched, start)) >= 10, timeout=120)

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
    watched.wait_for(lambda: storm.hits >= 2, timeout=60)
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
