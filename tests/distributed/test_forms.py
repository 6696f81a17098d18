"""Completed forms reach everybody who waits for them, whichever triggerer is killed meanwhile."""

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import chain

from fsm_provider.testing import FakeFieldService
from fsm_provider.testing.state import RecordedRequest
from tests.distributed.airflow import DistributedAirflow
from tests.system.airflow_api import PATIENCE
from tests.system.form_events import (
    WAITS_ID,
    Waits,
    add_forms,
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
    asked = {triggerer: len(requests) for triggerer, requests in by_triggerer.items()}
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
    for requests in by_triggerer.values():
        assert are_one_a_poll(requests)
    assert mismatches(airflow) == 0


def _listings_by_triggerer(
    airflow: DistributedAirflow, service: FakeFieldService
) -> dict[str, list[RecordedRequest]]:
    """Wait for some polls of the sensors, and give their listings by who asked."""
    start = len(service.requests)
    wanted = len(TRIGGERERS) * POLLS
    service.wait_for(lambda: len(listings(service, start)) >= wanted, PATIENCE)
    by_triggerer = defaultdict(list)
    for listing in listings(service, start):
        by_triggerer[_sender(airflow, listing)].append(listing)
    return by_triggerer


def _sender(airflow: DistributedAirflow, request: RecordedRequest) -> str:
    pid = process_behind(request.connection)
    return airflow.name_for(pid)


def _ends_of_sensors(airflow: DistributedAirflow, waits: Waits) -> list[int]:
    """Each sensor's number, as often as its log says that it has its forms."""
    logs = airflow.home / "logs" / f"dag_id={WAITS_ID}" / f"run_id={waits.run_id}" / "task_id=wait"
    ends: list[int] = []
    for log in logs.rglob("attempt=*.log"):
        number = int(log.parent.name.removeprefix("map_index="))
        times = log.read_text().count("Success criteria met")
        ends += [number] * times
    return ends


def test_a_watcher_whose_triggerer_is_killed_loses_no_form(
    airflow: DistributedAirflow,
    watched: FakeFieldService,
    chance: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    at_risk: list[int] = []
    safe: list[int] = []
    gaps: list[int] = []
    for _ in range(KILLS):
        at_risk += add_forms(watched, chance.randint(1, 5))
        time.sleep(chance.uniform(0.0, 3.0))
        victim = _sender(airflow, polls(watched)[-1])
        airflow.kill(victim)
        killed_at = datetime.now(UTC)
        safe += add_forms(watched, chance.randint(1, 5))
        polled_again_at = _wait_for_poll_after(killed_at, watched)
        gaps.append(round((polled_again_at - killed_at).total_seconds()))
        safe += add_forms(watched)
        until_emitted(airflow, [*at_risk, *safe])
        airflow.start_again(victim)

    times_at_risk = Counter(times_emitted(airflow, at_risk).values())
    times_safe = Counter(times_emitted(airflow, safe).values())
    record_property(
        "figures",
        f"watcher killed {KILLS} times, asked again after {gaps} s; forms by how often they were "
        f"emitted: completed before a kill {times_at_risk}, after it {times_safe}",
    )
    assert max(times_at_risk) <= 2
    assert set(times_safe) == {1}
    in_events = set(_forms_of_events(airflow))
    assert in_events == set(chain.from_iterable(emitted(airflow)))
    assert in_events >= {*at_risk, *safe}


def _wait_for_poll_after(at: datetime, service: FakeFieldService) -> datetime:
    """Wait until the watcher polls after a time, and give when it did last."""

    def has_polled() -> bool:
        return polls(service)[-1].at > at

    service.wait_for(has_polled, PATIENCE)
    return polls(service)[-1].at


def _forms_of_events(airflow: DistributedAirflow) -> Iterator[int]:
    offset = 0
    while True:
        parameters = {"limit": 100, "offset": offset}
        page = airflow.api("GET", "/assets/events", params=parameters)
        events = page["asset_events"]
        if not events:
            return
        for event in events:
            forms = event["extra"]["payload"]["forms"]
            yield from (form["id"] for form in forms)
        offset += len(events)
