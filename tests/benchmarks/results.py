"""What a benchmark comes to: rows of a table, each with the goal that it is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

Round = dict[str, Any]
"""What each task of one round has measured, by the task's key."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a median is held against.

    :param never_above: what no round may be above, beside ``at_most``.
    """

    at_most: float | None = None
    at_least: float | None = None
    never_above: float | None = None

    def is_met_by(self, values: Sequence[float]) -> bool:
        """Hold the values of all rounds against the goal."""
        middle = median(values)
        return (
            (self.at_most is None or middle <= self.at_most)
            and (self.at_least is None or middle >= self.at_least)
            and (self.never_above is None or max(values) <= self.never_above)
        )

    def __str__(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" + (f", max {self.never_above:g}" if self.never_above else "")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a value of each round.

    :param unit: ``x`` for a ratio.
    """

    section: str
    what: str
    unit: str
    values: list[float]
    goal: Goal | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the row as JSON values."""
        return {
            **asdict(self),
            "min": min(self.values),
            "median": median(self.values),
            "max": max(self.values),
            "goal": str(self.goal) if self.goal else None,
            "met": self.goal.is_met_by(self.values) if self.goal else None,
        }


def ratios(
    rounds: Sequence[Round], over: str, under: str, pick: Callable[[Any], float] = lambda cpu: cpu
) -> list[float]:
    """Divide what one task measured by what another did, inside each round."""
    return [pick(measured[over]) / pick(measured[under]) for measured in rounds]
