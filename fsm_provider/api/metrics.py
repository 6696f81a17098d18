"""What is counted and measured. Nothing is done with it here; Airflow's are in ``fsm_provider.metrics``."""

from __future__ import annotations


class Metrics:
    """Takes counts and measurements, and drops them."""

    def incr(self, name: str, count: int = 1, **tags: str) -> None:
        """Add to a counter.

        :param name: without the prefix ``fsm.`` of all.
        """

    def timing(self, name: str, seconds: float, **tags: str) -> None:
        """Record a duration."""
