"""What many forms cost in the triggerer: the stand-still of its loop, and a watcher's restart."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from airflow.models import Connection

from fsm_provider.hooks.connection import settings_from
from fsm_provider.polling import feed, watcher
from fsm_provider.polling.waits import Wait, WaitState
from fsm_provider.polling.watcher_config import WatcherConfig
from fsm_provider.triggers.forms import FsmFormTrigger
from tests.benchmarks import triggerer
from tests.benchmarks.case import BenchmarkError

_INTERVAL = 10.0
"""Seconds between two polls: those who come later are given all forms after as many."""
_WARM_UP_SECONDS = 4.0
_SETTLES = 3.0


async def stand_still(waits: int, forms: int) -> float:
    """Give the longest delay of the loop, in ms, while waits for the whole account get the forms.

    What the first wait imports is not measured, nor what Python's garbage collector does with all
    of it: that takes some 160 ms, each time that as much as a quarter has been added.
    """
    async with triggerer.running() as runner:
        runner.add(0, _for_the_account(forms))
        await asyncio.sleep(_WARM_UP_SECONDS)
        gc.freeze()
        for number in range(1, waits):
            runner.add(number, _for_the_account(forms))
            await asyncio.sleep(0)
        ((polling,),) = [feeds.values() for feeds in feed._feeds.values()]
        subscribers = [
            subscriber for subscriber in polling._subscriptions if isinstance(subscriber, Wait)
        ]
        worst = 0.0
        while min(len(subscriber.names_by_id) for subscriber in subscribers) < forms:
            lags = await triggerer.lags(1.0)
            worst = max(worst, lags[-1])
            runner.check(waits)
    return worst


def _for_the_account(forms: int) -> FsmFormTrigger:
    """Make a trigger that waits for one form more than there are, and knows none."""
    now = time.time()
    service = settings_from(Connection.get_connection_from_secrets("bench")).service
    wait_state = WaitState(service, now, now + 86_400.0, polled_at=now)
    return FsmFormTrigger(
        fsm_conn_id="bench",
        filters={"created_since": "2026-01-01T00:00:00+00:00"},
        minimum_forms=forms + 1,
        form_names=[],
        query_params=None,
        poll_interval=_INTERVAL,
        failure_tolerance=600.0,
        wait=asdict(wait_state),
    )


class _Store:
    """What is stored with an asset; counts the reads."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.reads = 0

    async def aget(self, key: str) -> Any:
        self.reads += 1
        return json.loads(self.rows[key]) if key in self.rows else None

    async def aset(self, key: str, value: Any) -> None:
        self.rows[key] = json.dumps(value)


async def restart(forms: int) -> dict[str, int]:
    """Have a watcher emit forms from the beginning; give the rows, and the reads of its restart."""
    watcher.SETTLES = 0.0
    watcher.EVENT_INTERVAL = 0.0
    store = _Store()
    config = WatcherConfig(
        asset_name="bench",
        fsm_conn_id="bench",
        filters={},
        property_ids=[],
        job_ids=[],
        form_names=[],
        query_params=None,
        poll_interval=_INTERVAL,
        max_forms_per_event=1000,
        start_from="beginning",
        late_by=7 * 86_400.0,
    )
    await watcher.AssetEvents("bench", store).configure(asdict(config))
    emitted = await _watch(store, forms)
    rows = len(store.rows)
    store.reads = 0
    again = await _watch(store, 0)
    if emitted != forms or again != 0:
        raise BenchmarkError(f"{emitted} forms were emitted, and {again} after the restart")
    return {"reads": store.reads, "rows": rows}


async def _watch(store: _Store, forms: int) -> int:
    """Run a watcher until it has emitted so many forms, and some seconds more; return how many."""
    emitted: list[int] = []

    async def run() -> None:
        running = watcher.AssetEvents("bench", store)
        async with aclosing(running.events()) as events:
            async for event in events:
                emitted.extend(form["id"] for form in event["forms"])
                running.watcher.confirm()

    task = asyncio.create_task(run())
    while len(emitted) < forms:
        await asyncio.sleep(0.1)
    await asyncio.sleep(_SETTLES)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return len(emitted)
