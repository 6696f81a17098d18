"""What a poll asks for, and what it finds. Nothing here does I/O or reads a clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fsm_provider.api.form_filter import FormFilters, FormReference

MAX_CLOCK_SKEW = timedelta(minutes=5)
"""How far the service's clock may be from ours before ours is used: far less than any sensible look-back.

With a clock ahead of ours, a watermark would pass forms that are still to come; with one behind, forms
would be emitted twice.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollQuery:
    """A listing to read.

    :param filters: filters of the request.
    :param full: it covers every watched form, not only recent changes.
    :param max_pages: number of pages after which it is abandoned, None: it is read to its end.
    """

    filters: FormFilters
    full: bool
    max_pages: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """A listing that was read to its end, or abandoned after the number of pages that the query allows.

    :param references: the forms that match the filters, in the service's order.
    :param started: when the service began to respond, by its own clock if it sent the time.
    :param others: number of forms that do not match the filters.
    :param digests: digests of the records without a readable ``lastUpdatedOnDateTime``, by id.
    :param pages: number of pages read.
    :param longest_page: number of records on the longest of them.
    :param complete: it was read to its end.
    """

    references: list[FormReference]
    started: datetime
    others: int = 0
    digests: Mapping[int, str] = field(default_factory=dict)
    pages: int = 1
    longest_page: int = 0
    complete: bool = True

    @property
    def records(self) -> int:
        """Number of records read, matching or not."""
        return len(self.references) + self.others


def start_time(served: datetime, ours: datetime) -> datetime:
    """Return the time at which a poll started.

    :param served: the start by the service's clock.
    :param ours: the start by our clock, returned if they differ by more than ``MAX_CLOCK_SKEW``.
    """
    return served if abs(served - ours) <= MAX_CLOCK_SKEW else ours


@dataclass(slots=True)
class Watermark:
    """The lower bound of the next poll. It moves only when a poll has been read to its end.

    :param look_back: how far a poll goes back before the start of the one before it.
    :param full_interval: seconds between two full polls.
    :param timestamp: where the next poll starts; None: nothing has been read.
    """

    look_back: timedelta
    full_interval: float
    timestamp: datetime | None = None
    _full_at: float | None = field(default=None, init=False)

    def full_is_due(self, now: float) -> bool:
        """Whether the next poll is to be a full one.

        :param now: seconds of a clock that never goes back.
        """
        return self.timestamp is None or self._full_at is None or now - self._full_at >= self.full_interval

    def move(self, started: datetime, *, full: bool, now: float) -> None:
        """Record a poll that was read to its end."""
        self.timestamp = started - self.look_back
        if full:
            self._full_at = now
