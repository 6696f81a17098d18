"""What a case is made of: what it measures, and the rows that the rounds come to.

A case is a module with three functions: ``tasks(extent, port)`` names what one round measures, and
gives the arguments; ``measure`` does one of them in a process of its own; ``rows(extent, rounds)``
gives the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

Tasks = dict[str, dict[str, Any]]
"""The arguments of ``measure``, by key."""
Round = dict[str, Any]
"""What each task of one round has measured, by the task's key."""
WAITS = "waits for its turn"
"""What the process of a task prints before it reads the line that gives it its turn."""


class BenchmarkError(Exception):
    """A measured process failed, or did not do the work that it was to be measured at."""


def least_cpu(run: Callable[[], object], times: int = 3) -> float:
    """Give the CPU seconds of the quietest of some runs.

    What else the machine does only adds to them. Each run is a turn of its own, as a machine is
    faster in one minute than in the next.
    """
    taken: list[float] = []
    for _ in range(times):
        print(WAITS, flush=True)
        input()
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return min(taken)


def values_of(rounds: Sequence[Round], task: str, name: str = "") -> list[float]:
    """Give what a task has measured in each round; of several figures, that of a name."""
    measured = [each[task] for each in rounds]
    if not name:
        return measured
    return [figures[name] for figures in measured]


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Divide the values of each round."""
    return [dividend / divisor for dividend, divisor in zip(over, under, strict=True)]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much work the cases do.

    :param sizes: pages of the listings, ascending.
    :param jobs: how many are created.
    :param rows: of a large ledger.
    :param waits: how many triggers wait at once, ascending.
    :param wait_seconds: how long the waiting is measured.
    :param exports: pages of the listings that are exported, ascending.
    :param deliveries: how many webhooks are delivered.
    """

    sizes: tuple[int, ...] = (10, 200, 1000)
    jobs: int = 1000
    rows: int = 10_000
    waits: tuple[int, ...] = (1000, 10_000)
    wait_seconds: float = 8.0
    exports: tuple[int, ...] = (1000, 10_000)
    deliveries: int = 3000


QUICK = Extent(
    sizes=(5, 40),
    jobs=100,
    rows=1000,
    waits=(20,),
    wait_seconds=3.0,
    exports=(5, 40),
    deliveries=150,
)


@dataclass(frozen=True, slots=True)
class Goal:
    """What the median of the rounds is held against, or each round."""

    at_most: float | None = None
    at_least: float | None = None
    never_above: float | None = None

    def is_met_by(self, values: Sequence[float]) -> bool:
        if self.at_most is not None and median(values) > self.at_most:
            return False
        if self.at_least is not None and median(values) < self.at_least:
            return False
        return self.never_above is None or max(values) <= self.never_above

    def __str__(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        if self.never_above is not None:
            return f"max <= {self.never_above:g}"
        return f"<= {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a value of each round. The unit of a ratio is ``x``."""

    section: str
    what: str
    unit: str
    values: list[float]
    goal: Goal | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "min": min(self.values),
            "median": median(self.values),
            "max": max(self.values),
            "goal": str(self.goal) if self.goal else None,
            "met": self.goal.is_met_by(self.values) if self.goal else None,
        }
