"""Which completed forms have not been emitted yet, across restarts: a state machine without I/O.

A form counts as new once for each (id, lastUpdatedOnDateTime), however that time is written. Without a
readable time it is new once for each digest of its record. An emitted version is remembered for as long as a
poll can return it again, and stored in chunks of an hour, so that a poll with one new form writes little. The
hour is that of its time, or that of the last poll that returned it. The watermark moves only when every new
form of a poll has been recorded.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fsm_provider.api.form_filter import FormFilter, FormReference, parse_reference_time
from fsm_provider.polling.criteria import FormCriteria
from fsm_provider.polling.shared_forms import MAX_CLOCK_SKEW, PollQuery, PollResult, Watermark

logger: logging.Logger = logging.getLogger(__name__)

MAX_START = 5.0
"""Seconds from a watcher's beginning to its first poll; after more, forms may have come before that poll."""
MAX_NAMED = 20
"""Identifiers of forms in one log line."""
WATERMARK = "watermark"
"""Key of the watermark, which also lists the keys of the chunks."""
SEEN = "seen/"
"""Prefix of a chunk's key; its hour follows, in UTC."""


class NewFormTracker:
    """Finds the new forms of each poll.

    :param wanted: the filter, without lower bounds.
    :param form_names: only forms with these names; empty: any form.
    :param start_from: what is new if nothing is stored: ``beginning``, every form; ``now``, forms after the
        first poll, or after the watcher began if it could not poll yet; a time, forms updated at or after it,
        also later on.
    :param look_back: how far a poll goes back before the start of the one before it.
    :param reconcile_back: how far a reconciliation goes back before the watermark.
    :param reconcile_every: seconds between two reconciliations; the first poll is one.
    """

    def __init__(
        self,
        wanted: FormFilter,
        *,
        form_names: Iterable[str] = (),
        start_from: str,
        look_back: timedelta,
        reconcile_back: timedelta,
        reconcile_every: float,
    ) -> None:
        self._wanted = wanted
        self._names = FormCriteria(form_names=tuple(form_names))
        self._first_poll_emits = start_from != "now"
        self._start = parse_reference_time(start_from)
        self._watermark = Watermark(look_back, reconcile_every)
        self._reconcile_back = reconcile_back
        self._seen: dict[str, dict[str, Any]] = {}
        self._hour_by_id: dict[str, str] = {}
        self._unsaved: set[str] = set()
        self._left: set[str] = set()
        self._open: tuple[PollQuery, PollResult, float] | None = None
        self._history_ends: datetime | None = None
        self._began = math.inf

    def restore(self, timestamp: datetime | None, *, from_other_filter: bool = False) -> None:
        """Restore a watermark of :meth:`to_store`.

        :param timestamp: its ``moment``.
        :param from_other_filter: it was stored for another filter or other names. Forms updated before it
            that were not emitted did not match then: they are history, as before the first poll.
        """
        self._watermark.timestamp = timestamp
        self._history_ends = timestamp if from_other_filter else None

    def begin(self, began: float) -> None:
        """Set when the watcher began: forms that came since, while it could not poll, are new.

        :param began: seconds of the clock that :meth:`ingest` is given.
        """
        self._began = began

    def restore_emitted(self, name: str, emitted: Mapping[str, Any]) -> None:
        """Restore a chunk of :meth:`to_store` by its key and its value."""
        for identifier, version in emitted.items():
            hour = name.removeprefix(SEEN)
            if self._hour_by_id.get(identifier, "") <= hour:
                self._add_seen(identifier, version, hour)

    def next_query(self, now: float, clock: datetime) -> PollQuery:
        """Return the query of the next poll.

        :param now: seconds of a clock that never goes back.
        :param clock: our time, used if there is no watermark.
        """
        timestamp = self._watermark.timestamp
        full = self._watermark.full_is_due(now)
        if timestamp is not None:
            since: datetime | None = timestamp - self._reconcile_back if full else timestamp
        elif self._first_poll_emits:
            since = self._start
        else:
            # Everything that a later poll can return, even if the service's clock is not ours.
            since = clock - self._watermark.look_back - self._reconcile_back - MAX_CLOCK_SKEW
        if since is not None and self._start is not None:
            since = max(since, self._start)
        filters = self._wanted.as_dict()
        if since is not None:
            filters["updated_since"] = since.isoformat()
        return PollQuery(filters=filters, full=full)

    def ingest(self, query: PollQuery, result: PollResult, now: float) -> list[FormReference]:
        """Return the new forms of a poll; :meth:`record` them, then :meth:`commit` the poll.

        :param now: the value that :meth:`next_query` was given.
        """
        self._open = query, result, now
        each_once = self._names.wanted(result.references)
        new = [reference for reference in each_once if not self._is_known(reference)]
        if self._watermark.timestamp is None and not self._first_poll_emits:
            waited = now - self._began
            if waited < MAX_START:
                self.record(new)
                return []
            self._history_ends = result.started - timedelta(seconds=waited)
        return self._without_history(new)

    def record(self, references: list[FormReference]) -> None:
        """Record that these forms of the ingested poll were emitted."""
        _, result, _ = self._open_poll()
        for reference in references:
            hour = _hour(self._updated(reference) or result.started)
            before = self._add_seen(str(reference["id"]), self._version_for(reference), hour)
            self._unsaved |= {before, hour}

    def commit(self) -> None:
        """Move the watermark past a poll whose forms are all recorded, and forget old versions."""
        query, result, now = self._open_poll()
        self._keep_undated(result)
        self._open = self._history_ends = None
        self._watermark.move(result.started, full=query.full, now=now)
        oldest = _hour(result.started - self._watermark.look_back - self._reconcile_back - MAX_CLOCK_SKEW)
        for hour in [hour for hour, seen in self._seen.items() if hour < oldest or not seen]:
            for identifier in self._seen.pop(hour):
                del self._hour_by_id[identifier]
            self._unsaved.add(hour)

    def to_store(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]], list[str]]:
        """Return what to store: the watermark, the changed chunks, and the keys of chunks to delete.

        Store the chunks before the watermark, which lists them, delete after it, then call :meth:`stored`.
        Until the first poll is committed the watermark has no time, and the chunks are stored all the same.
        """
        timestamp = self._watermark.timestamp
        watermark = {
            "moment": None if timestamp is None else timestamp.isoformat(),
            "pieces": [SEEN + hour for hour in sorted(self._seen)],
        }
        changed = {SEEN + hour: dict(self._seen[hour]) for hour in self._unsaved if hour in self._seen}
        return watermark, changed, [SEEN + hour for hour in self._unsaved if hour not in self._seen]

    def stored(self) -> None:
        """Note that the last :meth:`to_store` was stored.

        A chunk that a version has left is stored the next time. If it were stored before the watermark that
        lists the version's new chunk, a restart between the two would forget the version.
        """
        self._unsaved, self._left = self._left & self._seen.keys(), set()

    def _keep_undated(self, result: PollResult) -> None:
        """Move the versions without a readable time that a poll returned to the chunk of its hour."""
        hour = _hour(result.started)
        undated = [one for one in self._names.wanted(result.references) if self._updated(one) is None]
        for reference in undated:
            identifier, version = str(reference["id"]), self._version_for(reference)
            before = self._hour_by_id[identifier]
            if before < hour or self._seen[before][identifier] != version:
                self._unsaved.add(hour)
                self._left.add(self._add_seen(identifier, version, hour))

    def _add_seen(self, identifier: str, version: Any, hour: str) -> str:
        """Remember a version of a form; return the hour of the version before, or its own."""
        before = self._hour_by_id.get(identifier, hour)
        if before != hour:
            del self._seen[before][identifier]
        self._seen.setdefault(hour, {})[identifier] = version
        self._hour_by_id[identifier] = hour
        return before

    def _open_poll(self) -> tuple[PollQuery, PollResult, float]:
        if self._open is None:
            raise RuntimeError("no poll was ingested")
        return self._open

    def _without_history(self, new: list[FormReference]) -> list[FormReference]:
        """Record the forms that are unknown only because of another filter, and return the others."""
        ends = self._history_ends
        history = [one for one in new if ends and (self._updated(one) or ends) < ends]
        if not history:
            return new
        self.record(history)
        logger.warning(
            "%s forms unknown to this watcher were updated before it began to poll for such forms, at %s: "
            "they are history and not emitted: %s",
            len(history),
            ends,
            ", ".join(str(one["id"]) for one in history[:MAX_NAMED]),
        )
        return [one for one in new if not self._is_known(one)]

    def _is_known(self, reference: FormReference) -> bool:
        identifier = str(reference["id"])
        hour = self._hour_by_id.get(identifier)
        if hour is None:
            return False
        known = self._seen[hour][identifier]
        if updated := self._updated(reference):
            return parse_reference_time(known) == updated
        # Before there were digests, the value itself was stored.
        return known in (self._version_for(reference), reference["lastUpdatedOnDateTime"])

    def _updated(self, reference: FormReference) -> datetime | None:
        """Return when a form of the ingested poll was updated, None if its record has no readable time."""
        _, result, _ = self._open_poll()
        if reference["id"] in result.digests:
            return None
        return parse_reference_time(reference["lastUpdatedOnDateTime"])

    def _version_for(self, reference: FormReference) -> Any:
        """Return what is stored for a form of the ingested poll: its digest, or else its time as received."""
        _, result, _ = self._open_poll()
        return result.digests.get(reference["id"], reference["lastUpdatedOnDateTime"])


def _hour(timestamp: datetime) -> str:
    return timestamp.astimezone(UTC).strftime("%Y-%m-%dT%H")
