"""Triggers of deferred form sensors and of assets of completed forms."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import TriggerEvent

from fsm_provider.polling.poller import FailureTolerance, FormPoller, PollFailure, poll_forever

if TYPE_CHECKING:
    from fsm_provider.api.form_filter import FormFilter, FormFilters
    from fsm_provider.polling.producer import FormEventProducer
    from fsm_provider.polling.shared_forms import Snapshot
    from fsm_provider.polling.watch import FormWatch

MIN_DEFERRAL = 15.0
"""Seconds that a trigger waits, at least, before its event.

Airflow fails a task that is queued again before the scheduler has noticed the end of the process that
deferred it ("finished with state success, but the task instance's state attribute is queued"). On two busy
cores that took up to 11 s from the deferral.
"""
FAILURE_TOLERANCE = 600.0
"""Seconds."""
MAX_SHARED_LOOKBACK = timedelta(days=7)
"""A wait that goes back further when it defers polls alone: a stream would list all forms since then."""
LOOK_BACK = timedelta(hours=1)
FULL_POLL_INTERVAL = 900.0
"""Seconds, at least, between two full polls of a stream, which find forms with old times."""
REBROADCAST_INTERVAL = 0.8 * MIN_DEFERRAL
"""Seconds after which a stream repeats an unchanged snapshot for waits that have joined since.

They may emit no event before :data:`MIN_DEFERRAL`, so the delay costs nothing; and each repeat wakes all.
"""


class FsmFormTrigger(BaseEventTrigger):
    """Poll for completed forms at an interval until there are enough.

    On Airflow 3.3 and newer, waits on one connection share the requests: the triggerer runs one stream of
    polls for all waits whose interval, filters and lower bounds agree; property, job, form names and the
    time of day may differ. Each wait picks its own forms from the stream. On older versions, and in
    ``dag.test()``, a trigger polls for its own forms alone; it finds the same.

    It does not poll at once, because the worker polled just before it deferred.

    Fires once, with ``{"forms": [...references...]}`` or ``{"error": {...}}``
    (:meth:`fsm_provider.api.FsmError.as_dict`).

    :param fsm_conn_id: the Airflow connection.
    :param filters: as returned by :meth:`fsm_provider.api.forms.FormFilter.as_dict`.
    :param minimum_forms: number of forms that are enough.
    :param form_names: names of which each needs a form; empty: any form counts.
    :param query_params: query parameters that the specification does not document.
    :param poll_interval: seconds between two polls, at least 1.
    :param failure_tolerance: seconds for which polls may fail before the error is the event. An error that
        is not transient is the event at once.
    :param shared: share the requests if possible.
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
        """Return the class path and the arguments, from which another triggerer continues."""
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
        """Return the key of the stream that this wait can share, None if it has to poll alone."""
        for_shared_stream = self._filter().for_shared_stream()
        if not self.shared or (
            for_shared_stream.created_since is None and for_shared_stream.updated_since is None
        ):
            return None
        parts = [self.fsm_conn_id, float(self.poll_interval), for_shared_stream.as_dict(), self.query_params]
        return f"fsm forms {json.dumps(parts, sort_keys=True, default=str)}"

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Snapshot | PollFailure]:
        """Poll for all waits that share the key; ``kwargs`` are those of any of them."""
        interval = kwargs["poll_interval"]
        trigger = cls(**kwargs)
        polls = trigger._polls(
            trigger._filter().for_shared_stream(),
            full_interval=max(FULL_POLL_INTERVAL, 10 * interval),
            # No wait may emit an event before that, and meanwhile others join.
            first_after=min(interval, MIN_DEFERRAL),
        )
        clock = asyncio.get_running_loop().time
        sent_at, had_failed = -math.inf, False
        async with aclosing(polls):
            async for polled in polls:
                is_new = isinstance(polled, PollFailure) or polled.has_changes or had_failed
                had_failed = isinstance(polled, PollFailure)
                if is_new or clock() - sent_at >= REBROADCAST_INTERVAL:
                    sent_at = clock()
                    yield polled

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Snapshot | PollFailure]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Wait until the stream has enough forms, or the failure tolerance is used up."""
        from fsm_provider.polling.criteria import FormCriteria
        from fsm_provider.polling.shared_forms import FormMatcher

        clock = asyncio.get_running_loop().time
        earliest = clock() + self._min_deferral()
        tolerance = FailureTolerance(self.failure_tolerance)
        criteria = FormCriteria(minimum_forms=self.minimum_forms, form_names=tuple(self.form_names))
        matcher = FormMatcher(self._filter(), criteria)
        async for polled in shared_stream:
            if isinstance(polled, PollFailure):
                had_failed = tolerance.is_failing
                if polled.progressed:
                    tolerance.reset()
                if tolerance.tolerates(polled.error, clock()):
                    if not had_failed:
                        self.log.warning(
                            "Polling for forms failed, and goes on for up to %g s: %s",
                            self.failure_tolerance,
                            polled.error,
                        )
                    continue
                payload: dict[str, Any] = {"error": polled.error.as_dict()}
            else:
                tolerance.reset()
                forms = matcher.match(polled)
                if forms is None:
                    continue
                payload = {"forms": forms}
            await asyncio.sleep(earliest - clock())
            yield TriggerEvent(payload)
            return

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Poll for this wait's own forms alone, always in full: they are few."""
        polls = self._polls(
            self._filter(), full_interval=0.0, first_after=max(self.poll_interval, self._min_deferral())
        )
        async with aclosing(polls), aclosing(self.filter_shared_stream(polls)) as events:
            async for event in events:
                yield event

    def _min_deferral(self) -> float:
        """Return the seconds before which to emit no event; ``dag.test()`` has no scheduler."""
        return 0.0 if self.trigger_id is None else MIN_DEFERRAL

    def _filter(self) -> FormFilter:
        from fsm_provider.api.form_filter import FormFilter

        return FormFilter(**self.filters)

    async def _polls(
        self, wanted: FormFilter, *, full_interval: float, first_after: float
    ) -> AsyncGenerator[Snapshot | PollFailure, None]:
        from fsm_provider.polling.shared_forms import SharedForms

        forms = SharedForms(wanted, look_back=LOOK_BACK, full_interval=full_interval)
        poller = FormPoller(self.fsm_conn_id, self.query_params)
        polls = poll_forever(
            poller,
            next_query=forms.next_query,
            ingest=forms.ingest,
            interval=self.poll_interval,
            first_after=first_after,
        )
        try:
            async with aclosing(polls):
                async for polled in polls:
                    yield polled
        finally:
            poller.close()


class FsmFormEventTrigger(BaseEventTrigger):
    """Emit newly completed forms, poll after poll, as the watcher of an asset.

    Each event holds the new forms of a poll, at most 100 references: ``{"asset_name": ..., "question":
    {...filters...}, "forms": [...references...]}``. What was emitted is stored with the asset once the
    events are in Airflow's database. Airflow 3.3 confirms that to the trigger's stream. Before, the trigger
    ends after each event, and its restart is the confirmation.

    What to poll for, and how often, comes from an ``FsmFormConfigurationTrigger`` and an
    ``FsmFormIntervalTrigger`` through the asset's state store. As arguments of this trigger they would
    identify it: Airflow would replace it whenever two DAGs disagree about the asset, and leave the asset
    without a watcher in between.

    :param asset_name: the asset whose state store holds the configuration and the watermark.
    """

    def __init__(self, *, asset_name: str, **_from_earlier_versions: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asset_name = asset_name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, from which another triggerer continues."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"asset_name": self.asset_name}

    def shared_stream_key(self) -> str:
        """Return the key of this trigger's own stream: only a stream learns when its events are stored.

        A trigger that replaces this one has another key, so that it does not get this one's events.
        """
        return f"fsm form events {self.trigger_id} {self.asset_name}"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> FormEventProducer:
        """Create the producer, which polls for the events and notes which of them are stored."""
        from fsm_provider.polling.producer import FormEventProducer

        return FormEventProducer(kwargs["asset_name"])

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[dict[str, Any]]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield the events of the stream, which are this trigger's own."""
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Emit one event; only Airflow before 3.3 calls this."""
        from fsm_provider.polling.restarts import resume

        producer = resume(self.trigger_id, self.asset_name)
        try:
            yield TriggerEvent(await producer.next_event())
            producer.keep()  # the triggerer asks for more only after it has taken the event
        finally:
            await producer.close()


class FsmFormConfigurationTrigger(BaseEventTrigger):
    """Pass the configuration, except the interval, to the watcher of an asset; emits no event.

    :param watch: a :class:`fsm_provider.polling.watch.FormWatch` as JSON, the same text for the same
        configuration: otherwise Airflow would take it for a new trigger at each parsing. Airflow 3.2 damages
        dictionaries among the arguments.
    """

    def __init__(self, *, watch: str | None = None, **from_earlier_versions: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch: FormWatch = json.loads(watch) if watch else cast("FormWatch", from_earlier_versions)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, from which another triggerer continues."""
        watch = json.dumps(self._watch, sort_keys=True)
        return f"{type(self).__module__}.{type(self).__qualname__}", {"watch": watch}

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Store the configuration, and stay: Airflow restarts a trigger of an asset that ends."""
        from fsm_provider.polling.producer import announce
        from fsm_provider.polling.restarts import configured

        async with configured(self._watch["asset_name"]):
            await announce(self._watch)
            await asyncio.Event().wait()
        yield TriggerEvent(None)


class FsmFormIntervalTrigger(BaseEventTrigger):
    """Pass the interval to the watcher of an asset; emits no event.

    A trigger of its own, so that two DAGs that disagree only about the interval share the configuration.

    :param asset_name: the asset.
    :param poll_interval: seconds between two polls.
    """

    def __init__(self, *, asset_name: str, poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asset_name = asset_name
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, from which another triggerer continues."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"asset_name": self.asset_name, "poll_interval": self.poll_interval},
        )

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Store the interval, and stay, as :class:`FsmFormConfigurationTrigger` does."""
        from fsm_provider.polling.producer import announce_interval
        from fsm_provider.polling.restarts import configured

        async with configured(self.asset_name):
            await announce_interval(self.asset_name, self.poll_interval)
            await asyncio.Event().wait()
        yield TriggerEvent(None)
