"""An index of the deliveries of one asset in the last 24 hours, kept in the memory of one process."""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from fsm_provider.plugins.webhooks.settings import REMEMBERED_HOURS
from fsm_provider.plugins.webhooks.signature import DeliveryIdentity

CLOCK_MARGIN = timedelta(hours=1)
"""How far the clock may be set back without the index being loaded again."""
MAX_AGE = 10.0
"""Seconds after which so many new deliveries may wait to be read that it should not be done under a lock."""
ID_BITS = 40
"""Bits of an event's id; Airflow's ids have 32. The hash of a delivery takes the other 24."""
HOUR = 3600


class StoredEvent(NamedTuple):
    """An asset event; ``delivery`` and ``digest`` are None if it is no delivery."""

    id: int
    timestamp: datetime
    delivery: str | None
    digest: str | None


class DeliveryIndex:
    """Returns the ids of the events that may record a delivery: some too many, but none too few.

    Each delivery takes 16 bytes. The database decides what is stored: the index is filled from committed rows
    only, and every id that it returns has to be verified by its row.

    Deliveries of an asset are stored one after the other, so their ids ascend and whoever reads one has read
    all before it. Other events of the asset may appear later than events with greater ids, so the index
    continues after the last *delivery*.

    The hash of a key or digest differs between processes, so no sender can provoke collisions.
    """

    def __init__(self) -> None:
        self._last: StoredEvent | None = None
        self._since: datetime | None = None
        self._updated_at: float | None = None
        # By hour of the event, each a sorted array of hash and id in one number.
        self._hours: dict[int, array[int]] = {}
        self.lock: threading.Lock = threading.Lock()
        """Held while the index is used, and always taken before the lock on the asset's row."""

    @property
    def is_stale(self) -> bool:
        """Whether the next update may have to read many events."""
        return self._updated_at is None or time.monotonic() - self._updated_at > MAX_AGE

    def update(
        self,
        now: datetime,
        read_from_id: Callable[[int], Iterable[StoredEvent]],
        read_since: Callable[[datetime], Iterable[StoredEvent]],
    ) -> None:
        """Read the deliveries that were stored since the last update, and forget old ones.

        All deliveries of the last 24 hours are read again if the last known one is no longer stored, as ids
        may then be used again, or if the clock was set back. The next update continues one that failed.

        :param read_from_id: returns the asset's events from this id on, sorted by id.
        :param read_since: returns the asset's events from this time on, sorted by id.
        """
        since = now - timedelta(hours=REMEMBERED_HOURS)
        if not (self._since is not None and self._since <= since and self._extend(read_from_id)):
            self._hours.clear()
            self._last, self._since = None, since - CLOCK_MARGIN
            for event in read_since(self._since):
                self._add(event)
        self._forget(since - CLOCK_MARGIN)
        self._updated_at = time.monotonic()

    def find(self, identity: DeliveryIdentity) -> list[int]:
        """Return the ids of the events that may have the key or the digest of a delivery."""
        ids: list[int] = []
        for text in {identity.key, identity.digest}:
            first = self._entry(text)
            for entries in self._hours.values():
                start = bisect_left(entries, first)
                end = bisect_left(entries, first + (1 << ID_BITS), start)
                ids += [entry - first for entry in entries[start:end]]
        return ids

    def _extend(self, read_from_id: Callable[[int], Iterable[StoredEvent]]) -> bool:
        """Add the events after the last known one; return False if that one is no longer stored."""
        if self._last is None:
            return False
        events = iter(read_from_id(self._last.id))
        if next(events, None) != self._last:
            return False
        for event in events:
            self._add(event)
        return True

    def _add(self, event: StoredEvent) -> None:
        if event.delivery is None or event.digest is None:
            return
        entries = self._hours.setdefault(_hour(event.timestamp), array("Q"))
        for text in {event.delivery, event.digest}:
            insort(entries, self._entry(text) + event.id)
        self._last = event

    def _entry(self, text: str) -> int:
        return (hash(text) & ((1 << 64 - ID_BITS) - 1)) << ID_BITS

    def _forget(self, before: datetime) -> None:
        oldest = _hour(before)
        for hour in [hour for hour in self._hours if hour < oldest]:
            del self._hours[hour]
            self._since = datetime.fromtimestamp(oldest * HOUR, UTC)


def _hour(timestamp: datetime) -> int:
    return int(timestamp.timestamp() // HOUR)
