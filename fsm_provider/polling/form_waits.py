"""Which listings the waits of one stream need, and which forms each of them finds. Nothing here does I/O.

A poll has one listing of what was updated since the poll before, whatever the number of waits. From time to
time each wait is checked against all forms since its own lower bound, because phones sync late and a form may
arrive with old times: in one listing for all whose bounds are near enough, by itself where that is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby

from fsm_provider.api.form_filter import FormFilter, FormFilters, FormReference
from fsm_provider.polling.criteria import FormCriteria
from fsm_provider.polling.form_index import FormIndex
from fsm_provider.polling.polls import PollQuery, PollResult

BEGINNING = datetime.min.replace(tzinfo=UTC)
"""The lower bound of a wait without one."""
ANYWHERE = ("account", "")
"""The place of a wait on neither job nor property."""
MIN_CHECKS = 20
"""Waits that one poll may list by themselves; more only if otherwise not all had their turn in time."""
ESTIMATE_AGE = 3600.0
"""Seconds after which the length of a shared poll is measured again."""


class FormWait:
    """What one deferred sensor waits for, and the forms that it has found.

    :param wanted: its filter.
    :param criteria: when its forms are enough.
    :ivar since: its lower bound.
    :ivar is_narrow: it waits on a job or a property, whose forms fit on one page.
    :ivar checked_at: when all forms since its bound were last listed, in seconds; None: never.
    :ivar found: the forms that count, by id.
    """

    __slots__ = ("_criteria", "checked_at", "found", "is_narrow", "since", "wanted")

    def __init__(self, wanted: FormFilter, criteria: FormCriteria) -> None:
        bound = wanted.updated_since if wanted.created_since is None else wanted.created_since
        self.wanted = wanted
        self.since = bound if isinstance(bound, datetime) else BEGINNING
        self.is_narrow = wanted.job_id is not None or wanted.property_id is not None
        self.checked_at: float | None = None
        self._criteria = criteria
        self.found: dict[int, FormReference] = {}

    def find(self, references: Iterable[FormReference], now: float) -> None:
        """Find the forms among all since the bound, which were listed ``now``."""
        self.checked_at = now
        self.found = {}
        for reference in references:
            self.add(reference)

    def add(self, reference: FormReference) -> bool:
        """Find or lose a form that may be new or changed; return whether that makes a difference."""
        known = self.found.get(reference["id"])
        if not (self._criteria.counts(reference) and self.wanted.matches_reference(reference)):
            return self.found.pop(reference["id"], None) is not None
        self.found[reference["id"]] = reference
        return known != reference

    def forms(self) -> list[FormReference] | None:
        """Return the forms that count once they are enough, None before."""
        found = list(self.found.values())
        return found if self._criteria.is_met_by(found) else None


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

    :param wait: the wait that is listed by itself.
    :param since: the bound since which all forms are listed; neither: recent changes.
    :param max_pages: see :class:`~fsm_provider.polling.polls.PollQuery`.
    """

    wait: FormWait | None = None
    since: datetime | None = None
    max_pages: int | None = None


class _Waits:
    """The waits, by what most of them filter by."""

    def __init__(self) -> None:
        self.all: dict[FormWait, None] = {}
        self._by_place: dict[tuple[str, str], dict[FormWait, None]] = {}

    def add(self, wait: FormWait) -> None:
        self.all[wait] = None
        self._by_place.setdefault(_place(wait.wanted), {})[wait] = None

    def remove(self, wait: FormWait) -> None:
        if wait in self.all:
            del self.all[wait]
            place = _place(wait.wanted)
            del self._by_place[place][wait]
            if not self._by_place[place]:
                del self._by_place[place]

    def concerned_by(self, reference: FormReference) -> list[FormWait]:
        places = ("job", str(reference["jobID"])), ("property", str(reference["propertyID"])), ANYWHERE
        return [wait for place in places for wait in self._by_place.get(place, ())]


def _place(wanted: FormFilter) -> tuple[str, str]:
    if wanted.job_id is not None:
        return "job", str(wanted.job_id)
    if wanted.property_id is not None:
        return "property", str(wanted.property_id)
    return ANYWHERE


class SharedForms:
    """Plans the polls of waits that can share a listing, and gives each the forms that concern it.

    :param wanted: one of their filters.
    :param look_back: how far a poll goes back before the start of the one before it.
    :param interval: seconds between two polls.
    :param check_interval: seconds after which a wait is checked against all forms since its bound again.
    """

    def __init__(
        self, wanted: FormFilter, *, look_back: timedelta, interval: float, check_interval: float
    ) -> None:
        self._common = wanted.for_shared_stream()
        self._bound = "updated_since" if wanted.created_since is None else "created_since"
        self._look_back = look_back
        self._checks_per_wait = interval / check_interval
        self._check_interval = check_interval
        self._waits = _Waits()
        self._plan: list[_Listing] = []
        self._has_begun = False
        self._watermark: datetime | None = None
        self._index: _Index | None = None
        self._length = ListingLength()
        self._shared_pages: tuple[int, float] | None = None

    @property
    def waits(self) -> list[FormWait]:
        """The waits."""
        return list(self._waits.all)

    @property
    def has_more(self) -> bool:
        """Whether the poll has further listings."""
        self._plan = [one for one in self._plan if one.wait is None or one.wait in self._waits.all]
        return len(self._plan) > 0

    def join(self, wait: FormWait) -> None:
        """Add a wait, and give it the forms that are known."""
        self._waits.add(wait)
        if self._index is not None:
            self._index.search(wait)

    def leave(self, wait: FormWait) -> None:
        """Remove a wait, if it is still there."""
        self._waits.remove(wait)

    def next_query(self, now: float, clock: datetime) -> PollQuery:
        """Return the query of the next listing.

        :param now: seconds of a clock that never goes back.
        :param clock: the time.
        """
        if not self.has_more:
            self._plan, self._has_begun = self._planned(now, clock), False
        listing = self._plan[0]
        if listing.wait is not None:
            return PollQuery(filters=listing.wait.wanted.as_dict(), full=True)
        bound = listing.since or min((wait.since for wait in self._waits.all), default=clock)
        bounds = {self._bound: bound}
        if listing.since is None and self._watermark is not None:
            bounds["updated_since"] = max(bounds.get("updated_since", BEGINNING), self._watermark)
        given = {name: time.isoformat() for name, time in bounds.items() if time != BEGINNING}
        filters = FormFilters(**self._common.as_dict(), **given)  # type: ignore[typeddict-item]
        return PollQuery(filters=filters, full=listing.since is not None, max_pages=listing.max_pages)

    def ingest(self, result: PollResult, now: float) -> Iterator[FormWait]:
        """Give the waits the forms of the listing of :meth:`next_query`; yield those that it concerns.

        :param now: the value that :meth:`next_query` was given.
        """
        listing = self._plan.pop(0)
        before = self._watermark
        if not self._has_begun:
            self._has_begun, self._watermark = True, result.started - self._look_back
        if listing.wait is not None:
            listing.wait.find(result.references, now)
            yield listing.wait
        elif listing.since is None:
            self._shared_pages = result.pages, now
            if before is not None:
                self._length.learn(result, result.started - before, full=False)
            yield from self._concerned_by(result.references)
        else:
            self._length.learn(result, result.started - listing.since, full=True)
            if result.complete:
                self._index = _Index(FormIndex(result.references), listing.since, now)
                yield from self._checked(self._index)
            else:
                self._plan = self._checks([wait for wait in self._waits.all if self._is_due(wait, now)])

    def skip(self) -> FormWait | None:
        """Skip the listing of a wait by itself, which failed, and return the wait; None: it was for all."""
        wait = self._plan[0].wait if self._plan else None
        if wait is not None:
            del self._plan[0]
            wait.checked_at = None
        return wait

    def _planned(self, now: float, clock: datetime) -> list[_Listing]:
        if self._is_cheaper_alone(now):
            self._index = None
            return [_Listing(wait) for wait in self._waits.all]
        due = [wait for wait in self._waits.all if self._is_due(wait, now)]
        plan = [] if self._watermark is None else [_Listing()]
        since = self._window_for(due, clock)
        if since is not None:
            shared = [wait for wait in due if wait.since >= since]
            limit = len(shared) if all(wait.is_narrow for wait in shared) else None
            plan.append(_Listing(since=since, max_pages=limit))
            due = [wait for wait in due if wait.since < since]
        elif self._index is not None and now - self._index.read_at >= self._check_interval:
            self._index = None
        return plan + self._checks(due) or [_Listing()]

    def _is_cheaper_alone(self, now: float) -> bool:
        waits = self._waits.all
        pages, measured_at = self._shared_pages or (1, now)
        if now - measured_at > ESTIMATE_AGE:
            pages = 1
        return 0 < len(waits) <= pages and all(wait.is_narrow for wait in waits)

    def _is_due(self, wait: FormWait, now: float) -> bool:
        return wait.checked_at is None or now - wait.checked_at >= self._check_interval

    def _window_for(self, due: list[FormWait], clock: datetime) -> datetime | None:
        """Return the bound since which one listing costs fewer requests than one for each wait, if any."""
        newest_first = sorted(due, key=_since, reverse=True)
        oldest_wide = min((wait.since for wait in due if not wait.is_narrow), default=None)
        alone = sum(wait.is_narrow for wait in due)
        best, cheapest = None, math.inf if oldest_wide else float(alone)
        for since, waits in groupby(newest_first, key=_since):
            alone -= sum(wait.is_narrow for wait in waits)
            cost = alone + self._length.pages(clock - since)
            if cost < cheapest and (oldest_wide is None or since <= oldest_wide):
                best, cheapest = since, cost
        return best

    def _checks(self, due: list[FormWait]) -> list[_Listing]:
        limit = max(MIN_CHECKS, round(2 * self._checks_per_wait * len(self._waits.all)))
        oldest_first = sorted(due, key=lambda wait: -1.0 if wait.checked_at is None else wait.checked_at)
        return [_Listing(wait) for wait in oldest_first[:limit]]

    def _concerned_by(self, references: list[FormReference]) -> Iterator[FormWait]:
        holders: dict[int, list[FormWait]] = {}
        for wait in self._waits.all:
            for identifier in wait.found:
                holders.setdefault(identifier, []).append(wait)
        concerned: dict[FormWait, None] = {}
        for reference in references:
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


def _since(wait: FormWait) -> datetime:
    return wait.since
