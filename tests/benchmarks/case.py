"""The parts of a benchmark, and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.benchmarks.results import Round, Row
from tests.benchmarks.rounds import Task


@dataclass(frozen=True, slots=True)
class Extent:
    """How much work the benchmarks do.

    :param sizes: pages of the listings, ascending.
    :param jobs: how many are created.
    :param rows: of a large ledger.
    :param latency_pages: pages of the listing with latency.
    :param modes: whether forms are streamed, or collected in a list.
    :param modules_per_folder: how many are imported; None: all.
    :param waits: how many triggers wait at once, ascending.
    :param simulated: how many waits the simulated polls are for, ascending.
    :param wait_seconds: how long the waiting is measured.
    :param sensors: how many wait on a real Airflow.
    :param exports: pages of the listings that are exported, ascending.
    """

    sizes: tuple[int, ...] = (10, 200, 1000)
    jobs: int = 1000
    rows: int = 10_000
    latency_pages: int = 40
    modes: tuple[str, ...] = ("stream", "collect")
    modules_per_folder: int | None = None
    waits: tuple[int, ...] = (1000, 10_000)
    simulated: tuple[int, ...] = (10_000, 100_000)
    wait_seconds: float = 8.0
    sensors: int = 20
    exports: tuple[int, ...] = (1000, 10_000)


QUICK = Extent(
    sizes=(5, 40),
    jobs=100,
    rows=1000,
    latency_pages=8,
    modes=("stream",),
    modules_per_folder=1,
    waits=(20,),
    simulated=(1000,),
    wait_seconds=3.0,
    sensors=3,
    exports=(5, 40),
)


class Case(NamedTuple):
    """A benchmark.

    :param tasks: what one round measures, given the service's port.
    :param rows: what the rounds come to.
    :param costs: what single variants cost, for the plot.
    """

    tasks: Callable[[Extent, int], list[Task]]
    rows: Callable[[Extent, Sequence[Round]], list[Row]]
    costs: Callable[[Extent, Sequence[Round]], list[dict[str, Any]]] = lambda extent, rounds: []
