"""What a wait costs in the triggerer: requests, CPU, delay of its event loop, memory.

Against the triggers of the HTTP provider. ``HttpSensor`` is measured
as one process, which it needs for each wait unless it defers.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Sequence

from tests.benchmarks.case import Case, Extent
from tests.benchmarks.resident import resident_mib
from tests.benchmarks.results import Goal, Round, Row, ratios
from tests.benchmarks.rounds import BenchmarkError, Task
from tests.benchmarks.server import TOKEN, Service

_SHARED, _NOTHING, _IDLE, _PROCESS = "shared", "nothing", "idle", "process"
_BUSY = "shared_busy"
_LABELS = {
    _SHARED: "FsmFormTrigger, shared",
    _BUSY: "FsmFormTrigger, shared, with a new form each second",
    "http_event": "HttpEventTrigger",
    "http_sensor": "HttpSensorTrigger",
    _NOTHING: "a trigger that does nothing",
}
_FIRST_JOB = 10_000_000
_FORM_EVERY = 10.0
"""Seconds; 8,640 forms a day."""
_MOST_OF_OTHERS = 1000
"""Waits that each send requests of their own: more of them would measure the service."""
_WARM_UP_SECONDS = 4.0
_TRACED_SECONDS = 6.0
_GOALS: dict[str, Goal] = {
    "requests": Goal(at_most=1),
    "lag": Goal(at_most=10),
    "kib": Goal(at_most=2),
    "core": Goal(at_most=5),
}


def measure(port: int, variant: str, waits: int, seconds: float) -> dict[str, float]:
    """Measure so many waits: requests and CPU for some seconds, then the delays for half as many."""
    _provide(port, variant)
    return asyncio.run(_measure(Service(port), variant, waits, seconds))


async def _measure(service: Service, variant: str, waits: int, seconds: float) -> dict[str, float]:
    from tests.benchmarks import triggerer
    from tests.benchmarks.clients import waits as made

    async with triggerer.running() as runner:
        jobs = range(_FIRST_JOB, _FIRST_JOB + waits)
        if waits:
            await triggerer.start(runner, getattr(made, variant), jobs, made.INTERVAL)
        await asyncio.sleep(_WARM_UP_SECONDS)
        before, began, cpu = service.counts(), time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        cpu, took = time.process_time() - cpu, time.perf_counter() - began
        requests = service.counts().requests - before.requests
        lags = await triggerer.lags(seconds / 2)
        runner.check(waits)
    return {
        "requests": requests * made.INTERVAL / took,
        "core": cpu / took * 100,
        "lag": lags[int(len(lags) * 0.99)],
    }


def memory(port: int, variant: str, waits: int) -> float:
    """Give the KiB that each of so many waits holds, by what Python has allocated for them."""
    _provide(port, variant)
    return asyncio.run(_memory(variant, waits))


async def _memory(variant: str, waits: int) -> float:
    from tests.benchmarks import triggerer
    from tests.benchmarks.clients import waits as made

    tracemalloc.start()
    async with triggerer.running() as runner:
        await triggerer.start(runner, getattr(made, variant), range(_FIRST_JOB - 1, _FIRST_JOB), 0.0)
        await asyncio.sleep(_WARM_UP_SECONDS)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        jobs = range(_FIRST_JOB, _FIRST_JOB + waits)
        await triggerer.start(runner, getattr(made, variant), jobs, made.INTERVAL)
        await asyncio.sleep(_TRACED_SECONDS)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        runner.check(waits + 1)
    return (after - before) / waits / 1024


def poke(port: int, seconds: float) -> dict[str, float]:
    """Measure the process of one ``HttpSensor`` that polls once a second."""
    _provide(port, _PROCESS)
    from tests.benchmarks.clients import waits as made

    sensor, service = made.poked(_FIRST_JOB), Service(port)
    if sensor.poke({}):
        raise BenchmarkError("HttpSensor found a form that is not there")
    before, began, cpu = service.counts(), time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        sensor.poke({})
        time.sleep(made.INTERVAL)
    cpu, took = time.process_time() - cpu, time.perf_counter() - began
    requests = service.counts().requests - before.requests
    return {"requests": requests * made.INTERVAL / took, "core": cpu / took * 100, "mib": resident_mib()}


def _provide(port: int, variant: str) -> None:
    from tests.benchmarks.connections import provide

    kind = "fsm" if variant in (_SHARED, _BUSY) else "http"
    host = Service(port).growing(time.time(), 1.0 if variant == _BUSY else _FORM_EVERY)
    provide({"conn_type": kind, "host": host, "password": TOKEN})


def _variants(waits: int) -> list[str]:
    return list(_LABELS) if waits <= _MOST_OF_OTHERS else [_SHARED, _BUSY, _NOTHING]


def _tasks(extent: Extent, port: int) -> list[Task]:
    seconds, most = extent.wait_seconds, extent.waits[-1]
    runs = [(variant, waits) for waits in extent.waits for variant in _variants(waits)]
    return [
        *(
            Task(
                f"{variant} {waits}",
                "waiting:measure",
                {"port": port, "variant": variant, "waits": waits, "seconds": seconds},
            )
            for variant, waits in [(_IDLE, 0), *runs]
        ),
        *(
            Task(f"{variant} KiB", "waiting:memory", {"port": port, "variant": variant, "waits": most})
            for variant in _variants(most)
        ),
        Task(_PROCESS, "waiting:poke", {"port": port, "seconds": seconds}),
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    rows = []
    for waits in extent.waits:
        rows += _rows_for(rounds, waits, extent.waits[-1])
    rows += _memory_rows(rounds, extent.waits[-1])
    one = [("requests", "requests a second", ""), ("core", "CPU", "% core"), ("mib", "resident", "MiB")]
    return rows + [
        Row("a wait of HttpSensor that does not defer: a process", shown, unit, _of(rounds, _PROCESS, name))
        for name, shown, unit in one
    ]


def _rows_for(rounds: Sequence[Round], waits: int, most: int) -> list[Row]:
    section = f"{waits:,} waits in the triggerer, each polls once a second"
    keys = {f"{variant} {waits}": _LABELS[variant] for variant in _variants(waits)}
    held = f"{_SHARED} {waits}" if waits == most else None
    rows = [
        Row(section, f"{label}, {shown}", unit, _of(rounds, key, name), _GOALS[name] if key == held else None)
        for name, shown, unit in (
            ("requests", "requests a second", ""),
            ("lag", "delay of the loop, p99", "ms"),
        )
        for key, label in keys.items()
        if name != "requests" or not key.startswith(_NOTHING)
    ]
    rows.append(Row(section, "no trigger, delay of the loop, p99", "ms", _of(rounds, f"{_IDLE} 0", "lag")))
    rows += [Row(section, f"{label}, CPU", "% core", _of(rounds, key, "core")) for key, label in keys.items()]
    rows.append(Row(section, "no trigger, CPU", "% core", _of(rounds, f"{_IDLE} 0", "core")))

    def over(key: str, under: str) -> list[float]:
        return ratios(rounds, key, under, lambda task: task["core"])

    rows += [
        Row(section, f"{label}, CPU / no trigger", "x", over(key, f"{_IDLE} 0"))
        for key, label in keys.items()
    ]
    nothing = f"{_NOTHING} {waits}"
    for variant in (_SHARED, _BUSY):
        shared, label = f"{variant} {waits}", _LABELS[variant]
        above = [one[shared]["core"] - one[nothing]["core"] for one in rounds]
        goal = _GOALS["core"] if waits == most else None
        rows.append(Row(section, f"{label}, CPU above {_LABELS[_NOTHING]}", "% core", above, goal))
        if variant == _SHARED:
            rows.append(Row(section, f"{label}, CPU / {_LABELS[_NOTHING]}", "x", over(shared, nothing)))
    return rows


def _memory_rows(rounds: Sequence[Round], waits: int) -> list[Row]:
    section = f"memory of each of {waits:,} waits, tracemalloc"
    rows = [
        Row(
            section,
            label,
            "KiB",
            [measured[f"{variant} KiB"] for measured in rounds],
        )
        for variant, label in _LABELS.items()
        if variant in _variants(waits)
    ]
    beyond = [measured[f"{_SHARED} KiB"] - measured[f"{_NOTHING} KiB"] for measured in rounds]
    label = f"{_LABELS[_SHARED]}, beyond {_LABELS[_NOTHING]}"
    return [*rows, Row(section, label, "KiB", beyond, _GOALS["kib"])]


def _of(rounds: Sequence[Round], key: str, name: str) -> list[float]:
    return [measured[key][name] for measured in rounds]


CASE = Case(_tasks, _rows)
