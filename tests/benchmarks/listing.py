"""CPU of listing forms, against other clients: streaming them, and collecting them in a list."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from operator import attrgetter, itemgetter
from typing import Any

from tests.benchmarks import clients, pages
from tests.benchmarks.case import Case, Extent
from tests.benchmarks.clients import LIMIT, LISTINGS, OURS, REFERENCE, Variant
from tests.benchmarks.results import Goal, Round, Row, ratios
from tests.benchmarks.rounds import BenchmarkError, Task
from tests.benchmarks.server import Service

_PAGES_MEASURED = 200
_COMPARED = (
    (OURS, REFERENCE, Goal(at_most=0.80, never_above=1.0)),
    ("hook", OURS, Goal(at_least=1.7)),
    ("hook_typed", OURS, Goal(at_least=2.2)),
    ("operator", OURS, Goal(at_least=2.8)),
    ("operator_typed", OURS, Goal(at_least=5)),
    ("dlt", OURS, Goal(at_least=2.8)),
    (OURS, LIMIT, None),
)


def measure(port: int, variant: str, sizes: Sequence[int], collects: bool) -> dict[str, Any]:
    """List so many pages each, in a process that has imported ``airflow.sdk``, as a task's has.

    A small size is measured over several listings of other pages. What a process does only once (building
    schemas, reading configuration) goes with a listing of one page, which is measured by itself.
    """
    service = Service(port)
    subject = clients.LISTINGS[variant]
    function = clients.function_for(subject)
    import_module("airflow.sdk")

    def cpu_for(first: int, stop: int) -> float:
        start = time.process_time()
        check(function(service.listing(first, stop)), subject, first, stop, collects=collects)
        return time.process_time() - start

    measured: dict[str, Any] = {"first_page": cpu_for(0, 1)}
    for size in sizes:
        gc.collect()
        before = service.counts()
        starts = range(0, min(max(_PAGES_MEASURED, size), max(sizes)) - size + 1, size)
        collections = gc.get_stats()[2]["collections"]
        cpu = sum(cpu_for(first, first + size) for first in starts)
        collections = gc.get_stats()[2]["collections"] - collections
        connections = service.counts().connections - before.connections
        measured[str(size)] = {
            "cpu": cpu / len(starts),
            "connections": connections / len(starts),
            "collections": collections / len(starts),
        }
    return measured


def check(forms: Iterable[Any], variant: Variant, first: int, stop: int, *, collects: bool = False) -> None:
    """Go through the forms of a listing, or collect them first.

    :raises BenchmarkError: where they are not the forms of these pages.
    """
    get_id: Callable[[Any], int] = attrgetter("id") if variant.typed else itemgetter("id")
    count = total = 0
    for form in list(forms) if collects else forms:
        count += 1
        total += get_id(form)
    if (count, total) != ((stop - first) * pages.FORMS_PER_PAGE, pages.sum_of_form_ids(first, stop)):
        raise BenchmarkError(f"{variant.label}: {count} forms with the sum {total}, pages {first} to {stop}")


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [
        Task(
            f"{variant} {mode}",
            "listing:measure",
            {"port": port, "variant": variant, "sizes": extent.sizes, "collects": mode == "collect"},
        )
        for variant in LISTINGS
        for mode in extent.modes
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    rows = [
        Row(
            f"listing, {mode}, {size:,} pages",
            f"{LISTINGS[over].label} / {LISTINGS[under].label}",
            "x",
            _ratios(rounds, over, under, mode, size),
            goal if mode == "stream" else None,
        )
        for mode in extent.modes
        for size in extent.sizes
        for over, under, goal in _COMPARED
    ]
    most = extent.sizes[-1]
    for variant, goal in ((OURS, Goal(at_most=0)), (REFERENCE, None)):
        counted = [measured[f"{variant} stream"][str(most)]["collections"] for measured in rounds]
        rows.append(
            Row(f"full garbage collections, {most:,} pages", LISTINGS[variant].label, "", counted, goal)
        )
    for variant in (OURS, REFERENCE):
        cost = [measured[f"{variant} stream"]["first_page"] * 1000 for measured in rounds]
        rows.append(Row("listing, the first page of a process", LISTINGS[variant].label, "ms", cost))
    return rows


def _ratios(rounds: Sequence[Round], over: str, under: str, mode: str, size: int) -> list[float]:
    return ratios(rounds, f"{over} {mode}", f"{under} {mode}", lambda task: task[str(size)]["cpu"])


def _costs(extent: Extent, rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Give what streaming costs with each variant, by size."""
    return [
        {
            "label": variant.label,
            "pages": size,
            "us_per_form": [
                task[str(size)]["cpu"] / (size * pages.FORMS_PER_PAGE) * 1e6
                for task in (measured[f"{name} stream"] for measured in rounds)
            ],
            "ratio": _ratios(rounds, name, REFERENCE, "stream", size),
            "connections": rounds[0][f"{name} stream"][str(size)]["connections"],
        }
        for name, variant in LISTINGS.items()
        for size in extent.sizes
    ]


CASE = Case(_tasks, _rows, _costs)
