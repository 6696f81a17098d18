"""Connections to the service and look-ups of the Airflow connection, for one listing."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks import clients, connections
from tests.benchmarks.case import Case, Extent
from tests.benchmarks.clients import HOOKS, OURS
from tests.benchmarks.listing import check
from tests.benchmarks.results import Goal, Round, Row
from tests.benchmarks.rounds import Task
from tests.benchmarks.server import Service

_COUNTED = {"connections": "connections to the service", "look_ups": "look-ups of the Airflow connection"}


def measure(port: int, variant: str, pages: int) -> dict[str, int]:
    """Count while so many pages are listed."""
    service, subject = Service(port), HOOKS[variant]
    function = clients.function_for(subject)
    before = service.counts()
    check(function(service.listing(0, pages)), subject, 0, pages)
    return {
        "connections": service.counts().connections - before.connections,
        "look_ups": connections.look_ups,
    }


def _pages(extent: Extent) -> int:
    return extent.sizes[1]


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [
        Task(variant, "counts:measure", {"port": port, "variant": variant, "pages": _pages(extent)})
        for variant in HOOKS
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    return [
        Row(
            f"{shown}, {_pages(extent)} pages",
            HOOKS[variant].label,
            "",
            [measured[variant][counted] for measured in rounds],
            Goal(at_most=1) if variant == OURS else None,
        )
        for counted, shown in _COUNTED.items()
        for variant in HOOKS
    ]


CASE = Case(_tasks, _rows)
