"""What a form sensor waits for, what it has found, and when it is worth another poll on the worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_provider.api.errors import FsmError
from fsm_provider.api.validation import pluralize
from fsm_provider.polling.polls import Form, Place, Query, Time, places_of

CHECK_EVERY = 900.0
"""Seconds between two catch-ups of a young wait, and the longest rest after one that woke in vain.
"""
CHECKS_PER_AGE = 20
"""A wait whose bound is old is checked after this part of its age: listings grow with it."""
MAX_KNOWN = 100
"""Forms that a trigger is given; a wait for more begins with its own question."""
MAX_NAMES, MAX_NAME_LENGTH = 5, 80


@dataclass(frozen=True, slots=True)
class Criteria:
    """When forms are enough: as many as ``minimum_forms``, and one of each name."""

    minimum_forms: int = 1
    form_names: tuple[str, ...] = ()

    def counts(self, name: str) -> bool:
        return not self.form_names or name in self.form_names

    def are_met(self, found: Mapping[int, str]) -> bool:
        return len(found) >= self.minimum_forms and set(self.form_names) <= set(found.values())

    def missing(self, found: Mapping[int, str], others: Collection[str] = ()) -> dict[str, Any]:
        """Return the XCom of a timeout."""
        wanted, there = dict.fromkeys(self.form_names), found.values()
        names = [name for name in wanted if name not in there]
        text = f"{len(there)} of {pluralize(max(self.minimum_forms, len(wanted)), 'form')}"
        if names:
            text += f": {listed(names)} {'is' if len(names) == 1 else 'are'} missing"
        if there and wanted:
            text += f"; there {'is' if len(there) == 1 else 'are'} {_by_name(there)}"
        if others:
            text += f"; {pluralize(len(others), 'other form')} since then: {_by_name(others)}"
        return {"text": text, "form_names": names, "found": list(found)}


def listed(names: Collection[str]) -> str:
    shown = ", ".join(name[:MAX_NAME_LENGTH] for name in list(names)[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"


def _by_name(names: Iterable[str]) -> str:
    """Count names, each as Python writes it if it cannot be printed as it is."""
    counts = Counter((name if name.isprintable() else repr(name)) or "(no name)" for name in names)
    by_count = sorted((-count, name) for name, count in counts.items())
    return listed([f"{name} ({-count})" if count < -1 else name for count, name in by_count])


@dataclass(frozen=True, slots=True)
class WaitState:
    """What the worker hands to the trigger, and the trigger hands back: JSON values, times by the
    worker.

    :ivar since: the bound of the first poll, ISO 8601.
    :ivar polled_at: the service's time when the worker's listing began.
    :ivar known: the forms that pluralize, as pairs of id and name; None: not known, or too many.
    :ivar futile_wakes: how many times in a row a trigger woke a worker that found nothing new.
    """

    service: str
    began: Time
    deadline: Time
    since: str | None = None
    polled_at: Time = 0.0
    known: list[list[Any]] | None = None
    futile_wakes: int = 0
    failing_since: Time | None = None

    @property
    def covered_since(self) -> Time | None:
        """Return since when a wait hears of all forms, if it knows those before."""
        return None if self.known is None else self.polled_at

    def rest(self, interval: float) -> float:
        """Return the seconds before it may wake again: twice as many after each time in vain."""
        return float(min(interval * 2 ** min(self.futile_wakes, 20), max(CHECK_EVERY, interval)))

    def after(self, service: str, found: Mapping[int, str], polled_at: Time) -> WaitState:
        """Return the next one, after a poll on the worker that did not find enough."""
        known = [list(pair) for pair in found.items()] if len(found) <= MAX_KNOWN else None
        is_in_vain = self.polled_at > 0.0 and (known is None or known == self.known)
        futile_wakes = self.futile_wakes + 1 if is_in_vain else 0
        return WaitState(
            service, self.began, self.deadline, self.since, polled_at, known, futile_wakes
        )


@dataclass(eq=False, slots=True)
class Wait:
    """A deferred sensor in the triggerer: a member of the feed.

    :ivar woken: done once it is worth a poll on the worker.
    :ivar found: the names of what counts of all that it has heard of, by id.
    :ivar due: the loop's time of its next catch-up; ``asked``: of its last.
    :ivar failed_for: the seconds of the failures that have woken it.
    """

    query: Query
    criteria: Criteria
    tolerance: float
    found: dict[int, str]
    woken: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    due: float = 0.0
    asked: float = 0.0
    failing_since: float | None = None
    failed_for: float | None = None

    @property
    def places(self) -> list[Place]:
        jobs, properties = (
            [one] if one else [] for one in (self.query.job_id, self.query.property_id)
        )
        return places_of(jobs, properties, self.criteria.form_names)

    def questions(self) -> list[Query]:
        return [self.query]

    def check_after(self, now: Time) -> float:
        bounds = filter(None, [self.query.created_since, self.query.updated_since])
        return max(CHECK_EVERY, (now - min(bounds, default=now)) / CHECKS_PER_AGE)

    def ingest(self, forms: Iterable[Form]) -> None:
        """Count forms, and wake the sensor if all that it knows of are enough."""
        for form in forms:
            if self.query.matches(form) and self.criteria.counts(form.name):
                self.found[form.id] = form.name
            else:
                self.found.pop(form.id, None)
        if self.criteria.are_met(self.found):
            self.wake()

    def polled(self, *_: Time | None) -> None:
        """Do nothing, as after a catch-up: only forms count."""

    caught_up = polled

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)

    moved = wake

    def fail(self, error: FsmError, since: float) -> None:
        """Wake for an error that is permanent or tolerated no longer: the worker's poll decides."""
        failed_for = asyncio.get_running_loop().time() - since
        if error.permanent or failed_for >= self.tolerance:
            self.failed_for = failed_for
            self.wake()
