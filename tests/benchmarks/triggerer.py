"""Airflow's own runner of triggers in this process: its loop and its shared streams, but no supervisor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import structlog
from airflow.jobs.triggerer_job_runner import TriggerRunner

from tests.benchmarks.rounds import BenchmarkError

_PROBE_SECONDS = 0.005


class Runner(TriggerRunner):
    """Runs triggers that are given to it here rather than by Airflow's database."""

    async def init_comms(self) -> None:
        """Run without a supervisor."""
        forever = asyncio.create_task(asyncio.Event().wait())
        self.comms_decoder: Any = SimpleNamespace(_reader_task=forever)

    async def sync_state_to_supervisor(self, finished_ids: list[int]) -> None:
        """Do nothing."""

    def add(self, number: int, trigger: Any) -> None:
        """Start a trigger as ``create_triggers`` does."""
        self.triggers[number] = {
            "task": asyncio.create_task(self.run_trigger(number, trigger), name=f"wait {number}"),
            "is_watcher": True,
            "name": f"wait {number}",
            "events": 0,
        }

    def check(self, count: int) -> None:
        """Check that so many wait, and none has fired or failed.

        :raises BenchmarkError: otherwise.
        """
        waiting = [one for one in self.triggers.values() if not one["task"].done() and not one["events"]]
        if len(waiting) != count:
            raise BenchmarkError(f"{len(waiting)} of {count} triggers wait")


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
        tasks = [one["task"] for one in runner.triggers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        runner.stop = True
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def start(runner: Runner, make: Callable[[int], Any], numbers: range, within: float) -> None:
    """Start triggers, spread over so many seconds."""
    began = time.monotonic()
    for done, number in enumerate(numbers):
        runner.add(number, make(number))
        if (early := began + within * done / len(numbers) - time.monotonic()) > 0:
            await asyncio.sleep(early)


async def lags(seconds: float) -> list[float]:
    """Give how much later than asked the loop woke this up, again and again, in ms, ascending."""
    clock = asyncio.get_running_loop().time
    end, seen = clock() + seconds, []
    while (due := clock() + _PROBE_SECONDS) < end:
        await asyncio.sleep(_PROBE_SECONDS)
        seen.append((clock() - due) * 1000)
    return sorted(seen)
