"""A sensor run to its end in each of its modes, as a task runner and a triggerer would."""

import asyncio
import threading
import time
from datetime import UTC, datetime

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.exceptions import AirflowRescheduleException

from fsm_provider.sensors.forms import FsmFormSensor

START = datetime(2026, 3, 1, tzinfo=UTC)
MODES = {
    "poke": {"mode": "poke"},
    "reschedule": {"mode": "reschedule"},
    "deferrable": {"deferrable": True},
}


class FirstReschedule:
    """What a sensor in reschedule mode asks its task instance for."""

    def __init__(self):
        self.date = None

    def get_first_reschedule_date(self, context):
        return self.date


class Run:
    """Runs a sensor in one mode until it ends.

    :ivar deferrals: what it deferred with.
    """

    def __init__(self, mode):
        self.mode = mode
        self.deferrals = []

    def __call__(self, *, context=None, **kwargs):
        arguments = {"task_id": "wait", "poke_interval": 1, **MODES[self.mode], **kwargs}
        reschedules = FirstReschedule()
        context = {"ti": reschedules, **(context or {"data_interval_start": START})}
        method, resumed_with = "execute", None
        while True:
            sensor = FsmFormSensor(**arguments)
            try:
                if method == "execute":
                    return sensor.execute(context)
                return sensor.resume_execution(method, resumed_with, context)
            except AirflowRescheduleException as reschedule:
                reschedules.date = reschedules.date or datetime.now(UTC)
                time.sleep(max(0, (reschedule.reschedule_date - datetime.now(UTC)).total_seconds()))
            except TaskDeferred as deferral:
                self.deferrals.append(deferral)
                method, resumed_with = asyncio.run(outcome_of(deferral))


async def outcome_of(deferral):
    """Run the trigger, rebuilt from what it serialises, until it fires or the deferral times out."""
    _, kwargs = deferral.trigger.serialize()
    events = type(deferral.trigger)(**kwargs).run()
    try:
        async with asyncio.timeout(deferral.timeout.total_seconds()):
            event = await anext(events)
    except TimeoutError:
        return TRIGGER_FAIL_REPR, {"error": TriggerFailureReason.TRIGGER_TIMEOUT}
    finally:
        await events.aclose()
    return deferral.method_name, {**deferral.kwargs, "event": event.payload}


@pytest.fixture(params=MODES)
def run(request):
    return Run(request.param)


@pytest.fixture
def deferred_run():
    return Run("deferrable")


@pytest.fixture
def soon():
    """Do something once the sensor has looked and waits."""
    timers = []

    def start(action, *args, **kwargs):
        timers.append(threading.Timer(0.5, action, args, kwargs))
        timers[-1].start()

    yield start
    for timer in timers:
        timer.join()
