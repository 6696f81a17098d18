"""Polls that many waits share: what a poll asks for, and which forms of its result count.

A poll is one listing read to its end. Most polls ask only for what was updated since the poll before. Now
and then a full poll asks for every watched form, because phones sync late and a form may arrive with old
times. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fsm_provider.api.form_filter import FormFilter, FormFilters, FormReference
from fsm_provider.polling.criteria import FormCriteria

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
    """

    filters: FormFilters
    full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """A listing that was read to its end.

    :param references: the forms that match the filters, in the service's order.
    :param started: when the service began to respond, by its own clock if it sent the time.
    :param others: number of forms that do not match the filters.
    :param digests: digests of the records without a readable ``lastUpdatedOnDateTime``, by id.
    """

    references: list[FormReference]
    started: datetime
    others: int = 0
    digests: Mapping[int, str] = field(default_factory=dict)


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


class FormIndex:
    """References, indexed by what most waits filter by: the job and the property."""

    def __init__(self, references: Iterable[FormReference] = ()) -> None:
        self.by_id: dict[int, FormReference] = {}
        self._by_job: dict[str, dict[int, FormReference]] = {}
        self._by_property: dict[str, dict[int, FormReference]] = {}
        for reference in references:
            self.put(reference)

    def __len__(self) -> int:
        return len(self.by_id)

    def put(self, reference: FormReference) -> bool:
        """Add or replace a reference; return whether its form moved to another job or property."""
        identifier = reference["id"]
        known = self.by_id.get(identifier)
        places = self._places(reference)
        moved = known is not None and (known["jobID"], known["propertyID"]) != (
            reference["jobID"],
            reference["propertyID"],
        )
        if known is not None and moved:
            for place in self._places(known):
                del place[identifier]
        self.by_id[identifier] = reference
        for place in places:
            place[identifier] = reference
        return moved

    def candidates(self, wanted: FormFilter) -> Iterable[FormReference]:
        """Return the references that may match a filter; the caller has to apply it."""
        if wanted.job_id is not None:
            return self._by_job.get(str(wanted.job_id), {}).values()
        if wanted.property_id is not None:
            return self._by_property.get(str(wanted.property_id), {}).values()
        return self.by_id.values()

    def _places(self, reference: FormReference) -> tuple[dict[int, FormReference], dict[int, FormReference]]:
        return (
            self._by_job.setdefault(str(reference["jobID"]), {}),
            self._by_property.setdefault(str(reference["propertyID"]), {}),
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The known forms after a poll: one object for all waits, never copied.

    :param forms: every form since the lower bounds, so that a wait that joins late misses nothing.
    :param changed: forms that this poll added or changed.
    :param full: read ``forms``: forms may be gone or have moved, which ``changed`` does not show.
    """

    forms: FormIndex
    changed: FormIndex
    full: bool

    @property
    def has_changes(self) -> bool:
        """Whether it may differ from the one before it."""
        return self.full or len(self.changed) > 0


class SharedForms:
    """The forms since some lower bounds, for many waits at once.

    It holds references only, and only those since the bounds.

    :param wanted: the filter that the waits have in common, with at least one lower bound.
    :param look_back: how far a poll goes back before the start of the one before it.
    :param full_interval: seconds between two full polls; 0: every poll is full.
    """

    def __init__(self, wanted: FormFilter, *, look_back: timedelta, full_interval: float) -> None:
        self._wanted = wanted
        self._watermark = Watermark(look_back, full_interval)
        self._forms = FormIndex()

    def next_query(self, now: float) -> PollQuery:
        """Return the query of the next poll.

        :param now: seconds of a clock that never goes back.
        """
        filters, timestamp = self._wanted.as_dict(), self._watermark.timestamp
        if timestamp is None or self._watermark.full_is_due(now):
            return PollQuery(filters=filters, full=True)
        bound = self._wanted.updated_since
        since = max(timestamp, bound) if isinstance(bound, datetime) else timestamp
        return PollQuery(filters={**filters, "updated_since": since.isoformat()}, full=False)

    def ingest(self, query: PollQuery, result: PollResult, now: float) -> Snapshot:
        """Add the result of a poll.

        :param now: the value that :meth:`next_query` was given.
        """
        self._watermark.move(result.started, full=query.full, now=now)
        if query.full:
            self._forms = FormIndex(result.references)
            return Snapshot(self._forms, self._forms, full=True)
        known = self._forms.by_id
        changed = [reference for reference in result.references if known.get(reference["id"]) != reference]
        moved = [self._forms.put(reference) for reference in changed]
        return Snapshot(self._forms, FormIndex(changed), full=any(moved))


class FormMatcher:
    """The forms that one wait finds in the snapshots of its stream.

    :param wanted: filter of the wait.
    :param criteria: when its forms are enough.
    """

    __slots__ = ("_criteria", "_found", "_wanted")

    def __init__(self, wanted: FormFilter, criteria: FormCriteria) -> None:
        self._wanted = wanted
        self._criteria = criteria
        self._found: dict[int, FormReference] | None = None

    def match(self, snapshot: Snapshot) -> list[FormReference] | None:
        """Return the forms that count once they are enough, None before.

        It needs every snapshot since the first, in order: of most it reads only ``changed``.
        """
        if self._found is None or snapshot.full:
            found = self._found = {}
            candidates = snapshot.forms.candidates(self._wanted)
        else:
            found = self._found
            candidates = snapshot.changed.candidates(self._wanted)
            if not candidates:
                return None
        for reference in candidates:
            if self._criteria.counts(reference) and self._wanted.matches_reference(reference):
                found[reference["id"]] = reference
            else:
                found.pop(reference["id"], None)
        counted = list(found.values())
        return counted if self._criteria.is_met_by(counted) else None
