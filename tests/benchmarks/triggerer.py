"""Airflow's own runner of triggers in this process: its loop, no supervisor and no database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import structlog
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models import Connection
from airflow.triggers.base import BaseTrigger, TriggerEvent

from fsm_provider.hooks.connection import settings_from
from fsm_provider.polling.waits import WaitState
from fsm_provider.triggers.forms import FsmFormTrigger
from tests.benchmarks.case import BenchmarkError
from tests.benchmarks.waiting import INTERVAL, NOTHING

_PROBE_SECONDS = 0.005


class Runner(TriggerRunner):
    """Runs triggers that are given to it here rather than by Airflow's database."""

    async def init_comms(self) -> None:
        forever = asyncio.create_task(asyncio.Event().wait())
        self.comms_decoder: Any = SimpleNamespace(_reader_task=forever)

    async def sync_state_to_supervisor(self, finished_ids: list[int]) -> None:
        pass

    def add(self, number: int, trigger: BaseTrigger) -> None:
        """Start a trigger as ``create_triggers`` does."""
        name = f"wait {number}"
        self.triggers[number] = {
            "task": asyncio.create_task(self.run_trigger(number, trigger), name=name),
            "is_watcher": True,
            "name": name,
            "events": 0,
        }

    def check(self, count: int) -> None:
        """Raise where another number waits: a trigger has fired or failed."""
        waiting = 0
        for trigger in self.triggers.values():
            has_fired = trigger["events"] > 0
            if not has_fired and not trigger["task"].done():
                waiting += 1
        if waiting != count:
            raise BenchmarkError(f"{waiting} of {count} triggers wait")


class _Nothing(BaseTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}._Nothing", {}

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        await asyncio.Event().wait()
        yield TriggerEvent(None)


@asynccontextmanager
async def running() -> AsyncIterator[Runner]:
    """Run the runner's loop for as long as the context lasts; its log is kept short."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.disable(logging.WARNING)
    runner = Runner()
    loop = asyncio.create_task(runner.arun())
    await asyncio.sleep(0.1)
    try:
        yield runner
    finally:
        waits = [trigger["task"] for trigger in runner.triggers.values()]
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        runner.stop = True
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


def start(runner: Runner, trigger: str, jobs: range) -> None:
    """Start the waits, all at once."""
    for job in jobs:
        if trigger == NOTHING:
            runner.add(job, _Nothing())
        else:
            runner.add(job, _wait_for(job))


def _wait_for(job: int) -> BaseTrigger:
    """Make a trigger that waits for the form of a job, as a sensor that has just found nothing."""
    now = time.time()
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    service = settings_from(Connection.get_connection_from_secrets("bench")).service
    wait_state = WaitState(service, now, now + 86_400.0, None, now, [])
    return FsmFormTrigger(
        fsm_conn_id="bench",
        filters={"job_id": str(job), "created_since": today.isoformat()},
        minimum_forms=1,
        form_names=[],
        query_params=None,
        poll_interval=INTERVAL,
        failure_tolerance=600.0,
        wait=asdict(wait_state),
    )


async def lags(seconds: float) -> list[float]:
    """Give how much later than asked the loop woke this up, again and again, in ms, ascending."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    milliseconds: list[float] = []
    while True:
        due = clock() + _PROBE_SECONDS
        if due >= end:
            return sorted(milliseconds)
        await asyncio.sleep(_PROBE_SECONDS)
        milliseconds.append((clock() - due) * 1000)
