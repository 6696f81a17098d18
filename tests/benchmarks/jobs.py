"""CPU of creating jobs one after another, against other clients."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.benchmarks import clients, pages
from tests.benchmarks.case import Case, Extent
from tests.benchmarks.clients import CREATIONS, LIMIT, OURS, REFERENCE
from tests.benchmarks.results import Goal, Round, Row, ratios
from tests.benchmarks.rounds import BenchmarkError, Task
from tests.benchmarks.server import Service

_GOALS = {
    REFERENCE: Goal(at_most=0.75),
    "hook": Goal(at_most=0.5),
    "operator": Goal(at_most=0.3),
    LIMIT: None,
}


def measure(port: int, variant: str, count: int) -> float:
    """Create so many jobs, after one that is not counted, and give the CPU seconds."""
    base_url = Service(port).listing(0, 0)
    create = clients.function_for(CREATIONS[variant])

    def cpu_for(property_ids: range) -> float:
        payloads = [(property_id, pages.job_payload(property_id)) for property_id in property_ids]
        start = time.process_time()
        created = list(create(base_url, payloads))
        cpu = time.process_time() - start
        if created != [pages.job_id(property_id) for property_id in property_ids]:
            raise BenchmarkError(f"{CREATIONS[variant].label}: {len(created)} jobs, not those asked for")
        return cpu

    cpu_for(range(1))
    return cpu_for(range(count))


def _tasks(extent: Extent, port: int) -> list[Task]:
    return [
        Task(variant, "jobs:measure", {"port": port, "variant": variant, "count": extent.jobs})
        for variant in CREATIONS
    ]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    ours = CREATIONS[OURS].label
    return [
        Row(
            f"{extent.jobs:,} jobs, one after another",
            f"{ours} / {CREATIONS[peer].label}",
            "x",
            ratios(rounds, OURS, peer),
            goal,
        )
        for peer, goal in _GOALS.items()
    ]


CASE = Case(_tasks, _rows)
