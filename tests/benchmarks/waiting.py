"""What a wait costs in the triggerer: requests, CPU, delay of its event loop, memory."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.case import Extent, Goal, Round, Row, Tasks
from tests.benchmarks.clients import connect
from tests.benchmarks.pages import FORMS_PER_PAGE
from tests.benchmarks.server import Service

OURS, NOTHING = "FsmFormTrigger", "a trigger that does nothing"
_FIRST_JOB = 10_000_000
_FORM_EVERY_MS = 10_000
"""8,640 forms a day."""
INTERVAL = 1.0
_WARM_UP_SECONDS = 4.0
_STAND_STILL, _RESTART = "stand-still", "restart"


def tasks(extent: Extent, port: int) -> Tasks:
    found: Tasks = {}
    for trigger in (OURS, NOTHING):
        for waits in extent.waits:
            common = {"port": port, "trigger": trigger, "waits": waits}
            found[f"{trigger} {waits}"] = common | {"seconds": extent.wait_seconds}
        found[f"{trigger} KiB"] = common | {"seconds": None}
    for case in (_STAND_STILL, _RESTART):
        found[case] = {
            "port": port,
            "trigger": case,
            "waits": extent.waits[0],
            "forms": _forms(extent),
        }
    return found


def _forms(extent: Extent) -> int:
    """20,000, of two hundred pages."""
    return FORMS_PER_PAGE * extent.sizes[-2]


def measure(
    port: int, trigger: str, waits: int, seconds: float | None = None, forms: int = 0
) -> Any:
    """Measure requests and CPU for some seconds, then the delays for half as many; None: the
    memory.
    """
    service = Service(port)
    if forms:
        connect("fsm", service.url(0, forms // FORMS_PER_PAGE))
        from tests.benchmarks import waiting_forms

        if trigger == _RESTART:
            return asyncio.run(waiting_forms.restart(forms))
        return asyncio.run(waiting_forms.stand_still(waits, forms))
    connect("fsm", service.url(int(time.time() * 1000), _FORM_EVERY_MS, kind="growing"))
    if seconds is None:
        return asyncio.run(_kib(trigger, waits))
    return asyncio.run(_costs(service, trigger, waits, seconds))


async def _costs(service: Service, trigger: str, waits: int, seconds: float) -> dict[str, float]:
    from tests.benchmarks import triggerer

    async with triggerer.running() as runner:
        came, began = service.requests(), time.perf_counter()
        triggerer.start(runner, trigger, range(_FIRST_JOB, _FIRST_JOB + waits))
        await asyncio.sleep(_WARM_UP_SECONDS)
        rested, began_rest, cpu = service.requests(), time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        cpu, took = time.process_time() - cpu, time.perf_counter() - began_rest
        requests = service.requests() - rested
        lags = await triggerer.lags(seconds / 2)
        runner.check(waits)
    return {
        "coming": rested - came - (began_rest - began) / INTERVAL,
        "requests": requests / took,
        "core": cpu / took * 100,
        "lag": lags[int(len(lags) * 0.99)],
    }


async def _kib(trigger: str, waits: int) -> float:
    """Give the KiB that each wait holds, by what Python has allocated for them."""
    from tests.benchmarks import triggerer

    tracemalloc.start()
    async with triggerer.running() as runner:
        triggerer.start(runner, trigger, range(_FIRST_JOB - 1, _FIRST_JOB))
        await asyncio.sleep(_WARM_UP_SECONDS)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        triggerer.start(runner, trigger, range(_FIRST_JOB, _FIRST_JOB + waits))
        await asyncio.sleep(_WARM_UP_SECONDS)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        runner.check(waits + 1)
    return (after - before) / waits / 1024


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    found = []
    for waits in extent.waits:
        section = f"{waits:,} waits in the triggerer, each polls once a second"
        measured = [one[f"{OURS} {waits}"] for one in rounds]
        for name, what, unit, most in (
            ("requests", "requests a second", "", 1),
            ("lag", "delay of the loop, p99", "ms", 10),
            ("coming", "all come at once: requests more than its polls", "", 3),
        ):
            values = [one[name] for one in measured]
            found.append(Row(section, f"{OURS}, {what}", unit, values, Goal(at_most=most)))
        above = [
            one[f"{OURS} {waits}"]["core"] - one[f"{NOTHING} {waits}"]["core"] for one in rounds
        ]
        found.append(Row(section, f"{OURS}, CPU above {NOTHING}", "% core", above, Goal(at_most=5)))
    section = f"memory of each of {extent.waits[-1]:,} waits, tracemalloc"
    beyond = [one[f"{OURS} KiB"] - one[f"{NOTHING} KiB"] for one in rounds]
    found.append(Row(section, f"{OURS}, beyond {NOTHING}", "KiB", beyond, Goal(at_most=2)))
    section = f"{_forms(extent):,} forms"
    what = f"the loop's longest stand-still, {extent.waits[0]:,} waits for the whole account"
    found.append(Row(section, what, "ms", [one[_STAND_STILL] for one in rounds], Goal(at_most=50)))
    for name, most in (("reads", 10), ("rows", 99)):
        what = f"{name} of what is stored with an asset that has emitted them, at a restart"
        found.append(
            Row(section, what, "", [one[_RESTART][name] for one in rounds], Goal(at_most=most))
        )
    return found
