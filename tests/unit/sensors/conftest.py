"""A sensor run to its end in each of its modes, as a task runner and a triggerer would."""

import asyncio
import json
import logging
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import TaskDeferred

from fsm_provider.sensors.base import FsmBaseSensor
from fsm_provider.sensors.forms import FsmFormSensor
from tests.capabilities import RESCHEDULES, TASK_SDK
from tests.unit.clocks import run_hurried
from tests.unit.state_store import MemoryStateStore, TaskInstance

if TASK_SDK.is_there:
    from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason

    TIMED_OUT = TRIGGER_FAIL_REPR, {"error": TriggerFailureReason.TRIGGER_TIMEOUT}
else:
    TIMED_OUT = "__fail__", {"error": "Trigger/execution timeout"}

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
START = TODAY - timedelta(days=2)
MODES = {
    "poke": {"mode": "poke"},
    "reschedule": {"mode": "reschedule"},
    "deferred": {"deferrable": True},
}
SHORT = 0.25
"""Of a second of poke_interval, where a test really waits for it."""
LOGGER = logging.getLogger("tests.wait")
"""What the sensor logs to."""


class Run:
    """Runs a sensor in one mode until it ends.

    :param sensor: its class.
    :ivar deferrals: its deferrals.
    :ivar before_resuming: called between each event and the task that it resumes.
    """

    def __init__(self, mode, sensor=FsmFormSensor):
        if mode == "reschedule":
            RESCHEDULES.require()
        self.mode = mode
        self.sensor = sensor
        self.deferrals = []
        self.before_resuming = lambda: None
        self.task_instance = TaskInstance()

    def __call__(self, *, context=None, **kwargs):
        arguments = {
            "task_id": "wait",
            "poke_interval": 1,
            **MODES[self.mode],
            **kwargs,
        }
        self.task_instance = task_instance = TaskInstance()
        context = {
            "ti": task_instance,
            "task_state_store": MemoryStateStore(),
            **(context or {"data_interval_start": START}),
        }
        method = "execute"
        resumed_with = None
        while True:
            sensor = self.sensor(**arguments)
            if self.mode != "deferred":
                sensor.poke_interval *= SHORT
            try:
                if method == "execute":
                    return sensor.execute(context)
                return sensor.resume_execution(method, resumed_with, context)
            except AirflowRescheduleException as reschedule:
                now = datetime.now(UTC)
                if task_instance.first_reschedule is None:
                    task_instance.first_reschedule = now
                pause = (reschedule.reschedule_date - now).total_seconds()
                time.sleep(max(pause, 0))
            except TaskDeferred as deferral:
                self.deferrals.append(deferral)
                method, resumed_with = run_hurried(outcome_from(deferral))
                self.before_resuming()


async def outcome_from(deferral):
    """Run the trigger, as Airflow rebuilds it, until it fires or the deferral times out."""
    _, kwargs = deferral.trigger.serialize()
    trigger = type(deferral.trigger)(**json.loads(json.dumps(kwargs)))
    trigger.trigger_id = 1
    events = trigger.run()
    try:
        async with asyncio.timeout(deferral.timeout.total_seconds()):
            event = await anext(events)
    except TimeoutError:
        return TIMED_OUT
    finally:
        await events.aclose()
        for thread in threading.enumerate():
            if thread.name.startswith("fsm "):
                await asyncio.to_thread(thread.join)
    next_kwargs = dict(deferral.kwargs or {})
    next_kwargs["event"] = json.loads(json.dumps(event.payload))
    return deferral.method_name, next_kwargs


@pytest.fixture(params=MODES)
def mode(request):
    if request.param == "reschedule":
        RESCHEDULES.require()
    return request.param


@pytest.fixture
def run(mode):
    return Run(mode)


@pytest.fixture
def deferred_run():
    return Run("deferred")


@pytest.fixture
def logged(caplog, monkeypatch):
    """The lines of the wait's log that begin with a text."""
    monkeypatch.setattr(FsmBaseSensor, "log", LOGGER)
    caplog.set_level(logging.INFO, logger=LOGGER.name)

    def lines(beginning):
        records = [record for record in caplog.records if record.name == LOGGER.name]
        messages = [record.getMessage() for record in records]
        return [message for message in messages if message.startswith(beginning)]

    return lines


@pytest.fixture
def soon(service):
    """Do something once the sensor has polled that many times."""
    threads = []

    def start(action, *args, polls=1, **kwargs):
        def act():
            service.wait_for(lambda: len(service.requests) >= polls, timeout=20)
            action(*args, **kwargs)

        thread = threading.Thread(target=act)
        threads.append(thread)
        thread.start()

    yield start
    for thread in threads:
        thread.join()
