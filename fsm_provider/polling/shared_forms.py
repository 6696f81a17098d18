"""Which listings the waits of one stream need, and which forms each of them finds. Nothing here does I/O.

A poll has one listing of what was updated since the poll before, whatever the number of waits. From time to
time each wait is checked against all forms since its own lower bound, because phones sync late and a form may
arrive with old times: in one listing for all whose bounds are near enough, by itself where that is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any

from fsm_provider.api.form_filter import FormFilter, FormReference
from fsm_provider.polling.form_waits import BEGINNING, FormIndex, FormWait, FormWaits
from fsm_provider.polling.old_polls import MAX_CLOCK_SKEW, PollQuery, PollResult

LOOK_BACK = timedelta(hours=1)
"""How far a poll goes back before the start of the one before it."""
CHECK_INTERVAL = 900.0
"""Seconds, at least, between two checks of a wait against all forms since its bound."""
MIN_CHECKS = 20
"""Waits that one poll may list by themselves; more only if otherwise not all had their turn in time."""
SHARED_PAGE = 1.1
"""What a page of a listing for all counts, beside one of a wait's own, which delays no listing of changes."""
ESTIMATE_AGE = 3600.0
"""Seconds after which the length of a shared poll is measured again."""


@dataclass(slots=True)
class ListingLength:
    """How many pages a listing will have, estimated from those that were read."""

    _records_per_second: float = 0.0
    _longest_page: int = 1
    _has_full: bool = False

    def learn(self, result: PollResult, window: timedelta, *, full: bool) -> None:
        """Learn from a listing of a window; a full one says more than one of recent changes."""
        self._longest_page = max(self._longest_page, result.longest_page)
        rate = result.records / max(window.total_seconds(), 1.0)
        if not result.complete:
            self._records_per_second = max(self._records_per_second, rate)
        elif full or not self._has_full:
            self._records_per_second = rate
        self._has_full |= full

    def pages(self, window: timedelta) -> float:
        """Return the estimated number of pages, at least 1."""
        return max(1.0, self._records_per_second * window.total_seconds() / self._longest_page)


@dataclass(frozen=True, slots=True)
class _Index:
    """All forms since a bound, for the waits that join later.

    :param read_at: when they were listed; what changed since is in it as well.
    """

    forms: FormIndex
    since: datetime
    read_at: float

    def search(self, wait: FormWait) -> bool:
        """Give a wait its forms; return False if it goes back further."""
        if wait.since < self.since:
            return False
        wait.find(self.forms.candidates(wait.wanted), self.read_at)
        return True


@dataclass(frozen=True, slots=True)
class _Listing:
    """A listing of a poll.

    :param since: the bound since which all forms are listed; None: recent changes.
    :param max_pages: see :class:`~fsm_provider.polling.polls.PollQuery`.
    """

    since: datetime | None = None
    max_pages: int | None = None


class SharedForms:
    """Plans the polls of waits that can share a listing, and gives each the forms that concern it.

    :param wanted: one of their filters.
    :param interval: seconds between two polls.
    """

    def __init__(self, wanted: FormFilter, interval: float) -> None:
        self._common = wanted.for_shared_stream()
        self._bound = "updated_since" if wanted.created_since is None else "created_since"
        self._interval = interval
        self._check_interval = max(CHECK_INTERVAL, 10 * interval)
        self._waits = FormWaits()
        self._checking: dict[FormWait, dict[int, FormReference]] = {}
        self._plan: list[_Listing] = []
        self._planned_at: datetime | None = None
        self._has_read_changes = self._is_abandoned = False
        self._shares_after = -math.inf
        self._watermark: datetime | None = None
        self._reads_since = BEGINNING
        self._index: _Index | None = None
        self._length = ListingLength()
        self._shared_pages: tuple[int, float] | None = None
        self.is_alone = False
        """Whether it is cheapest that each wait lists its own forms at each poll."""

    @property
    def waits(self) -> list[FormWait]:
        """The waits."""
        return list(self._waits.all)

    @property
    def has_listing(self) -> bool:
        """Whether the poll has further listings for all."""
        return len(self._plan) > 0

    @property
    def has_more(self) -> bool:
        """Whether the poll goes on, by another listing or by another plan."""
        return self.has_listing or self._is_abandoned

    @property
    def lists_since_bound(self) -> bool:
        """Whether the next listing has all forms since a bound, not only recent changes."""
        return self.has_listing and self._plan[0].since is not None

    def join(self, wait: FormWait) -> None:
        """Add a wait, and give it the forms that are known."""
        self._waits.add(wait)
        if self._index is not None:
            self._index.search(wait)

    def leave(self, wait: FormWait) -> None:
        """Remove a wait, if it is still there."""
        self._waits.remove(wait)
        self._checking.pop(wait, None)

    def plan(self, now: float, clock: datetime) -> list[FormWait]:
        """Begin a poll; return the waits that are to be listed by themselves, until :meth:`checked`.

        :param now: seconds of a clock that never goes back.
        :param clock: the time.
        """
        alone = self._plan_poll(now, clock)
        self._checking |= {wait: {} for wait in alone}
        return alone

    def checked(self, wait: FormWait, references: Iterable[FormReference], now: float) -> None:
        """Give a wait the forms of a listing of its own; what was listed for all meanwhile is newer.

        :param now: seconds of the clock of :meth:`plan`, when the listing began.
        """
        wait.find([*references, *self._checking.pop(wait, {}).values()], now)

    def _plan_poll(self, now: float, clock: datetime) -> list[FormWait]:
        self._has_read_changes = self._is_abandoned = False
        free = [wait for wait in self._waits.all if wait not in self._checking]
        before, self._planned_at = self._planned_at, clock
        self._reads_since = self._watermark or (before or clock) - LOOK_BACK - MAX_CLOCK_SKEW
        self.is_alone = self._is_cheaper_alone()
        if self.is_alone:
            self._index = self._watermark = None
            self._plan = [self._changes()] if self._is_measured_again(now) else []
            return free
        self._plan = [] if before is None else [self._changes()]
        due = [wait for wait in free if self._is_due(wait, now)]
        since = self._window_for(due, clock) if now >= self._shares_after else None
        if since is not None:
            shared = [wait for wait in due if wait.since >= since]
            self._plan.append(_Listing(since, self._limit(shared)))
            due = [wait for wait in due if wait.since < since]
        elif self._index is not None and now - self._index.read_at >= self._check_interval:
            self._index = None
        return self._first_of(due)

    def next_query(self) -> PollQuery:
        """Return the query of the next listing for all."""
        listing = self._plan[0]
        bound: dict[str, Any] = {}
        if listing.since is None:
            bound["updated_since"] = self._reads_since
        elif listing.since != BEGINNING:
            bound[self._bound] = listing.since
        return PollQuery(wanted=replace(self._common, **bound), max_pages=listing.max_pages)

    def ingest(self, result: PollResult, now: float) -> Iterator[FormWait]:
        """Give the waits the forms of the listing of :meth:`next_query`; yield those that it concerns.

        :param now: seconds of the clock of :meth:`plan`, when the listing began.
        """
        listing = self._plan.pop(0)
        for newer in self._checking.values():
            newer.update((reference["id"], reference) for reference in result.references)
        if listing.since is None:
            self._has_read_changes = True
            self._shared_pages = result.pages, now
            self._length.learn(result, result.started - self._reads_since, full=False)
            if result.complete:
                self._watermark = result.started - LOOK_BACK
            else:
                self._index, self._is_abandoned = None, not self.is_alone
            yield from self._concerned_by(result.references)
            return
        self._length.learn(result, result.started - listing.since, full=True)
        if self._watermark is None:
            self._watermark = result.started - LOOK_BACK
        if result.complete:
            self._index = _Index(FormIndex(result.references), listing.since, now)
            yield from self._checked(self._index)

    def skip(self, now: float, *, permanent: bool) -> bool:
        """Skip a failed listing since a bound, which may be too much to ask for; its waits are listed alone.

        :param now: seconds of the clock of :meth:`plan`.
        :param permanent: it would fail again. If not, it is skipped once the listing of changes has shown
            that the service is up, which comes next.
        :return: whether it is skipped.
        """
        if not (permanent or self._has_read_changes):
            self._plan.insert(0, self._changes())
            return False
        del self._plan[0]
        self._shares_after = now + self._check_interval
        return True

    def _changes(self) -> _Listing:
        return _Listing(max_pages=self._limit(self._waits.all))

    @staticmethod
    def _limit(waits: Collection[FormWait]) -> int | None:
        """Return how many pages a listing may have to be cheaper than one for each wait, None: any number."""
        return max(1, len(waits)) if all(wait.is_narrow for wait in waits) else None

    def _is_due(self, wait: FormWait, now: float) -> bool:
        return wait.checked_at is None or now - wait.checked_at >= self._check_interval

    def _is_cheaper_alone(self) -> bool:
        waits, (pages, _) = self._waits.all, self._shared_pages or (1, 0.0)
        return 0 < len(waits) <= pages and all(wait.is_narrow for wait in waits)

    def _is_measured_again(self, now: float) -> bool:
        """Whether it is time to see if a listing of changes has become shorter."""
        measured_at = now if self._shared_pages is None else self._shared_pages[1]
        return len(self._waits.all) > 1 and now - measured_at >= max(ESTIMATE_AGE, 10 * self._interval)

    def _window_for(self, due: list[FormWait], clock: datetime) -> datetime | None:
        """Return the bound since which one listing costs less than one for each wait, if any.

        A single wait on the entire account has that listing: it delays no other wait.
        """

        def cost_alone(wait: FormWait) -> float:
            return 1.0 if wait.is_narrow else self._length.pages(clock - wait.since)

        if len(self._waits.all) == 1:
            return next((wait.since for wait in due if not wait.is_narrow), None)
        newest_first = sorted(due, key=attrgetter("since"), reverse=True)
        alone = sum(map(cost_alone, due))
        best, cheapest = None, alone
        for since, waits in groupby(newest_first, key=attrgetter("since")):
            alone -= sum(map(cost_alone, waits))
            cost = alone + SHARED_PAGE * self._length.pages(clock - since)
            if cost < cheapest:
                best, cheapest = since, cost
        return best

    def _first_of(self, due: list[FormWait]) -> list[FormWait]:
        """Return the waits whose turn it is, so that all have had theirs after a check interval."""
        share = 2 * self._interval / self._check_interval * len(self._waits.all)
        oldest_first = sorted(due, key=lambda wait: -1.0 if wait.checked_at is None else wait.checked_at)
        return oldest_first[: max(MIN_CHECKS, round(share))]

    def _concerned_by(self, references: list[FormReference]) -> Iterator[FormWait]:
        holders: dict[int, list[FormWait]] = {}
        for wait in self._waits.all:
            for identifier in wait.found:
                holders.setdefault(identifier, []).append(wait)
        concerned: dict[FormWait, None] = {}
        for reference in {one["id"]: one for one in references}.values():
            for wait in [*self._waits.concerned_by(reference), *holders.get(reference["id"], ())]:
                if wait.add(reference):
                    concerned[wait] = None
            if self._index is not None:
                self._index.forms.put(reference)
        yield from concerned

    def _checked(self, index: _Index) -> Iterator[FormWait]:
        for wait in self.waits:
            if wait in self._waits.all and wait.checked_at != index.read_at and index.search(wait):
                yield wait
