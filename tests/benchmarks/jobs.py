"""CPU of creating jobs one after another, against other clients."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks import pages
from tests.benchmarks.case import (
    BenchmarkError,
    Extent,
    Goal,
    Round,
    Row,
    Tasks,
    least_cpu,
    ratios,
    values_of,
)
from tests.benchmarks.clients import CREATIONS, OURS, hide_simplejson
from tests.benchmarks.server import Service

_GOALS = {
    "requests.Session": 0.65,
    "HttpHook, one instance": 0.55,
    "HttpOperator": 0.35,
}


def tasks(extent: Extent, port: int) -> Tasks:
    common = {"port": port, "count": extent.jobs}
    return {client: {**common, "client": client} for client in CREATIONS}


def measure(port: int, client: str, count: int) -> float:
    """Create so many jobs, after one that is not counted, and give the CPU seconds."""
    hide_simplejson()
    base_url = Service(port).url(0, 0)
    create_jobs = CREATIONS[client]
    list(create_jobs(base_url, [(0, pages.job_payload(0))]))
    payloads = [(property_id, pages.job_payload(property_id)) for property_id in range(count)]

    def create() -> None:
        created = list(create_jobs(base_url, payloads))
        if created != [pages.job_id(property_id) for property_id in range(count)]:
            raise BenchmarkError(f"{client}: {len(created)} jobs, not those asked for")

    return least_cpu(create)


def rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    section = f"{extent.jobs:,} jobs, one after another"
    ours = values_of(rounds, OURS)
    table: list[Row] = []
    for peer, most in _GOALS.items():
        values = ratios(ours, values_of(rounds, peer))
        table.append(Row(section, f"{OURS} / {peer}", "x", values, Goal(at_most=most)))
    return table
