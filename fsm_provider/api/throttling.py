"""``max_requests_per_second``: evenly spaced times, which all clients of this process share."""

import threading
import time

_next_times: dict[str, float] = {}
"""By the base URL of a service, the first time that is free."""
_reserving = threading.Lock()


def reserve_time(base_url: str, per_second: float) -> float:
    """Reserve the next of a service's evenly spaced times; return the seconds until then."""
    with _reserving:
        now = time.monotonic()
        reserved = max(now, _next_times.get(base_url, 0.0))
        _next_times[base_url] = reserved + 1 / per_second
        return reserved - now
