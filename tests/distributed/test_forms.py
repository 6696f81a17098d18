"""Completed forms reach everybody who waits for them, whichever triggerer is killed meanwhile."""

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.state import RecordedRequest
from tests.distributed.airflow import DistributedAirflow
from tests.system.airflow_api import PATIENCE
from tests.system.form_events import (
    WAITS_ID,
    Waits,
    add,
    are_one_a_poll,
    emitted,
    listings,
    mismatches,
    times_emitted,
    until_emitted,
)
from tests.system.kills import process_behind
from tests.system.watcher import polls

SENSORS = int(os.environ.get("FSM_CLUSTER_SENSORS", "200"))
POLLS = 10
KILLS = 3
TRIGGERERS = ("triggerer", "triggerer-2")


def test_sensors_whose_triggerer_is_killed_end_once_with_their_own_forms(
    airflow: DistributedAirflow,
    watched: FakeFieldService,
    chance: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    start = time.monotonic()
    waits = Waits.start(airflow, watched, SENSORS)
    waits.until_deferred()
    deferred_after = time.monotonic() - start
    by_triggerer = _listings_by_triggerer(airflow, watched)
    numbers = chance.sample(range(SENSORS), SENSORS)
    first, second = sorted(chance.sample(range(1, SENSORS), 2))
    victim = chance.choice(TRIGGERERS)

    forms = waits.complete(numbers[:first])
    time.sleep(chance.uniform(0.0, 5.0))
    airflow.kill(victim)
    killed_at = time.monotonic()
    waits.until_found(forms | waits.complete(numbers[first:second]))
    found_after = time.monotonic() - killed_at
    airflow.start_again(victim)
    waits.until_found(waits.complete(numbers[second:]))

    assert airflow.wait_for_run(WAITS_ID, waits.run_id) == "success"
    ends = _ends_of_sensors(airflow, waits)
    asked = {triggerer: len(found) for triggerer, found in by_triggerer.items()}
    record_property(
        "figures",
        f"{SENSORS} sensors, deferred after {deferred_after:.0f} s; listings, by who asked: "
        f"{asked}; {victim} killed with {first} forms complete, {second - first} completed before "
        f"that was noticed, all found {found_after:.0f} s after the kill; {SENSORS - second} "
        f"completed then; over after {time.monotonic() - start:.0f} s; ends: {len(ends)}, "
        f"mismatches: {mismatches(airflow)}",
    )
    assert Counter(ends) == Counter(range(SENSORS))
    assert by_triggerer.keys() <= set(TRIGGERERS)
    assert all(map(are_one_a_poll, by_triggerer.values()))
    assert mismatches(airflow) == 0


def _listings_by_triggerer(
    airflow: DistributedAirflow, service: FakeFieldService
) -> dict[str, list[RecordedRequest]]:
    """Wait for some polls of the sensors, and give their listings by who asked."""
    start = len(service.requests)
    service.wait_for(lambda: len(listings(service, start)) >= len(TRIGGERERS) * POLLS, PATIENCE)
    by_triggerer = defaultdict(list)
    for listing in listings(service, start):
        by_triggerer[_sender(airflow, listing)].append(listing)
    return by_triggerer


def _sender(airflow: DistributedAirflow, request: RecordedRequest) -> str:
    return airflow.name_for(process_behind(request.connection))


def _ends_of_sensors(airflow: DistributedAirflow, waits: Waits) -> list[int]:
    """Each sensor's number, as often as its log says that it has its forms."""
    logs = airflow.home / "logs" / f"dag_id={WAITS_ID}" / f"run_id={waits.run_id}" / "task_id=wait"
    ends = {
        log: log.read_text().count("Success criteria met") for log in logs.rglob("attempt=*.log")
    }
    return [
        int(log.parent.name.removeprefix("map_index="))
        for log, times in ends.items()
        for _ in range(times)
    ]


def test_a_watcher_whose_triggerer_is_killed_loses_no_form(
    airflow: DistributedAirflow,
    watched: FakeFieldService,
    chance: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    at_risk, safe, gaps = [], [], []
    for _ in range(KILLS):
        at_risk += add(watched, chance.randint(1, 5))
        time.sleep(chance.uniform(0.0, 3.0))
        victim = _sender(airflow, polls(watched)[-1])
        airflow.kill(victim)
        killed_at = datetime.now(UTC)
        safe += add(watched, chance.randint(1, 5))
        watched.wait_for(lambda since=killed_at: polls(watched)[-1].at > since, PATIENCE)
        gaps.append((polls(watched)[-1].at - killed_at).total_seconds())
        safe += add(watched)
        until_emitted(airflow, [*at_risk, *safe])
        airflow.start_again(victim)

    twice = (
        Counter(times_emitted(airflow, at_risk).values()),
        Counter(times_emitted(airflow, safe).values()),
    )
    in_events = {form for event in _events(airflow) for form in event}
    record_property(
        "figures",
        f"watcher killed {KILLS} times, asked again after {[round(gap) for gap in gaps]} s; forms "
        f"by how often they were emitted: completed before a kill {twice[0]}, after it {twice[1]}",
    )
    assert max(twice[0]) <= 2
    assert set(twice[1]) == {1}
    assert in_events == {form for run in emitted(airflow) for form in run}
    assert in_events >= {*at_risk, *safe}


def _events(airflow: DistributedAirflow) -> Iterator[list[int]]:
    """The forms of each event."""
    offset = 0
    while page := airflow.api("GET", "/assets/events", params={"limit": 100, "offset": offset})[
        "asset_events"
    ]:
        yield from ([form["id"] for form in event["extra"]["payload"]["forms"]] for event in page)
        offset += len(page)
