"""What a wait costs in the triggerer: requests, CPU, delay of its event loop, memory."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.case import Extent, Goal, Round, Row, Tasks, values_of
from tests.benchmarks.clients import connect
from tests.benchmarks.pages import FORMS_PER_PAGE
from tests.benchmarks.server import Service

OURS = "FsmFormTrigger"
NOTHING = "a trigger that does nothing"
_FIRST_JOB = 10_000_000
_FORM_EVERY_MS = 10_000
"""8,640 forms a day."""
INTERVAL = 1.0
_WARM_UP_SECONDS = 4.0
_STAND_STILL = "stand-still"
_RESTART = "restart"


def tasks(extent: Extent, port: int) -> Tasks:
    wanted: Tasks = {}
    for trigger in (OURS, NOTHING):
        for waits in extent.waits:
            wanted[f"{trigger} {waits}"] = {
                "port": port,
                "trigger": trigger,
                "waits": waits,
                "seconds": extent.wait_seconds,
            }
        wanted[f"{trigger} KiB"] = {
            "port": port,
            "trigger": trigger,
            "waits": extent.waits[-1],
            "seconds": None,
        }
    for case in (_STAND_STILL, _RESTART):
        wanted[case] = {
            "port": port,
            "trigger": case,
            "waits": extent.waits[0],
            "forms": _forms(extent),
        }
    return wanted


def _forms(extent: Extent) -> int:
    """20,000, of two hundred pages."""
    return FORMS_PER_PAGE * extent.sizes[-2]


def measure(
    port: int,
    trigger: str,
    waits: int,
    seconds: float | None = None,
    forms: int = 0,
) -> Any:
    """Measure requests and CPU for some seconds, then the delays for half as many.

    :param seconds: None: the memory is measured instead.
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
        requests_before = service.requests()
        started_at = time.perf_counter()
        triggerer.start(runner, trigger, range(_FIRST_JOB, _FIRST_JOB + waits))
        await asyncio.sleep(_WARM_UP_SECONDS)
        requests_warm = service.requests()
        warm_at = time.perf_counter()
        cpu_warm = time.process_time()
        await asyncio.sleep(seconds)
        cpu = time.process_time() - cpu_warm
        took = time.perf_counter() - warm_at
        requests = service.requests() - requests_warm
        lags = await triggerer.lags(seconds / 2)
        runner.check(waits)
    polls_until_warm = (warm_at - started_at) / INTERVAL
    return {
        "coming": requests_warm - requests_before - polls_until_warm,
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
    table: list[Row] = []
    for waits in extent.waits:
        table += _rows_of_waits(waits, rounds)
    section = f"memory of each of {extent.waits[-1]:,} waits, tracemalloc"
    kib = differences(values_of(rounds, f"{OURS} KiB"), values_of(rounds, f"{NOTHING} KiB"))
    table.append(Row(section, f"{OURS}, beyond {NOTHING}", "KiB", kib, Goal(at_most=2)))
    section = f"{_forms(extent):,} forms"
    label = f"the loop's longest stand-still, {extent.waits[0]:,} waits for the whole account"
    table.append(Row(section, label, "ms", values_of(rounds, _STAND_STILL), Goal(at_most=50)))
    stored = "of what is stored with an asset that has emitted them, at a restart"
    reads = values_of(rounds, _RESTART, "reads")
    table.append(Row(section, f"reads {stored}", "", reads, Goal(at_most=11)))
    stored_rows = values_of(rounds, _RESTART, "rows")
    table.append(Row(section, f"rows {stored}", "", stored_rows, Goal(at_most=99)))
    return table


def _rows_of_waits(waits: int, rounds: Sequence[Round]) -> list[Row]:
    section = f"{waits:,} waits in the triggerer, each polls once a second"
    ours = f"{OURS} {waits}"
    requests = values_of(rounds, ours, "requests")
    lag = values_of(rounds, ours, "lag")
    coming = values_of(rounds, ours, "coming")
    cpu = differences(
        values_of(rounds, ours, "core"),
        values_of(rounds, f"{NOTHING} {waits}", "core"),
    )
    all_at_once = "all come at once: requests more than its polls"
    return [
        Row(section, f"{OURS}, requests a second", "", requests, Goal(at_most=1)),
        Row(section, f"{OURS}, delay of the loop, p99", "ms", lag, Goal(at_most=10)),
        Row(section, f"{OURS}, {all_at_once}", "", coming, Goal(at_most=3)),
        Row(section, f"{OURS}, CPU above {NOTHING}", "% core", cpu, Goal(at_most=5)),
    ]


def differences(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value - other for value, other in zip(values, others, strict=True)]
