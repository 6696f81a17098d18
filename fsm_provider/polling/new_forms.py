"""Which completed forms have not been emitted yet, across restarts: a state machine without I/O.

A form counts as new once for each (id, lastUpdatedOnDateTime), however that time is written. Without a
readable time it is new once for each digest of its record. An emitted version is remembered for as long as a
poll can return it again, and stored in chunks of an hour, so that a poll with one new form writes little. The
hour is that of its time, or that of the last poll that returned it. There are two watermarks: the next poll
begins at the end of the last, but what is stored moves past a poll only once all its new forms are recorded.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NotRequired, TypedDict

from fsm_provider.api.form_filter import FormFilter, FormReference, parse_reference_time
from fsm_provider.polling.criteria import FormCriteria
from fsm_provider.polling.emitted_forms import EmittedForms
from fsm_provider.polling.old_polls import MAX_CLOCK_SKEW, PollQuery, PollResult
from fsm_provider.polling.pending_forms import NewForm, PendingForms
from fsm_provider.polling.replays import Replay

logger: logging.Logger = logging.getLogger(__name__)

MAX_START = 5.0
"""Seconds from a watcher's beginning to its first poll; after more, forms may have come before that poll."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""No form is older, and the service may not know an earlier time: a bound before it is not sent."""
MAX_NAMED = 20
"""Identifiers of forms in one log line."""
WATERMARK = "watermark"
"""Key of the watermark, which also lists the keys of the chunks."""


class StoredWatermark(TypedDict):
    """A watermark as it is stored; times are ISO 8601.

    :param moment: where a restart begins: before every poll with a pending form; None: at the start.
    :param pieces: the keys of the chunks of emitted forms.
    :param polled: where the next poll would have begun, if forms are pending.
    :param oldest_pending: when the first of the pending forms was updated, if that is before ``moment``.
    :param replayed: the identifier of the last replay that was begun.
    """

    moment: str | None
    pieces: list[str]
    polled: NotRequired[str]
    oldest_pending: NotRequired[str]
    replayed: NotRequired[str]


class NewFormTracker:
    """Finds the new forms of each poll, and keeps them until they were emitted.

    :param wanted: the filter, without lower bounds.
    :param property_ids: only forms of these properties; empty: of any.
    :param job_ids: only forms of these jobs; empty: of any.
    :param form_names: only forms with these names; empty: any form.
    :param start_from: what is new if nothing is stored: ``beginning``, every form; ``now``, forms after the
        first poll, or after the watcher began if it could not poll yet; a time, forms updated at or after it,
        also later on.
    :param look_back: how far a poll goes back before the start of the one before it.
    :param reconcile_back: how far a reconciliation goes back before the watermark.
    :param reconcile_every: seconds between two reconciliations; the first poll is one.
    :param began: when the watcher began, by the clock that :meth:`ingest` is given: forms that came since,
        while it could not poll, are new.
    """

    def __init__(
        self,
        wanted: FormFilter,
        *,
        property_ids: Iterable[int | str] = (),
        job_ids: Iterable[int | str] = (),
        form_names: Iterable[str] = (),
        start_from: str,
        look_back: timedelta,
        reconcile_back: timedelta,
        reconcile_every: float,
        began: float = math.inf,
    ) -> None:
        self._wanted = wanted
        self._property_ids, self._job_ids = set(map(str, property_ids)), set(map(str, job_ids))
        self._names = FormCriteria(form_names=tuple(form_names))
        self._first_poll_emits = start_from != "now"
        self._start = parse_reference_time(start_from)
        self._look_back, self._reconcile_back = look_back, reconcile_back
        self._reconcile_every = reconcile_every
        self._watermark: datetime | None = None
        self._reconciled_at = -math.inf
        self._emitted = EmittedForms()
        self._pending = PendingForms()
        self._event: list[NewForm] = []
        self._history_ends: datetime | None = None
        self._replay: Replay | None = None
        self._replayed: str | None = None
        self._began = began
        self._oldest: datetime | None = None

    @property
    def pending(self) -> int:
        """Number of forms that are still to emit."""
        return len(self._pending)

    def restore(self, stored: StoredWatermark, *, from_other_filter: bool = False) -> None:
        """Restore a watermark of :meth:`to_store`.

        :param from_other_filter: it was stored for another filter or other names. Forms updated before it
            that were not emitted did not match then: they are history, as before the first poll. If forms
            were pending, history ends before the first of them.
        """
        timestamp = parse_reference_time(stored["moment"])
        self._replayed = stored.get("replayed")
        self._watermark = self._pending.watermark = timestamp
        if from_other_filter:
            self._history_ends = parse_reference_time(stored.get("oldest_pending")) or timestamp

    def restore_emitted(self, key: str, emitted: Mapping[str, Any], *, is_own: bool = True) -> None:
        """Restore a chunk of :meth:`to_store` by its key and its value; see :meth:`EmittedForms.restore`."""
        self._emitted.restore(key, emitted, is_own=is_own)

    def replay(self, replay: Replay) -> None:
        """Make the forms that are requested new again.

        Call it once all is restored. Before the forms of the first poll were emitted it makes none new. What
        is not remembered, and not requested, is history: as far back as nothing is remembered.
        """
        self._replayed = replay.id
        if (timestamp := self._watermark) is None:
            return
        self._replay = replay
        self._emitted.remove(lambda version: replay.covers(parse_reference_time(version)))
        remembered = timestamp - self._reconcile_back
        self._history_ends = max(self._history_ends or remembered, remembered)
        self._watermark = self._pending.watermark = min(timestamp, replay.since)

    def next_query(self, now: float, clock: datetime) -> PollQuery:
        """Return the query of the next poll.

        :param now: seconds of a clock that never goes back.
        :param clock: our time, used if there is no watermark.
        """
        timestamp = self._watermark
        if timestamp is not None:
            oldest: datetime | None = timestamp - self._reconcile_back
        elif self._first_poll_emits:
            oldest = self._start
        else:
            # Everything that a later poll can return, even if the service's clock is not ours.
            oldest = clock - self._look_back - self._reconcile_back - MAX_CLOCK_SKEW
        self._oldest = self._not_before_start(oldest)
        is_due = timestamp is None or now - self._reconciled_at >= self._reconcile_every
        since = self._oldest if is_due else self._not_before_start(timestamp)
        if since is not None and since < EPOCH:
            since = None
        return PollQuery(wanted=replace(self._wanted, updated_since=since))

    def ingest(self, query: PollQuery, result: PollResult, now: float) -> list[FormReference]:
        """Add a poll, and return its new forms, which are pending from now on.

        :param query: of the listing, which may go back further than the last :meth:`next_query`, and not be
            restricted to its property or job.
        :param now: the value that :meth:`next_query` was given.
        """
        new = []
        for form in self._wanted_from(result):
            pending = self._pending.get(form.id)
            if form.id in self._emitted and _is_version(self._emitted[form.id], form):
                if form.updated is None:
                    self._emitted.keep(form.id, form.hour)
            elif pending is not None and _is_version(pending.version, form):
                pending.hour = form.hour
            else:
                new.append(form)
        new = self._without_history(new, result, now)
        if query.since is None or (self._oldest is not None and query.since <= self._oldest):
            self._reconciled_at = now
        self._watermark = result.started - self._look_back
        self._pending.add(new, self._watermark)
        self._forget()
        return [form.reference for form in new]

    def next_event(self, max_forms: int) -> list[FormReference]:
        """Return the forms to emit next; :meth:`record` the event once it is stored.

        While there are more, it takes in turn the forms of the oldest polls, and those of the newest.
        """
        self._event = self._pending.next_event(max_forms)
        return [form.reference for form in self._event]

    def record(self) -> None:
        """Record that the last :meth:`next_event` was emitted."""
        self._add_emitted(self._event)
        self._pending.remove(self._event)
        self._event = []
        self._forget()

    def to_store(self) -> tuple[StoredWatermark, dict[str, dict[str, Any]], list[str]]:
        """Return what to store: the watermark, the changed chunks, and the keys of chunks to delete.

        Store the chunks before the watermark, which lists them, delete after it, then call :meth:`stored`.
        Until all forms of the first poll are recorded the watermark may have no time; the chunks are stored
        all the same.
        """
        timestamp, polled = self._pending.watermark, self._watermark
        watermark = StoredWatermark(
            moment=None if timestamp is None else timestamp.isoformat(), pieces=self._emitted.keys()
        )
        if self._pending and polled is not None:
            watermark["polled"] = polled.isoformat()
            oldest = self._pending.oldest_update()
            if timestamp is not None and oldest is not None and oldest < timestamp:
                watermark["oldest_pending"] = oldest.isoformat()
        if self._replayed is not None:
            watermark["replayed"] = self._replayed
        return watermark, *self._emitted.to_store()

    def stored(self) -> None:
        """Note that the last :meth:`to_store` was stored."""
        self._emitted.stored()

    def _forget(self) -> None:
        """Forget the emitted versions that no poll can return again, not even after a restart."""
        if self._pending.watermark is not None:
            oldest = self._pending.watermark - self._reconcile_back - MAX_CLOCK_SKEW
            self._emitted.forget_before(_hour(oldest))

    def _wanted_from(self, result: PollResult) -> Iterator[NewForm]:
        """Yield the forms that a poll of this tracker alone could return, each once."""
        matching = {
            one["id"]: one
            for one in result.references
            if self._wanted.matches_reference(one)
            and self._names.counts(one)
            and (not self._property_ids or str(one["propertyID"]) in self._property_ids)
            and (not self._job_ids or str(one["jobID"]) in self._job_ids)
        }
        for reference in matching.values():
            form = _form_from(reference, result)
            if not _is_before(form, self._oldest):
                yield form

    def _not_before_start(self, bound: datetime | None) -> datetime | None:
        return max(filter(None, [bound, self._start]), default=None)

    def _without_history(self, new: list[NewForm], result: PollResult, now: float) -> list[NewForm]:
        """Record the forms that are history as if they were emitted, and return the others."""
        ends, self._history_ends = self._history_ends, None
        if self._watermark is None and not self._first_poll_emits:
            # A restart asks for the same forms again, and knows which of them are history.
            self._pending.watermark = self._oldest and self._oldest + self._reconcile_back
            waited = now - self._began
            if waited < MAX_START:
                self._add_emitted(new)
                return []
            ends = result.started - timedelta(seconds=waited)
        history = [form for form in new if self._is_history(form, ends)]
        if history:
            self._add_emitted(history)
            logger.warning(
                "%s forms unknown to this watcher were updated before what it remembers begins, at %s: they "
                "are history and not emitted: %s",
                len(history),
                ends,
                ", ".join(form.id for form in history[:MAX_NAMED]),
            )
        return [form for form in new if not self._is_history(form, ends)]

    def _is_history(self, form: NewForm, ends: datetime | None) -> bool:
        return _is_before(form, ends) and not (self._replay and self._replay.covers(form.updated))

    def _add_emitted(self, forms: list[NewForm]) -> None:
        for form in forms:
            self._emitted.add(form.id, form.version, form.hour)


def _form_from(reference: FormReference, result: PollResult) -> NewForm:
    """Return a form of a poll. Its version is its record's digest, or else its time as received."""
    identifier, updated = reference["id"], reference["lastUpdatedOnDateTime"]
    timestamp = None if identifier in result.digests else parse_reference_time(updated)
    hour = _hour(timestamp or result.started)
    return NewForm(reference, result.digests.get(identifier, updated), timestamp, hour)


def _is_version(known: Any, form: NewForm) -> bool:
    """Return whether a form is a version that is known."""
    if form.updated is not None:
        return parse_reference_time(known) == form.updated
    return bool(known == form.version)


def _is_before(form: NewForm, ends: datetime | None) -> bool:
    return ends is not None and form.updated is not None and form.updated < ends


def _hour(timestamp: datetime) -> str:
    return timestamp.astimezone(UTC).strftime("%Y-%m-%dT%H")
