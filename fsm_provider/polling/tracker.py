"""Which forms are new to an asset, across restarts. Nothing here does I/O."""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any

from fsm_provider.polling.polls import BEGINNING, FormSelection, FormVersion, Time
from fsm_provider.polling.watcher_config import FORMAT, WEEK

DAY = 86_400.0
MAX_RECENT = 1_000
"""Forms that are stored anew with each event; more are merged into the chunk of the period."""
WATERMARK = "watermark"
RECENT = "recent"
CHUNKS = ("emitted/0", "emitted/1", "emitted/2", "emitted/3")
"""Keys of chunks, each for the forms that were merged in one period, and used in turn.

These keys come after the prefix of a service (:func:`~.watcher.prefix_for`).
"""
Version = Time | str
Versions = dict[str, dict[Version, Time]]
"""The time of each version that was emitted, by the form's identifier."""


class EmittedForms:
    """Remembers which versions of forms were emitted, as entries that are stored with the asset.

    The tracker owns it. :meth:`remember` puts a version into the entry :data:`RECENT`, which is
    small, as it is stored with each event. Once that is full, :meth:`prepare_save` merges it into
    the chunk of the period that it is now. What is older than the floor is forgotten, but only by a
    floor that is stored, which :meth:`finish_save` is told.

    :param unsaved: keys of stored entries that the next save is to replace.
    """

    def __init__(self, late_by: float, floor: Time, unsaved: Iterable[str]) -> None:
        # When the turn of a chunk comes again, what it holds is older than late_by, and forgotten.
        self._period = max(DAY, late_by / (len(CHUNKS) - 2))
        self._forgotten_before = floor
        self._entries: dict[str, Versions] = {key: {} for key in (*CHUNKS, RECENT)}
        self._unsaved = set(unsaved)

    def restore(self, entries: Mapping[str, Any]) -> None:
        for key, entry in entries.items():
            self._entries[key] = {
                identifier: dict(versions)
                for identifier, versions in entry.items()
                if isinstance(versions, list)  # it may have other fields
            }
            self._forget_old(key)

    def remember(self, form: FormVersion, now: Time) -> None:
        versions = self._entries[RECENT].setdefault(str(form.id), {})
        versions[form.version] = now if form.time is None else form.time
        self._unsaved.add(RECENT)

    def refresh(self, form: FormVersion, now: Time) -> None:
        """Remember an emitted version without a time for as long as it is listed."""
        if form.time is None and form.version in self.versions_of(form.id):
            self.remember(form, now)

    def versions_of(self, identifier: int) -> set[Version]:
        versions = set[Version]()
        for entry in self._entries.values():
            versions.update(entry.get(str(identifier), ()))
        return versions

    def prepare_save(self, now: Time) -> list[tuple[str, Any]]:
        """Forget what is old, and return the entries that have changed: the recent one is last."""
        self._forget_old(RECENT)
        if len(self._entries[RECENT]) >= MAX_RECENT:
            self._merge_recent(now)
        return [
            (key, _as_json(entry)) for key, entry in self._entries.items() if key in self._unsaved
        ]

    def finish_save(self, floor: Time) -> None:
        self._forgotten_before = floor
        self._unsaved.clear()

    def _merge_recent(self, now: Time) -> None:
        """Merge the recent versions into the chunk of the present period."""
        for key in CHUNKS:
            self._forget_old(key)
        number = int(now // self._period)
        key = CHUNKS[number % len(CHUNKS)]
        for identifier, versions in self._entries[RECENT].items():
            self._entries[key].setdefault(identifier, {}).update(versions)
        self._entries[RECENT] = {}
        self._unsaved |= {key, RECENT}

    def _forget_old(self, key: str) -> None:
        """Forget versions in an entry so old that they would not be emitted again."""
        remembered = {}
        floor = self._forgotten_before
        for identifier, versions in self._entries[key].items():
            kept = {version: time for version, time in versions.items() if time >= floor}
            if kept:
                remembered[identifier] = kept
        self._entries[key] = remembered


class FormTracker:
    """Finds the new forms of each listing, and keeps them until they were emitted.

    The watcher of an asset owns it, in one event loop. It calls :meth:`begin` or :meth:`restore`
    first. Then, as the feed polls, it calls :meth:`ingest` with the forms of a listing, and after
    all forms of a poll :meth:`record_poll`, which moves the watermark. Meanwhile it takes the
    oldest new forms (:meth:`take_event`), emits them, and once Airflow has stored the event calls
    :meth:`confirm_event`. It writes what :meth:`prepare_save` returns, and then calls
    :meth:`finish_save`: only then may what is older than the floor be forgotten.

    :ivar floor: what was updated before it is history, or forgotten, and is not emitted. None: not
        known, as the asset begins with its first poll.
    :ivar watermark: the start of the last poll that left no gap; before one, the floor.
    :ivar has_gap: there may be forms between the watermark and the last poll that were not listed.
    :ivar pending: new forms that were not emitted, by their identifier.
    """

    def __init__(self, selection: FormSelection, late_by: float = WEEK) -> None:
        self._selection = selection
        self._late_by = late_by
        self.begin(None)

    def begin(self, floor: Time | None, stored_keys: Iterable[str] = ()) -> None:
        """Begin with all that was updated since the floor.

        :param stored_keys: of entries of emitted forms that are stored, and to be forgotten.
        """
        self.floor: Time | None = floor
        self.watermark: Time = self._lowest()
        self.has_gap: bool = True
        self.pending: dict[int, FormVersion] = {}
        self._in_event: dict[int, FormVersion] = {}
        self._emitted = EmittedForms(self._late_by, self._lowest(), stored_keys)

    def restore(self, stored: Mapping[str, Any], entries: Mapping[str, Any]) -> None:
        """Go on from what was stored: that of :data:`WATERMARK`, and the entries of other keys."""
        self.begin(stored.get("floor") or BEGINNING)
        self.watermark = stored.get("watermark") or self.watermark
        self._emitted.restore(entries)

    def since(self, back: float) -> Time:
        """Return the bound of a listing that goes back so many seconds behind the watermark."""
        return max(self.watermark - back, self._lowest())

    def ingest(self, forms: Iterable[FormVersion], now: Time) -> None:
        """Add the listed forms that are new to the pending ones.

        One that is not wanted any more is forgotten, unless a newer version of it is pending.
        """
        for form in forms:
            if not self._selection.matches(form):
                pending = self.pending.get(form.id)
                if pending is not None and not _is_older(form, pending):
                    del self.pending[form.id]
                continue
            known = self._known_versions(form.id)
            if form.version in known:
                self._emitted.refresh(form, now)
            elif not self._is_history(form) and _is_newest(form, known):
                self.pending[form.id] = form

    def record_poll(self, since: Time, started: Time) -> None:
        """Move the watermark past a complete poll, if it leaves no gap."""
        if since > self.watermark:
            self.has_gap = True
        elif started >= self.watermark:
            self.watermark = started
            self.has_gap = False

    def take_event(self, max_forms: int) -> list[FormVersion]:
        """Take the oldest of the pending forms; until they are confirmed, return the same ones."""
        if not self._in_event:
            oldest = nsmallest(
                max_forms, self.pending.values(), key=lambda form: (form.time or BEGINNING, form.id)
            )
            for form in oldest:
                self._in_event[form.id] = self.pending.pop(form.id)
        return list(self._in_event.values())

    def confirm_event(self, now: Time) -> None:
        """Remember the forms of the last event as emitted: it is stored."""
        for form in self._in_event.values():
            self._emitted.remember(form, now)
        self._in_event = {}

    def prepare_save(self, now: Time) -> list[tuple[str, Any]]:
        """Raise the floor, and return the entries that have changed, to be written in this order.

        The last one is that of the watermark, so that it never passes what is not remembered.
        """
        entries = self._emitted.prepare_save(now)
        watermark = self._confirmed_watermark()
        if self.floor is not None:
            self.floor = max(self.floor, watermark - self._late_by)
        stored = {"format": FORMAT, "floor": self.floor, "watermark": watermark or None}
        return [*entries, (WATERMARK, stored)]

    def finish_save(self) -> None:
        """Note that what :meth:`prepare_save` has returned is written."""
        self._emitted.finish_save(self._lowest())

    def _lowest(self) -> Time:
        return BEGINNING if self.floor is None else self.floor

    def _is_history(self, form: FormVersion) -> bool:
        return form.time is not None and form.time < self._lowest()

    def _known_versions(self, identifier: int) -> set[Version]:
        """Return the versions of a form that are emitted, in an event, or pending."""
        versions = self._emitted.versions_of(identifier)
        for forms in (self.pending, self._in_event):
            form = forms.get(identifier)
            if form is not None:
                versions.add(form.version)
        return versions

    def _confirmed_watermark(self) -> Time:
        """Return the watermark, or before it the time of the oldest form that is not confirmed.

        One without a time may be listed from the floor alone.
        """
        confirmed = self.watermark
        for form in (*self.pending.values(), *self._in_event.values()):
            time = self._lowest() if form.time is None else form.time
            confirmed = min(confirmed, time)
        return confirmed


def _is_newest(form: FormVersion, known: Iterable[Version]) -> bool:
    """Return whether no newer version is known: an older one is of a replica that lags."""
    times = [version for version in known if isinstance(version, float)]
    if not times:
        return True
    return form.updated is not None and form.updated > max(times)


def _is_older(form: FormVersion, other: FormVersion) -> bool:
    if form.updated is None or other.updated is None:
        return False
    return form.updated < other.updated


def _as_json(versions_by_id: Versions) -> dict[str, Any]:
    """Return an entry as JSON, whose keys are texts only: each version with its time is a pair."""
    pairs_by_id = {
        identifier: list(map(list, versions.items()))
        for identifier, versions in versions_by_id.items()
    }
    return {"format": FORMAT, **pairs_by_id}
