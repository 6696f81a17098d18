"""What a deferred form sensor waits with, and what watches an asset of completed forms."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import TriggerEvent

from fsm_provider.polling import FormPoller, Outage, Patience, follow

if TYPE_CHECKING:
    from fsm_provider.api.forms import FormFilter, FormFilters, Reference
    from fsm_provider.api.sweeps import Snapshot
    from fsm_provider.watching import FormEventProducer

EARLIEST_EVENT = 15.0
"""Seconds that a trigger waits before its event, however soon it has one.

Airflow fails a task that is queued again before the scheduler has read that the process that deferred
it ended ("finished with state success, but the task instance's state attribute is queued"). On two
busy cores that took up to 11 s from the deferral.
"""
NEEDS_3_3 = (
    "watching for completed forms needs Airflow 3.3 or newer: before, an asset watcher can neither keep "
    "its watermark nor learn which of its events are stored, so forms would be lost or told twice. "
    "Schedule the DAG by time instead and list what was updated since its last run that succeeded, as the "
    "example forms_since_watermark does."
)
FAILURE_TOLERANCE = 600.0
"""Seconds."""
SHARED_FOR = timedelta(days=7)
"""A wait that goes back further when it defers polls by itself: a stream would list all forms since."""
LOOK_BACK = timedelta(hours=1)
WHOLE_SWEEP_EVERY = 900.0
"""Seconds, at least, between two sweeps of a stream that find forms with old times."""
RETELL_EVERY = 0.8 * EARLIEST_EVENT
"""Seconds after which a stream tells again what has not changed, for those who have joined since.

They may have no event before :data:`EARLIEST_EVENT`, so it costs them nothing; and each telling wakes all.
"""


class FsmFormTrigger(BaseEventTrigger):
    """Look for completed forms at an interval until they are enough.

    On Airflow 3.3 and newer, waits on one connection share the requests: the triggerer runs one
    stream of sweeps for all whose interval, filters and lower bounds agree, where property, job,
    form names and the time of day need not. Each picks its own forms out of what the stream knows.
    Elsewhere, also in ``dag.test()``, a trigger asks for its own forms alone; it finds the same.

    The worker has looked just before it deferred, so a look at once would tell nothing.

    Fires once, with ``{"forms": [...references...]}`` or ``{"error": {...}}``
    (:meth:`fsm_provider.api.FsmError.as_dict`).

    :param fsm_conn_id: the Airflow connection.
    :param filters: as :meth:`fsm_provider.api.forms.FormFilter.as_dict` gives them.
    :param minimum_forms: so many forms are enough.
    :param form_names: and at least one of each of these names.
    :param query_params: query parameters that the specification does not show.
    :param poll_interval: seconds between two looks, at least 1.
    :param failure_tolerance: seconds for which looks may go on failing before that is the event. An
        error that time alone does not mend is the event at once.
    :param shared: share the requests where possible.
    """

    supports_triggerer_queue = True

    def __init__(
        self,
        *,
        fsm_conn_id: str,
        filters: FormFilters,
        minimum_forms: int,
        form_names: list[str],
        query_params: dict[str, Any] | None,
        poll_interval: float,
        failure_tolerance: float = FAILURE_TOLERANCE,
        shared: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fsm_conn_id = fsm_conn_id
        self.filters = filters
        self.minimum_forms = minimum_forms
        self.form_names = form_names
        self.query_params = query_params
        self.poll_interval = poll_interval
        self.failure_tolerance = failure_tolerance
        self.shared = shared

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Give what another triggerer needs to go on."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "fsm_conn_id": self.fsm_conn_id,
                "filters": self.filters,
                "minimum_forms": self.minimum_forms,
                "form_names": self.form_names,
                "query_params": self.query_params,
                "poll_interval": self.poll_interval,
                "failure_tolerance": self.failure_tolerance,
                "shared": self.shared,
            },
        )

    def shared_stream_key(self) -> str | None:
        """Name the stream that this wait can share, None where it is to ask by itself."""
        widened = self._filter().widened()
        if not self.shared or (widened.created_since is None and widened.updated_since is None):
            return None
        parts = [self.fsm_conn_id, float(self.poll_interval), widened.as_dict(), self.query_params]
        return f"fsm forms {json.dumps(parts, sort_keys=True, default=str)}"

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Snapshot | Outage]:
        """Sweep for all who share the key; ``kwargs`` are those of any of them."""
        interval = kwargs["poll_interval"]
        trigger = cls(**kwargs)
        sweeps = trigger._sweeps(
            trigger._filter().widened(),
            whole_every=max(WHOLE_SWEEP_EVERY, 10 * interval),
            # Nobody may have an event before that, and meanwhile others join.
            first_after=min(interval, EARLIEST_EVENT),
        )
        clock = asyncio.get_running_loop().time
        told_at, was_outage = -math.inf, False
        async with aclosing(sweeps):
            async for seen in sweeps:
                is_news = isinstance(seen, Outage) or seen.is_news or was_outage
                was_outage = isinstance(seen, Outage)
                if is_news or clock() - told_at >= RETELL_EVERY:
                    told_at = clock()
                    yield seen

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Snapshot | Outage]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Wait until the stream knows enough forms, or patience runs out."""
        from fsm_provider.api.forms import FormDemand
        from fsm_provider.api.sweeps import FormWait

        clock = asyncio.get_running_loop().time
        earliest = clock() + self._settling()
        patience = Patience(self.failure_tolerance)
        demand = FormDemand(minimum_forms=self.minimum_forms, form_names=tuple(self.form_names))
        wait = FormWait(self._filter(), demand)
        async for seen in shared_stream:
            if isinstance(seen, Outage):
                tried = patience.is_tried
                if not patience.is_over(seen.error, clock()):
                    if not tried:
                        self.log.warning(
                            "Looking for forms failed, and goes on for up to %g s: %s",
                            self.failure_tolerance,
                            seen.error,
                        )
                    continue
                payload: dict[str, Any] = {"error": seen.error.as_dict()}
            else:
                patience.renew()
                forms = wait.look_at(seen)
                if forms is None:
                    continue
                payload = {"forms": forms}
            await asyncio.sleep(earliest - clock())
            yield TriggerEvent(payload)
            return

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Ask for this wait's own forms alone, each time anew: they are few."""
        sweeps = self._sweeps(
            self._filter(), whole_every=0.0, first_after=max(self.poll_interval, self._settling())
        )
        async with aclosing(sweeps), aclosing(self.filter_shared_stream(sweeps)) as events:
            async for event in events:
                yield event

    def _settling(self) -> float:
        """Give the seconds before which there may be no event; ``dag.test()`` has no scheduler."""
        return 0.0 if self.trigger_id is None else EARLIEST_EVENT

    def _filter(self) -> FormFilter:
        from fsm_provider.api.forms import FormFilter

        return FormFilter(**self.filters)

    async def _sweeps(
        self, wanted: FormFilter, *, whole_every: float, first_after: float
    ) -> AsyncGenerator[Snapshot | Outage, None]:
        from fsm_provider.api.sweeps import FormWindow

        window = FormWindow(wanted, look_back=LOOK_BACK, whole_every=whole_every)
        poller = FormPoller(self.fsm_conn_id, self.query_params)
        sweeps = follow(
            poller,
            next_sweep=window.next_sweep,
            take=window.take,
            interval=self.poll_interval,
            first_after=first_after,
        )
        try:
            async with aclosing(sweeps):
                async for seen in sweeps:
                    yield seen
        finally:
            poller.close()


class FormWatch(TypedDict):
    """What a watcher of completed forms is given: times in seconds, and every value plain JSON."""

    asset_name: str
    fsm_conn_id: str
    filters: FormFilters
    form_names: list[str]
    query_params: dict[str, Any] | None
    poll_interval: float
    start_from: str
    look_back: float
    reconcile_every: float
    reconcile_back: float


class FsmFormEventTrigger(BaseEventTrigger):
    """Tell of newly completed forms, sweep after sweep, as the watcher of an asset (Airflow 3.3).

    Each event holds what a sweep found that no event has told of: ``{"forms": [...references...]}``, at
    most 100. What was told is stored with the asset once the events are in Airflow's database. Made by
    :func:`fsm_provider.assets.forms.completed_forms`, whose parameters these are; times are in seconds,
    and every value is plain JSON, or Airflow would take the trigger for another one at each parsing.

    :param asset_name: the asset in whose state store the watermark is.
    """

    def __init__(self, **watch: Unpack[FormWatch]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Give what another triggerer needs to go on."""
        return f"{type(self).__module__}.{type(self).__qualname__}", dict(self._watch)

    def shared_stream_key(self) -> str:
        """Name this watcher's own stream: only a stream can tell when its events are stored."""
        return f"fsm form events {json.dumps(self._watch, sort_keys=True, default=str)}"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> FormEventProducer:
        """Make what sweeps for the events, and notes which of them are stored."""
        from fsm_provider.watching import FormEventProducer

        return FormEventProducer(**kwargs)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[list[Reference]]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Make an event of each list of new forms."""
        async for forms in shared_stream:
            yield TriggerEvent({"forms": forms})

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Refuse: without a shared stream nobody tells which events are stored.

        :raises RuntimeError: on Airflow before 3.3, which asks for this.
        """
        raise RuntimeError(NEEDS_3_3)
        yield TriggerEvent(None)
