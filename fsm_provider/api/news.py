"""Which completed forms nobody was told of yet, across restarts: a state machine without I/O.

A form counts as new once for each (id, lastUpdatedOnDateTime). What was told is remembered for as long
as a sweep can bring it again, and stored in pieces of an hour, so that a sweep with one new form writes
little. The watermark moves only when all that a sweep found has been accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fsm_provider.api.forms import FormDemand, FormFilter, Reference, read_moment
from fsm_provider.api.sweeps import BELIEVED_AHEAD, Sweep, Swept, Watermark

WATERMARK = "watermark"
"""Where the watermark is stored, and the names of the pieces beside it."""
SEEN = "seen/"
"""What the name of a piece begins with: its hour follows, in UTC."""


class FormNews:
    """What is new of sweep after sweep.

    :param wanted: the filter, without lower bounds.
    :param form_names: only forms of these names; none: any form.
    :param start_from: where nothing is stored: ``beginning``, everything there is is new; ``now``, only
        what comes after the first sweep; a time, what was updated at or after it, for ever.
    :param look_back: what a sweep goes back behind the start of the one before it.
    :param reconcile_back: what a reconciliation goes back behind the watermark.
    :param reconcile_every: seconds between two reconciliations; the first sweep is one.
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
        self._names = FormDemand(form_names=tuple(form_names))
        self._first_is_news = start_from != "now"
        self._start = read_moment(start_from)
        self._watermark = Watermark(look_back, reconcile_every)
        self._reconcile_back = reconcile_back
        self._seen: dict[str, dict[str, Any]] = {}
        self._hour_of: dict[str, str] = {}
        self._unsaved: set[str] = set()
        self._open: tuple[Sweep, Swept, float] | None = None

    def restore(self, watermark: Mapping[str, Any], pieces: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up what :meth:`to_store` gave.

        :param watermark: the value of :data:`WATERMARK`.
        :param pieces: the values of the names that it lists.
        """
        moment = watermark["moment"]
        self._watermark.moment = None if moment is None else datetime.fromisoformat(moment)
        for name, seen in pieces.items():
            hour = name.removeprefix(SEEN)
            self._seen[hour] = dict(seen)
            self._hour_of.update(dict.fromkeys(seen, hour))

    def next_sweep(self, now: float, clock: datetime) -> Sweep:
        """Say what to ask for next.

        :param now: seconds of a clock that never goes back.
        :param clock: the time by our clock, for want of a watermark.
        """
        moment = self._watermark.moment
        whole = self._watermark.whole_is_due(now)
        if moment is not None:
            since: datetime | None = moment - self._reconcile_back if whole else moment
        elif self._first_is_news:
            since = self._start
        else:
            # All that any later sweep can bring, also where the service's clock is not ours.
            since = clock - self._watermark.look_back - self._reconcile_back - BELIEVED_AHEAD
        if since is not None and self._start is not None:
            since = max(since, self._start)
        filters = self._wanted.as_dict()
        if since is not None:
            filters["updated_since"] = since.isoformat()
        return Sweep(filters=filters, whole=whole)

    def take(self, sweep: Sweep, swept: Swept, now: float) -> list[Reference]:
        """Give what is new of a sweep; :meth:`accept` it, then :meth:`close` the sweep.

        :param now: the seconds that :meth:`next_sweep` was given.
        """
        self._open = sweep, swept, now
        each_once = self._names.wanted(swept.references)
        new = [reference for reference in each_once if not self._is_known(reference)]
        if self._watermark.moment is None and not self._first_is_news:
            self.accept(new)
            return []
        return new

    def accept(self, references: list[Reference]) -> None:
        """Remember that somebody was told of these."""
        _, swept, _ = self._sweep()
        for reference in references:
            identifier, updated = str(reference["id"]), reference["lastUpdatedOnDateTime"]
            hour = _hour(read_moment(updated) or swept.started)
            before = self._hour_of.get(identifier, hour)
            if before != hour:
                del self._seen[before][identifier]
                self._unsaved.add(before)
            self._seen.setdefault(hour, {})[identifier] = updated
            self._hour_of[identifier] = hour
            self._unsaved.add(hour)

    def close(self) -> None:
        """Move the watermark past the sweep, all of which was accepted, and forget what is too old."""
        sweep, swept, now = self._sweep()
        self._open = None
        self._watermark.move(swept.started, whole=sweep.whole, now=now)
        oldest = _hour(swept.started - self._watermark.look_back - self._reconcile_back - BELIEVED_AHEAD)
        for hour in [hour for hour in self._seen if hour < oldest]:
            for identifier in self._seen.pop(hour):
                del self._hour_of[identifier]
            self._unsaved.add(hour)

    def to_store(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]], list[str]]:
        """Give what is to be stored: the watermark, the pieces that changed, and those that go.

        The pieces are stored before the watermark, which lists them, and are deleted after it.
        :meth:`stored` is to be called once they are. Within the first sweep there is no watermark, and
        what was accepted is remembered all the same.
        """
        moment = self._watermark.moment
        watermark = {
            "moment": None if moment is None else moment.isoformat(),
            "pieces": [SEEN + hour for hour in sorted(self._seen)],
        }
        changed = {SEEN + hour: dict(self._seen[hour]) for hour in self._unsaved if hour in self._seen}
        return watermark, changed, [SEEN + hour for hour in self._unsaved if hour not in self._seen]

    def stored(self) -> None:
        """Note that what :meth:`to_store` gave is stored."""
        self._unsaved.clear()

    def _sweep(self) -> tuple[Sweep, Swept, float]:
        if self._open is None:
            raise RuntimeError("there is no sweep to accept from")
        return self._open

    def _is_known(self, reference: Reference) -> bool:
        identifier, updated = str(reference["id"]), reference["lastUpdatedOnDateTime"]
        hour = self._hour_of.get(identifier)
        return hour is not None and self._seen[hour][identifier] == updated


def _hour(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H")
