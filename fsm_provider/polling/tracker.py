"""What an asset watches for, and which forms are new to it, across restarts. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from heapq import nsmallest
from itertools import product
from typing import Any, TypedDict

from fsm_provider.api.forms import FormReference
from fsm_provider.polling.polls import Form, Query, Time

QUESTION = ("fsm_conn_id", "filters", "property_ids", "job_ids", "form_names", "query_params")
"""What decides which forms an asset has; the other keys say when and how often it is polled."""
MAX_BASES = 20
"""Places that an asset's own question asks for one by one; for more, it asks for all."""
HOUR, DAY, WEEK = 3_600.0, 86_400.0, 7 * 86_400.0
LOOK_BACK = HOUR
"""Seconds that a poll goes back behind the start of the one before it, also after a restart."""
MAX_RECENT = 1_000
"""Versions that are stored anew with each event; more are merged into the chunk of their period."""
WATERMARK, RECENT = "watermark", "recent"
CHUNKS = tuple(f"emitted/{number}" for number in range(4))
"""Keys of the periods in which forms were emitted; the oldest is written over."""
Versions = dict[str, dict[Time | str, Time]]
"""The time of each version that was emitted, by the form's identifier."""


class Watch(TypedDict):
    """The configuration of an asset's watcher: plain JSON. What is empty matches any.

    :param filters: of :class:`~fsm_provider.api.forms.FormFilter`, without property and job.
    :param start_from: ``now``, ``beginning``, or a time in ISO 8601.
    """

    asset_name: str
    fsm_conn_id: str
    filters: dict[str, Any]
    property_ids: list[str]
    job_ids: list[str]
    form_names: list[str]
    query_params: dict[str, Any] | None
    poll_interval: float
    max_forms_per_event: int
    start_from: str
    late_by: float


def is_wanted(watch: Watch, form: Form) -> bool:
    return (
        (not watch["property_ids"] or form.property_id in watch["property_ids"])
        and (not watch["job_ids"] or form.job_id in watch["job_ids"])
        and (not watch["form_names"] or form.name in watch["form_names"])
    )


def bases_of(watch: Watch) -> list[Query]:
    any_place: list[str | None] = [None]
    places = list(product(watch["property_ids"] or any_place, watch["job_ids"] or any_place))
    return [Query(*place) for place in places] if len(places) <= MAX_BASES else [Query()]


def reconcile_every(watch: Watch) -> float:
    """Return the seconds between two reconciliations: less if polls are frequent, more if they go
    far.
    """
    usual = min(max(60 * watch["poll_interval"], 60.0), HOUR)
    return max(usual * max(watch["late_by"] / WEEK, 1.0), watch["poll_interval"])


def first_floor(watch: Watch) -> Time | None:
    """Return where an asset begins that has nothing stored; None: at its first poll."""
    named = {"now": None, "beginning": 0.0}
    text = watch["start_from"]
    return named[text] if text in named else datetime.fromisoformat(text).timestamp()


def question_from(watch: Watch) -> dict[str, Any]:
    return {name: value for name, value in watch.items() if name in QUESTION}


def event_for(watch: Watch, references: list[FormReference]) -> dict[str, Any]:
    return {
        "asset_name": watch["asset_name"],
        "question": question_from(watch),
        "forms": references,
    }


class NewForms:
    """Finds the new forms of each poll, and keeps them until they were emitted.

    :ivar floor: what was updated before it is history, or forgotten, and is not emitted. None: not
        begun.
    :ivar watermark: the start of the last poll that left no gap; None: there was none.
    :ivar has_gap: there may be forms between the watermark and the last poll that were not listed.
    :ivar pending: new forms that were not emitted, by their identifier.
    """

    def __init__(self, wanted: Callable[[Form], bool], late_by: float = WEEK) -> None:
        self._wanted, self._late_by = wanted, late_by
        self.begin(None)

    def begin(self, floor: Time | None, known: Iterable[str] = ()) -> None:
        """Begin with all that was updated from a time on; forget the entries of ``known`` keys."""
        self.floor: Time | None = floor
        self.watermark: Time | None = floor or None
        self.has_gap: bool = True
        self._forgotten_before = floor or 0.0
        self._emitted: dict[str, Versions] = {key: {} for key in (RECENT, *CHUNKS)}
        self._unsaved = set(known)
        self.pending: dict[int, Form] = {}
        self._in_event: dict[int, Form] = {}

    def since(self, back: float) -> Time | None:
        """Return from when on a listing that goes back so many seconds asks; None: for all."""
        return None if self.watermark is None else max(self.watermark - back, self.floor or 0.0)

    def ingest(self, forms: Iterable[Form], now: Time) -> None:
        """Have those of the listed forms pending that are new; an older version is of a replica
        that lags.
        """
        for form in forms:
            if not self._wanted(form):
                held = self.pending.get(form.id)
                if held and (
                    held.updated is None or form.updated is None or form.updated >= held.updated
                ):
                    del self.pending[form.id]
                continue
            known = self._versions(form.id)
            newest = max((version for version in known if isinstance(version, float)), default=None)
            if form.version in known:
                if form.time is None:  # it is remembered for as long as it is listed
                    self._remember(form, now)
            elif form.time is not None and form.time < (self.floor or 0.0):
                continue
            elif newest is None or (form.updated is not None and form.updated > newest):
                self.pending[form.id] = form

    def polled(self, since: Time | None, started: Time) -> None:
        """Move the watermark past a complete poll, if it leaves no gap."""
        if since is not None and (self.watermark is None or since > self.watermark):
            self.has_gap = True
        elif self.watermark is None or started >= self.watermark:
            self.watermark, self.has_gap = started, False

    def _versions(self, identifier: int) -> set[Time | str]:
        key = str(identifier)
        found = {version for chunk in self._emitted.values() for version in chunk.get(key, ())}
        held = (self.pending.get(identifier), self._in_event.get(identifier))
        return found | {form.version for form in held if form is not None}

    def _remember(self, form: Form, now: Time) -> None:
        versions = self._emitted[RECENT].setdefault(str(form.id), {})
        versions[form.version] = now if form.time is None else form.time
        self._unsaved.add(RECENT)

    def next_event(self, max_forms: int) -> list[Form]:
        """Return the oldest of the pending forms; the same ones until :meth:`confirm`."""
        if not self._in_event:
            oldest = nsmallest(
                max_forms, self.pending.values(), key=lambda form: (form.time or 0.0, form.id)
            )
            self._in_event = {form.id: self.pending.pop(form.id) for form in oldest}
        return list(self._in_event.values())

    def confirm(self, now: Time) -> None:
        """Remember the forms of the last event as emitted: it is stored."""
        for form in self._in_event.values():
            self._remember(form, now)
        self._in_event = {}

    def to_store(self, now: Time) -> list[tuple[str, Any]]:
        """Return two or three entries, to be written in this order; then call :meth:`stored`."""
        self._emitted[RECENT] = self._remembered(self._emitted[RECENT])
        if len(self._emitted[RECENT]) >= MAX_RECENT:
            self._emitted = {key: self._remembered(chunk) for key, chunk in self._emitted.items()}
            period = max(DAY, self._late_by / (len(CHUNKS) - 2))
            chunk = CHUNKS[int(now // period) % len(CHUNKS)]
            for identifier, versions in self._emitted[RECENT].items():
                self._emitted[chunk].setdefault(identifier, {}).update(versions)
            self._emitted[RECENT] = {}
            self._unsaved |= {chunk, RECENT}
        settled = self._settled()
        if settled is not None and self.floor is not None:
            self.floor = max(self.floor, settled - self._late_by)
        entries: list[tuple[str, Any]] = []
        for key in (*CHUNKS, RECENT):
            if key in self._unsaved:
                rows = self._emitted[key].items()
                entries.append(
                    (key, {one: [[*pair] for pair in versions.items()] for one, versions in rows})
                )
        return [*entries, (WATERMARK, {"floor": self.floor, "watermark": settled})]

    def stored(self) -> None:
        """Note that the last :meth:`to_store` was written: what is older than its floor may be
        forgotten.
        """
        self._forgotten_before, self._unsaved = self.floor or 0.0, set()

    def restore(self, watermark: Mapping[str, Any], entries: Mapping[str, Any]) -> None:
        self.floor, self.watermark = watermark["floor"], watermark["watermark"]
        self._forgotten_before = self.floor or 0.0
        for key, entry in entries.items():
            self._emitted[key] = self._remembered({one: dict(row) for one, row in entry.items()})

    def _settled(self) -> Time | None:
        """Return the watermark, or before it the time of the oldest form that is not confirmed."""
        if self.watermark is None:  # the first listing is not over, and older forms may follow
            return None
        unconfirmed = (*self.pending.values(), *self._in_event.values())
        return min([self.watermark, *(form.time for form in unconfirmed if form.time is not None)])

    def _remembered(self, chunk: Versions) -> Versions:
        """Return a chunk without versions so old that they would not be emitted again."""
        kept = {
            identifier: {
                one: time for one, time in versions.items() if time >= self._forgotten_before
            }
            for identifier, versions in chunk.items()
        }
        return {identifier: versions for identifier, versions in kept.items() if versions}
