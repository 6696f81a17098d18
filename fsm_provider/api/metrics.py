"""What the client counts and measures. Airflow's metrics are in ``fsm_provider.metrics``."""


class Metrics:
    """Takes counts and durations, and drops them. A subclass sends them to Airflow."""

    def incr(self, name: str, count: int = 1, **tags: str) -> None:
        """Add to a counter; ``name`` is without the prefix ``fsm.``."""

    def timing(self, name: str, seconds: float, **tags: str) -> None:
        """Record a duration."""
