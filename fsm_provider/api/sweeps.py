"""How completed forms are followed: what a sweep asks for, and what of its answer counts.

A sweep is one listing read to its end. Most ask only for what was updated since the sweep before
them; now and then one asks for everything that is watched, since phones sync late and a form may
arrive with old times. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fsm_provider.api.forms import FormDemand, FormFilter, FormFilters, Reference

BELIEVED_AHEAD = timedelta(days=1)
"""How far the service's clock may be ahead of ours; a watermark beyond would miss forms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A listing to be read.

    :param filters: what to ask for.
    :param whole: it covers everything that is watched, not only what changed lately.
    """

    filters: FormFilters
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A listing that was read to its end.

    :param references: what it holds and the filters match, in the service's order.
    :param started: when the service began to answer, by its own clock where it told the time.
    :param others: how many forms it held that the filters do not match.
    """

    references: list[Reference]
    started: datetime
    others: int = 0


def start_of(served: object, ours: datetime) -> datetime:
    """Choose the time at which a sweep started.

    :param served: the service's time, taken back to the start of the sweep; anything else than an
        aware time, or one far in our future, is not believed.
    :param ours: the same by our clock.
    """
    if isinstance(served, datetime) and served.tzinfo and served - ours <= BELIEVED_AHEAD:
        return served
    return ours


@dataclass(slots=True)
class Watermark:
    """From when on the next sweep has to ask. Moved only when a sweep has been read to its end.

    :param look_back: what a sweep goes back behind the start of the one before it.
    :param whole_every: seconds between two sweeps that ask for everything.
    :param moment: where to start; None: nothing has been read.
    """

    look_back: timedelta
    whole_every: float
    moment: datetime | None = None
    _whole_at: float | None = field(default=None, init=False)

    def whole_is_due(self, now: float) -> bool:
        """Tell whether the next sweep is to ask for everything.

        :param now: seconds of a clock that never goes back.
        """
        return self.moment is None or self._whole_at is None or now - self._whole_at >= self.whole_every

    def move(self, started: datetime, *, whole: bool, now: float) -> None:
        """Note a sweep that was read to its end."""
        self.moment = started - self.look_back
        if whole:
            self._whole_at = now


class FormIndex:
    """References, found by what most waits ask for: their job, or their property."""

    def __init__(self, references: Iterable[Reference] = ()) -> None:
        self.by_id: dict[int, Reference] = {}
        self._by_job: dict[str, dict[int, Reference]] = {}
        self._by_property: dict[str, dict[int, Reference]] = {}
        for reference in references:
            self.put(reference)

    def __len__(self) -> int:
        return len(self.by_id)

    def put(self, reference: Reference) -> bool:
        """Add a reference, or replace the one of the same form; tell whether that one was elsewhere."""
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

    def candidates(self, wanted: FormFilter) -> Iterable[Reference]:
        """Give the few references that a filter can match at all; it is still to be applied."""
        if wanted.job_id is not None:
            return self._by_job.get(str(wanted.job_id), {}).values()
        if wanted.property_id is not None:
            return self._by_property.get(str(wanted.property_id), {}).values()
        return self.by_id.values()

    def _places(self, reference: Reference) -> tuple[dict[int, Reference], dict[int, Reference]]:
        return (
            self._by_job.setdefault(str(reference["jobID"]), {}),
            self._by_property.setdefault(str(reference["propertyID"]), {}),
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known after a sweep. It is one object for all who wait, and is never copied.

    :param forms: everything in the window; whoever comes late has missed nothing.
    :param changed: what this sweep brought that the one before it did not know.
    :param whole: ``changed`` does not tell everything: forms may be gone, or have moved.
    """

    forms: FormIndex
    changed: FormIndex
    whole: bool

    @property
    def is_news(self) -> bool:
        """Whether it tells more than the one before it."""
        return self.whole or len(self.changed) > 0


class FormWindow:
    """The forms from some lower bounds on, for many waits at once.

    It holds references only, and only those that one of the waits can ask for: from the bounds on.

    :param wanted: the filter that the waits have in common, with at least one lower bound.
    :param look_back: what a sweep goes back behind the start of the one before it.
    :param whole_every: seconds between two sweeps of the whole window; 0: each is one.
    """

    def __init__(self, wanted: FormFilter, *, look_back: timedelta, whole_every: float) -> None:
        self._wanted = wanted
        self._watermark = Watermark(look_back, whole_every)
        self._forms = FormIndex()

    def next_sweep(self, now: float) -> Sweep:
        """Say what to ask for next."""
        filters, moment = self._wanted.as_dict(), self._watermark.moment
        if moment is None or self._watermark.whole_is_due(now):
            return Sweep(filters=filters, whole=True)
        bound = self._wanted.updated_since
        since = max(moment, bound) if isinstance(bound, datetime) else moment
        return Sweep(filters={**filters, "updated_since": since.isoformat()}, whole=False)

    def take(self, sweep: Sweep, swept: Swept, now: float) -> Snapshot:
        """Take in a sweep.

        :param now: the seconds that :meth:`next_sweep` was given.
        """
        self._watermark.move(swept.started, whole=sweep.whole, now=now)
        if sweep.whole:
            self._forms = FormIndex(swept.references)
            return Snapshot(self._forms, self._forms, whole=True)
        known = self._forms.by_id
        changed = [reference for reference in swept.references if known.get(reference["id"]) != reference]
        moved = [self._forms.put(reference) for reference in changed]
        return Snapshot(self._forms, FormIndex(changed), whole=any(moved))


class FormWait:
    """One wait: the forms among those of its stream that it is for.

    :param wanted: its filter.
    :param demand: when they are enough.
    """

    __slots__ = ("_demand", "_found", "_wanted")

    def __init__(self, wanted: FormFilter, demand: FormDemand) -> None:
        self._wanted = wanted
        self._demand = demand
        self._found: dict[int, Reference] | None = None

    def look_at(self, snapshot: Snapshot) -> list[Reference] | None:
        """Give the forms that count once they are enough, None before.

        Every snapshot since the first has to be looked at, in order: of most, only what changed is.
        """
        if self._found is None or snapshot.whole:
            found = self._found = {}
            looked_at = snapshot.forms.candidates(self._wanted)
        else:
            found = self._found
            looked_at = snapshot.changed.candidates(self._wanted)
            if not looked_at:
                return None
        for reference in looked_at:
            if self._demand.counts(reference) and self._wanted.matches_reference(reference):
                found[reference["id"]] = reference
            else:
                found.pop(reference["id"], None)
        counted = list(found.values())
        return counted if self._demand.is_met_by(counted) else None
