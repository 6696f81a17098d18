"""Forms as events on a real Airflow: the watcher of an asset loses no form, whatever is killed or paused."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.testing.state import RecordedRequest
from tests.system.airflow_api import PATIENCE, wait_until
from tests.system.dags.watched import LATE_BY, LEAVE, WATCHED_PROPERTY
from tests.system.form_events import (
    DAG_ID,
    CommonListing,
    Waits,
    add,
    emitted,
    forms_from_run,
    times_emitted,
    until_emitted,
)
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import until_polled, watermark

ASSET, HELD_ID = "watched_records", "held_records"


def until_reconciled(service: FakeFieldService) -> None:
    """Wait until the watcher has reconciled again, and has begun the poll after that."""

    def seen() -> int:
        return sum(goes_back(request) for request in service.requests)

    before = seen()
    service.wait_for(lambda: seen() > before, PATIENCE)
    until_polled(service, 2)


def goes_back(request: RecordedRequest) -> bool:
    query = dict(request.query)
    since = query.get("lastUpdatedOnDateTime[gte]")
    first_page = request.status == 200 and {"cursor", "propertyID"}.isdisjoint(query)
    return bool(since) and first_page and request.at - datetime.fromisoformat(since) > LATE_BY


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
            wait_until(lambda: len(airflow.runs(DAG_ID)) > before, f"{DAG_ID} has another run")
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
    dag_ids = (DAG_ID, "property_records")  # they share their polls
    for dag_id in dag_ids:
        airflow.pause(dag_id, True)
    try:
        early = add(watched)
        until_silent(watched)
        late = add(watched, 3)
    finally:
        for dag_id in dag_ids:
            airflow.pause(dag_id, False)

    until_emitted(airflow, [*early, *late])

    times = times_emitted(airflow, [*early, *late])
    print(f"paused: forms by how often they were emitted: {Counter(times.values())}")
    assert set(times.values()) == {1}


def test_where_the_account_wide_listing_is_refused_those_of_a_property_or_job_go_on(
    airflow: LocalAirflow, watched: FakeFieldService
) -> None:
    refused = watched.fail("GET", "/forms", CommonListing(faults.Status(403)), every=True)
    waits = Waits.start(airflow, watched, jobs=3)
    waits.until_deferred()
    form = watched.add_form(property_id=WATCHED_PROPERTY)["id"]

    until_emitted(airflow, [form], "property_records")
    waits.until_found(waits.complete(range(3)))

    print(f"{refused.hits} listings, those of the whole account refused: 1 form emitted, 3 sensors done")
    assert times_emitted(airflow, [form], "property_records") == {form: 1}


def until_silent(service: FakeFieldService) -> None:
    """Wait until the watcher is gone, because every DAG of its asset is paused."""
    wait_until(lambda: datetime.now(UTC) - service.requests[-1].at > timedelta(seconds=5), "no request")


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
        wait_until(lambda: len(airflow.runs(HELD_ID)) >= run, f"{HELD_ID} has {run} runs")
        run_id = airflow.runs(HELD_ID)[run - 1]["dag_run_id"]
        airflow.wait_for_tasks(
            HELD_ID, run_id, lambda states: states["read"] == states["read_since_watermark"] == "success"
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
        wait_until(lambda: len(emitted(airflow, HELD_ID)) == 3, f"three runs of {HELD_ID} have succeeded")
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


def test_a_watermark_that_is_set_back_emits_the_forms_since_then_again(
    airflow: LocalAirflow, watched: FakeFieldService
) -> None:
    now = datetime.now(UTC)
    before, first, second = (add(watched, at=now - timedelta(hours=ago))[0] for ago in (30, 28, 27))
    until_emitted(airflow, [before, first, second])
    until_reconciled(watched)
    runs = len(emitted(airflow))

    watermark(airflow, "set", ASSET, (now - timedelta(hours=29)).isoformat())
    wait_until(lambda: len(emitted(airflow)) > runs, "the forms are emitted again")
    (new,) = add(watched)
    until_emitted(airflow, [new])

    again = [form for run in emitted(airflow)[runs:] for form in run]
    shown = watermark(airflow, "show", ASSET)
    print(f"emitted again: {again}; {shown}")
    assert before not in again
    assert [again.count(form) for form in (first, second, new)] == [1, 1, 1]
    at = datetime.fromisoformat(re.search(r"  (\S+Z)  ", shown)[1])
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
