"""The waits of deferred sensors, the forms that each has found, and which of them a form concerns."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from fsm_provider.api.form_filter import FormFilter, FormReference
from fsm_provider.polling.criteria import FormCriteria
from fsm_provider.polling.wait_status import target_for

BEGINNING = datetime.min.replace(tzinfo=UTC)
"""The lower bound of a wait without one."""
Place = tuple[str, str]
"""What most waits filter by: ``job`` or ``property``, and its identifier."""
ANYWHERE: Place = ("account", "")
"""The place of a wait on neither job nor property."""


class FormWait:
    """What one deferred sensor waits for, and the forms that it has found.

    :param wanted: its filter.
    :param criteria: when its forms are enough.
    :ivar since: its lower bound.
    :ivar is_narrow: it waits on a job or a property, whose forms fit on one page.
    :ivar checked_at: when all forms since its bound were last listed, in seconds; None: never.
    :ivar found: the forms that count, by id.
    :ivar others: of a wait on a job or a property, the names of the forms that do not count for their names,
        by id.
    """

    __slots__ = ("checked_at", "criteria", "found", "is_narrow", "others", "since", "wanted")

    def __init__(self, wanted: FormFilter, criteria: FormCriteria) -> None:
        bound = wanted.updated_since if wanted.created_since is None else wanted.created_since
        self.wanted = wanted
        self.since = bound if isinstance(bound, datetime) else BEGINNING
        self.is_narrow = wanted.job_id is not None or wanted.property_id is not None
        self.checked_at: float | None = None
        self.criteria = criteria
        self.found: dict[int, FormReference] = {}
        self.others: dict[int, str] = {}

    def find(self, references: Iterable[FormReference], now: float) -> None:
        """Find the forms among all since the bound, which were listed ``now``."""
        self.checked_at = now
        self.found = {}
        self.others.clear()
        for reference in references:
            self.add(reference)

    def add(self, reference: FormReference) -> bool:
        """Find or lose a form that may be new or changed; return whether that makes a difference."""
        identifier = reference["id"]
        before = self.found.get(identifier), self.others.pop(identifier, None)
        if not self.wanted.matches_reference(reference):
            self.found.pop(identifier, None)
        elif self.criteria.counts(reference):
            self.found[identifier] = reference
        else:
            self.found.pop(identifier, None)
            if self.is_narrow:
                self.others[identifier] = reference["formName"] or ""
        return before != (self.found.get(identifier), self.others.get(identifier))

    def target(self) -> str:
        """Describe the forms that it waits for."""
        return target_for(self.wanted, self.criteria)

    def forms(self) -> list[FormReference] | None:
        """Return the forms that count once they are enough, None before."""
        found = list(self.found.values())
        return found if self.criteria.is_met_by(found) else None


class FormWaits:
    """The waits, by what most of them filter by."""

    def __init__(self) -> None:
        self.all: dict[FormWait, None] = {}
        self._by_place: dict[Place, list[FormWait]] = {}

    def add(self, wait: FormWait) -> None:
        """Add a wait."""
        self.all[wait] = None
        self._by_place.setdefault(_place(wait.wanted), []).append(wait)

    def remove(self, wait: FormWait) -> None:
        """Remove a wait, if it is there."""
        if wait in self.all:
            del self.all[wait]
            place = _place(wait.wanted)
            self._by_place[place].remove(wait)
            if not self._by_place[place]:
                del self._by_place[place]

    def concerned_by(self, reference: FormReference) -> list[FormWait]:
        """Return the waits on the form's job or property, or on the entire account."""
        return [wait for place in _places(reference) for wait in self._by_place.get(place, ())]


class FormIndex:
    """References of forms, by the places whose waits they concern."""

    def __init__(self, references: Iterable[FormReference]) -> None:
        self._by_place: dict[Place, dict[int, FormReference]] = {ANYWHERE: {}}
        for reference in references:
            self.put(reference)

    def put(self, reference: FormReference) -> None:
        """Add or replace a reference, whose form may have moved to another job or property."""
        identifier, places = reference["id"], _places(reference)
        if known := self._by_place[ANYWHERE].get(identifier):
            for place in set(_places(known)).difference(places):
                del self._by_place[place][identifier]
        for place in places:
            self._by_place.setdefault(place, {})[identifier] = reference

    def candidates(self, wanted: FormFilter) -> Iterable[FormReference]:
        """Return the references that may match a filter; the caller has to apply it."""
        return self._by_place.get(_place(wanted), {}).values()


def _places(reference: FormReference) -> tuple[Place, ...]:
    return ("job", str(reference["jobID"])), ("property", str(reference["propertyID"])), ANYWHERE


def _place(wanted: FormFilter) -> Place:
    if wanted.job_id is not None:
        return "job", str(wanted.job_id)
    if wanted.property_id is not None:
        return "property", str(wanted.property_id)
    return ANYWHERE
