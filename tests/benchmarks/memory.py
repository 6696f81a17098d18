"""Memory of a streaming listing above where it started."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence

from tests.benchmarks import clients
from tests.benchmarks.case import Case, Extent
from tests.benchmarks.clients import LISTINGS, OURS, REFERENCE
from tests.benchmarks.listing import check
from tests.benchmarks.resident import peak_mib, reset_peak, resident_mib
from tests.benchmarks.results import Goal, Round, Row
from tests.benchmarks.rounds import Task
from tests.benchmarks.server import Service

_MIB = 2**20
_WAYS = {"resident": "RSS", "traced": "tracemalloc"}
_FLAT = Goal(at_most=0.25)


def measure(port: int, variant: str, pages: int, way: str) -> float:
    """Give the peak above the start, which is after a first page, in MiB."""
    service, subject = Service(port), LISTINGS[variant]
    function = clients.function_for(subject)
    check(function(service.listing(0, 1)), subject, 0, 1)
    gc.collect()
    if way == "traced":
        tracemalloc.start()
        check(function(service.listing(0, pages)), subject, 0, pages)
        return tracemalloc.get_traced_memory()[1] / _MIB
    reset_peak()
    start = resident_mib()
    check(function(service.listing(0, pages)), subject, 0, pages)
    return peak_mib() - start


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [
        Task(
            f"{variant} {way} {size}",
            "memory:measure",
            {"port": port, "variant": variant, "pages": size, "way": way},
        )
        for variant, way, size in [
            *((OURS, way, size) for way in _WAYS for size in extent.sizes),
            (REFERENCE, "resident", extent.sizes[-1]),
        ]
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    section, ours = "peak memory above start, streaming", LISTINGS[OURS].label
    smallest, largest = extent.sizes[0], extent.sizes[-1]
    rows = []
    for way, shown in _WAYS.items():
        for size in extent.sizes:
            peaks = [measured[f"{OURS} {way} {size}"] for measured in rounds]
            rows.append(Row(section, f"{ours}, {size} pages, {shown}", "MiB", peaks, Goal(at_most=2)))
        growth = [
            measured[f"{OURS} {way} {largest}"] - measured[f"{OURS} {way} {smallest}"] for measured in rounds
        ]
        rows.append(Row(section, f"{ours}, {largest} pages less {smallest}, {shown}", "MiB", growth, _FLAT))
    peaks = [measured[f"{REFERENCE} resident {largest}"] for measured in rounds]
    rows.append(Row(section, f"{LISTINGS[REFERENCE].label}, {largest} pages, RSS", "MiB", peaks))
    return rows


CASE = Case(_tasks, _rows)
