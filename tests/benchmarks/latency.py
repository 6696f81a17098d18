"""Wall time of a listing whose pages take a while, against what the chain of cursors makes of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.benchmarks import clients
from tests.benchmarks.case import Case, Extent
from tests.benchmarks.clients import LISTINGS, OURS, REFERENCE
from tests.benchmarks.listing import check
from tests.benchmarks.results import Goal, Round, Row
from tests.benchmarks.rounds import Task
from tests.benchmarks.server import Service

_LATENCY_MS = 50
_GOALS = {OURS: Goal(at_most=1.05), REFERENCE: None}


def measure(port: int, variant: str, pages: int) -> float:
    """Give the wall time, in units of pages x latency."""
    service, subject = Service(port), LISTINGS[variant]
    function = clients.function_for(subject)
    check(function(service.listing(0, 1)), subject, 0, 1)
    start = time.perf_counter()
    check(function(service.listing(0, pages, _LATENCY_MS)), subject, 0, pages)
    return (time.perf_counter() - start) / (pages * _LATENCY_MS / 1000)


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [
        Task(variant, "latency:measure", {"port": port, "variant": variant, "pages": extent.latency_pages})
        for variant in _GOALS
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    return [
        Row(
            f"wall time, {extent.latency_pages} pages of {_LATENCY_MS} ms",
            f"{LISTINGS[variant].label} / (pages x latency)",
            "x",
            [measured[variant] for measured in rounds],
            goal,
        )
        for variant, goal in _GOALS.items()
    ]


CASE = Case(_tasks, _rows)
