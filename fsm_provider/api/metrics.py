"""What is counted and measured. Nothing is done with it here; Airflow's are in ``fsm_provider.metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fsm_provider.api.errors import FsmError


class Metrics:
    """Takes counts and measurements, and drops them."""

    def incr(self, name: str, count: int = 1, **tags: str) -> None:
        """Add to a counter.

        :param name: without the prefix ``fsm.`` of all.
        """

    def gauge(self, name: str, value: float, **tags: str) -> None:
        """Set a gauge."""

    def timing(self, name: str, seconds: float, **tags: str) -> None:
        """Record a duration."""


@contextmanager
def counted_write(metrics: Metrics) -> Iterator[Callable[[Any], Any]]:
    """Count the outcome of one write: ``created``, ``existing``, ``uncertain`` or ``not_created``.

    :return: a function to pass the result of a request through: it was created now.
    """
    outcome = "existing"

    def created(result: Any) -> Any:
        nonlocal outcome
        outcome = "created"
        return result

    try:
        yield created
    except FsmError as error:
        metrics.incr("writes", outcome="uncertain" if error.may_have_written else "not_created")
        raise
    metrics.incr("writes", outcome=outcome)
