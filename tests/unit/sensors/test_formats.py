"""Deferrals that another version has written: an upgrade or a downgrade meanwhile."""

import asyncio
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout

from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.polling.waits import FORMAT, WaitState
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.triggers.forms import MIN_DEFERRAL, FsmFormTrigger
from tests.unit.clocks import run_hurried
from tests.unit.sensors.conftest import START
from tests.unit.state_store import TaskInstance

NEWER = FORMAT + 1


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


def state(**fields):
    """What a worker has stored as it deferred, a minute before the end of its time."""
    now = datetime.now(UTC).timestamp()
    settings = FsmHook("fsm_default").settings
    written = WaitState(settings.service, now - 60, now + 60, START.isoformat())
    return {**asdict(written), **fields}


def without(names):
    return {name: value for name, value in state().items() if name not in names}


def resume(wait):
    """Resume a sensor on a worker, with the event of its trigger."""
    sensor = FsmFormSensor(task_id="wait", job_id=11, xcom="ids")
    context = {"ti": TaskInstance(), "data_interval_start": START}
    return sensor.resume_execution("execute_complete", {"event": {"wait": wait}}, context)


def event_of_trigger(wait):
    """Run the trigger of a deferral until its event; return that, and the seconds that it took."""
    trigger = FsmFormTrigger(
        fsm_conn_id="fsm_default",
        filters={"job_id": "11", "created_since": START.isoformat()},
        minimum_forms=1,
        form_names=[],
        query_params=None,
        poll_interval=1.0,
        failure_tolerance=600.0,
        wait=wait,
    )
    trigger.trigger_id = 1  # as the triggerer gives it

    async def run():
        began = asyncio.get_running_loop().time()
        async with aclosing(trigger.run()) as events:
            event = await anext(events)
        return event.payload["wait"], asyncio.get_running_loop().time() - began

    return run_hurried(run())


OLDER_AND_LATER = {
    "a field more": {"asked_by": "a later version"},
    "a field more, whose value is a record": {"others": {"a": [1]}},
}


@pytest.mark.parametrize("more", OLDER_AND_LATER.values(), ids=OLDER_AND_LATER)
def test_a_field_more_harms_nothing_and_the_trigger_keeps_it(service, more):
    service.add_form(job_id=11, id=900)

    wait, _ = event_of_trigger(state(**more))

    assert wait.items() >= more.items()
    assert resume(wait) == [900]


@pytest.mark.parametrize(
    "names",
    [
        ["format"],  # as the versions before formats wrote it
        ["format", "failing_since", "futile_wakes", "known", "polled_at", "since"],
        ["service"],
        ["began", "deadline"],
        list(asdict(WaitState("", 0.0, 0.0))),
    ],
)
def test_a_field_fewer_has_a_default(service, names):
    service.add_form(job_id=11, id=900)

    wait, seconds = event_of_trigger(without(names))

    assert seconds < 120
    assert resume(wait) == [900]


def test_an_upgrade_goes_on_with_the_deadline_that_was(service):
    now = datetime.now(UTC).timestamp()
    older = {"service": "", "began": now - 60, "deadline": now - 1}

    with pytest.raises(AirflowSensorTimeout, match="0 of 1 form"):
        resume(older)


def test_after_a_downgrade_the_worker_says_what_to_do(service):
    with pytest.raises(AirflowFailException) as failed:
        resume(state(format=NEWER, deadline={"at": "a time that is written otherwise"}))

    assert str(failed.value) == (
        f"this task was deferred by a newer version of airflow-provider-fsm (format {NEWER}): "
        "install that version again, or clear the task"
    )
    assert service.requests == []


def test_after_a_downgrade_the_trigger_hands_back_what_it_cannot_read(service):
    newer = {"format": NEWER, "until": "2026-03-04T05:06:07Z"}

    wait, seconds = event_of_trigger(newer)

    assert wait == newer
    assert seconds >= MIN_DEFERRAL - 0.1
    assert service.requests == []
