"""A deferred form sensor: what passes between worker and triggerer, and when the worker is woken.

The trigger wakes, the worker decides. So a wait goes in rounds of five steps:

1. The worker polls (``FsmFormSensor.poke``): a listing of the sensor's own. If its forms are
   enough, the task succeeds; only such a listing ever decides.
2. Else the worker describes the wait as a :class:`WaitState`: what it has found, and when it
   polled. It defers with a :class:`~fsm_provider.triggers.forms.FsmFormTrigger` that carries the
   state, and the task leaves the worker.
3. The triggerer runs the trigger, which makes a :class:`Wait` of the state, and subscribes it to
   the :class:`~.feed.Feed` that all waits on this service share.
4. The feed gives the wait the forms that it lists. The wait wakes the trigger once those, together
   with what the worker had found, may be enough; on an error that is tolerated no longer; or when
   the connection leads elsewhere. At its deadline the trigger wakes by itself.
5. The trigger fires an event with the state, and no forms. Airflow starts the task again on a
   worker (``FsmFormSensor.resume_execution``), and the next round begins. After the deadline, its
   poll is the last one.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from fsm_provider.api.errors import FsmError
from fsm_provider.polling.formats import known_fields, refuse_newer
from fsm_provider.polling.limits import give_up_at
from fsm_provider.polling.polls import (
    BEGINNING,
    Criteria,
    FormSelection,
    FormVersion,
    Query,
    RoutingKey,
    Time,
)

CATCH_UP_EVERY = 900.0
"""Seconds between two catch-ups of a young wait, and the longest rest after one that woke in vain.
"""
CATCH_UPS_PER_AGE = 20
"""A wait whose bound is old is caught up after this part of its age: listings grow with it."""
MAX_KNOWN = 100
"""Forms that a trigger is given; a wait for more begins with its own query."""
MAX_DOUBLINGS = 20
"""Of the rest after futile wakes, which is at its longest before: it keeps the number small."""
FORMAT = 1
"""Of the states that this version writes, and the newest that it reads."""
DEFERRED_BY_NEWER = (
    "this task was deferred by a newer version of airflow-provider-fsm (format {}): "
    "install that version again, or clear the task"
)


@dataclass(frozen=True, slots=True)
class WaitState:
    """What the worker hands to the trigger, and the trigger hands back.

    All are JSON values. Times are by the worker's clock, but for ``polled_at``.

    :ivar began: when the task began to wait; it ends at ``deadline``.
    :ivar since: the bound of the first poll, ISO 8601, by whichever clock gave it.
    :ivar clock_offset: the seconds from there to the bound by the service's clock; None: they are
        to be found out.
    :ivar polled_at: when the worker's last listing began; None: none has succeeded.
    :ivar known: the forms that count, as pairs of id and name; None: not known, or too many.
    :ivar futile_wakes: polls in a row on the worker that failed, or found nothing new after a wake.
    :ivar failing_since: since when polls fail, on the worker or in the triggerer; None: they work.
    :ivar paused_until: when the service may be asked again, as it has told the worker to wait.
    """

    service: str
    began: float
    deadline: float
    since: str | None = None
    polled_at: Time | None = None
    known: list[list[Any]] | None = None
    futile_wakes: int = 0
    failing_since: float | None = None
    paused_until: float = 0.0
    clock_offset: float | None = 0.0
    format: int = FORMAT

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], timeout: float) -> Self:
        """Return the state that another process has written, maybe of another version.

        :param timeout: the seconds until the deadline, if the state has none.
        :raises FsmInputError: if a newer version has written it.
        """
        refuse_newer(stored, FORMAT, DEFERRED_BY_NEWER)
        values = known_fields(cls, stored)
        values.setdefault("service", "")  # no service has this name: the wait soon ends
        values.setdefault("began", time.time())
        values.setdefault("deadline", time.time() + timeout)
        return cls(**values)

    @property
    def covered_since(self) -> Time | None:
        """Return when the poll whose forms it knows started; None: it does not know them."""
        return None if self.known is None else self.polled_at

    def pause(self, interval: float) -> float:
        """Return the seconds before it may wake again: twice as many after each futile wake."""
        longest = max(CATCH_UP_EVERY, interval)
        doubled: float = interval * 2 ** min(self.futile_wakes, MAX_DOUBLINGS)
        return min(doubled, longest)

    def after_poll(self, service: str, names_by_id: Mapping[int, str], polled_at: Time) -> Self:
        """Return the state after a poll on the worker that did not find enough."""
        pairs = [[identifier, name] for identifier, name in sorted(names_by_id.items())]
        known = pairs if len(pairs) <= MAX_KNOWN else None
        may_be_the_same = known is None or known == self.known
        was_futile = may_be_the_same and self.polled_at is not None
        return replace(
            self,
            service=service,
            polled_at=polled_at,
            known=known,
            futile_wakes=self.futile_wakes + 1 if was_futile else 0,
            failing_since=None,
        )

    def after_failure(self, failing_since: float) -> Self:
        """Return the state after a poll on the worker that failed."""
        return replace(self, futile_wakes=self.futile_wakes + 1, failing_since=failing_since)


@dataclass(eq=False, slots=True)
class Wait:
    """A deferred sensor in the triggerer: a :class:`~.subscriber.Subscriber` of the feed.

    The trigger makes it, subscribes it, awaits :attr:`woken`, and wakes it at the deadline; then it
    reads why it was woken. The feed calls the methods of a subscriber, in the same event loop. Once
    woken, it is of no more use.

    :ivar tolerance: the seconds for which listings may fail, from :attr:`subscribed_at` on.
    :ivar names_by_id: what counts of all forms that it has heard of.
    :ivar has_polled: a poll on the worker has succeeded; if not, the first one here wakes it.
    :ivar answered_at: when a listing last succeeded without waking it. Like the other times here,
        by the event loop.
    :ivar woken: done once it is worth a poll on the worker.
    :ivar failed_for: the seconds of the failures that have woken it.
    """

    selection: FormSelection
    criteria: Criteria
    tolerance: float
    names_by_id: dict[int, str]
    has_polled: bool = True
    woken: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    failed_for: float | None = None
    subscribed_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    answered_at: float = 0.0
    _giving_up: asyncio.TimerHandle | None = None

    is_wait: ClassVar[bool] = True

    def routing_keys(self) -> list[RoutingKey]:
        return self.selection.routing_keys()

    def begin_catch_up(self) -> list[Query]:
        return self.selection.queries_by_place()

    def check_after(self, now: Time) -> float:
        bounds = [self.selection.created_since, self.selection.updated_since]
        age = now - min((bound for bound in bounds if bound > BEGINNING), default=now)
        return max(CATCH_UP_EVERY, age / CATCH_UPS_PER_AGE)

    def ingest(self, forms: Iterable[FormVersion]) -> None:
        """Count forms, and wake the sensor if all that it knows of are enough."""
        for form in forms:
            if self.selection.matches(form):
                self.names_by_id[form.id] = form.name
            else:
                self.names_by_id.pop(form.id, None)
        if self.criteria.are_met(self.names_by_id):
            self.wake()

    def on_poll(self, since: Time, started: Time) -> None:
        """Note that listings fail no longer."""
        if self.has_polled:
            self._note_answer()
        else:  # it does not know the service's clock
            self.wake()

    def on_catch_up(self, started: Time) -> None:
        """Note that its own listings fail no longer."""
        self._note_answer()

    def _note_answer(self) -> None:
        self.cancel_giving_up()
        self.answered_at = asyncio.get_running_loop().time()

    def on_failure(self, error: FsmError, since: float) -> None:
        """Wake once the failures are tolerated no longer: the worker's poll decides."""
        self.cancel_giving_up()
        failing_since = max(since, self.subscribed_at)
        wake_at = give_up_at(error, failing_since, self.tolerance)
        loop = asyncio.get_running_loop()
        self._giving_up = loop.call_at(wake_at, self._give_up, failing_since)

    def cancel_giving_up(self) -> None:
        """Cancel the wake that failures have set a time for."""
        if self._giving_up is not None:
            self._giving_up.cancel()

    def _give_up(self, failing_since: float) -> None:
        self.failed_for = asyncio.get_running_loop().time() - failing_since
        self.wake()

    def on_service_changed(self) -> None:
        """Wake: the worker's poll begins anew with that service."""
        self.wake()

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)
