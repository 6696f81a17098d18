"""The triggers: of deferred form sensors, and the two of an asset of completed forms."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.triggers.base import BaseTrigger, TriggerEvent

from fsm_provider.api.forms import FormFilter, seconds_of
from fsm_provider.api.validation import JsonObject

if TYPE_CHECKING:
    from fsm_provider.api.forms import FormFilters
    from fsm_provider.polling.lister import Source
    from fsm_provider.polling.waits import Wait, WaitState
    from fsm_provider.polling.watcher import AssetEvents
if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
else:
    SharedStreamProducer = object

MIN_DEFERRAL = 15.0
"""Seconds that a trigger waits, at least, before its event.

Airflow fails a task that is queued again before the scheduler has noticed the end of the process
that deferred it. On two busy cores that took up to 11 s from the deferral.
"""
TIMEOUT_GRACE = 60.0
"""Seconds after its deadline at which Airflow ends a wait whose trigger has not: none was running.
"""
MAX_RESTART_DELAY = 30.0
"""Seconds after an event within which a restart of its trigger means that it is stored.

A later one may be that of another trigger, to which Airflow has given the same ID.
"""
Key = tuple[int | None, str]
"""A trigger's ID, and the name of its asset."""


@dataclass(frozen=True)
class EndedRun:
    """What a trigger that has ended with an event leaves to its next run.

    :ivar closing: the task that closes the events if the next run is late.
    """

    asset: AssetEvents
    events: AsyncGenerator[JsonObject]
    closing: asyncio.Task[None]


_ended: dict[Key, EndedRun] = {}


class DataclassTrigger:
    """A trigger whose arguments are the fields of a dataclass."""

    def __post_init__(self) -> None:
        super().__init__()  # of Airflow's trigger: that of a dataclass does not call it

    def serialize(self) -> tuple[str, JsonObject]:
        arguments = {name: getattr(self, name) for name in signature(type(self)).parameters}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments


@dataclass(kw_only=True, eq=False, repr=False)
class FsmFormTrigger(DataclassTrigger, BaseTrigger):
    """Wait until it is worth another poll on the worker, which decides.

    It fires once, with ``{"wait": {...}}``.

    :param filters: as returned by :meth:`fsm_provider.api.forms.FormFilter.as_dict`.
    :param wait: a :class:`fsm_provider.polling.waits.WaitState` as JSON values. What a later
        version adds goes into it, as it has a format: an older triggerer takes no new argument.

    The others are those of :class:`fsm_provider.sensors.forms.FsmFormSensor`; times are in seconds.
    """

    fsm_conn_id: str
    filters: FormFilters
    minimum_forms: int
    form_names: list[str]
    query_params: dict[str, Any] | None
    poll_interval: float
    failure_tolerance: float
    wait: JsonObject

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        from fsm_provider.polling.feed import subscribe
        from fsm_provider.polling.formats import format_of
        from fsm_provider.polling.waits import FORMAT, WaitState

        # dag.test() gives no identifier, and has no scheduler.
        shortest = 0.0 if self.trigger_id is None else MIN_DEFERRAL
        if format_of(self.wait) > FORMAT:
            # A worker of that version goes on from it; one of this version says what to do.
            await asyncio.sleep(max(self.poll_interval, shortest))
            yield TriggerEvent({"wait": self.wait})
            return
        state = WaitState.from_json(self.wait, self.poll_interval)
        loop = asyncio.get_running_loop()
        seconds_left = max(state.deadline - time.time(), shortest)
        pause = max(state.pause(self.poll_interval), shortest)
        may_end_at = loop.time() + min(pause, seconds_left)
        wait = self._wait_from(state)
        timer = loop.call_later(seconds_left, wait.wake)
        try:
            await asyncio.sleep(state.paused_until - time.time())
            with subscribe(self._source_from(state), wait, state.covered_since):
                await wait.woken
        finally:
            timer.cancel()
            wait.cancel_giving_up()
        await asyncio.sleep(may_end_at - loop.time())
        failing_since = state.failing_since
        if wait.failed_for is not None:
            since = time.time() - wait.failed_for
            failing_since = since if failing_since is None else min(since, failing_since)
        elif wait.answered_at > may_end_at:
            # A listing came once the wait might end, and did not end it. One before that does not
            # end the worker's failures, or worker and trigger could take turns for ever.
            failing_since = None
        yield TriggerEvent({"wait": {**self.wait, "failing_since": failing_since}})

    def _source_from(self, state: WaitState) -> Source:
        """Return what it polls. The feed keeps one of all that are equal; ``run`` keeps none."""
        from fsm_provider.polling.lister import Source

        return Source.from_arguments(
            self.fsm_conn_id, state.service, self.filters, self.query_params, self.poll_interval
        )

    def _wait_from(self, state: WaitState) -> Wait:
        from fsm_provider.polling.polls import BEGINNING, Criteria, FormSelection
        from fsm_provider.polling.waits import Wait

        filters: JsonObject = {**self.filters}
        wanted = FormFilter(**filters)
        property_id = filters.get("property_id")
        job_id = filters.get("job_id")
        # Those of the filters that a form's reference shows.
        selection = FormSelection(
            property_ids=[] if property_id is None else [property_id],
            job_ids=[] if job_id is None else [job_id],
            form_names=self.form_names,
            created_since=seconds_of(wanted.created_since) or BEGINNING,
            updated_since=seconds_of(wanted.updated_since) or BEGINNING,
        )
        return Wait(
            selection,
            Criteria(self.minimum_forms, tuple(self.form_names)),
            self.failure_tolerance,
            dict(state.known or ()),
            has_polled=state.polled_at is not None,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class FsmFormEventTrigger(DataclassTrigger, BaseEventTrigger):
    """Emit newly completed forms: ``{"asset_name": ..., "question": {...}, "forms": [...]}``.

    What it held is stored with the asset once an event is in Airflow's database. Airflow 3.3
    confirms that to the trigger's stream. Before, the trigger ends after each event, and Airflow
    restarts it then, with its ID and in the same process. Without that, the event is emitted again.

    What to poll for comes from an :class:`FsmFormConfigurationTrigger` through the asset's state:
    Airflow replaces a trigger whose arguments change, and 3.3 runs neither for as long as two DAGs
    disagree. This one's arguments stay, and it heeds what was announced last.

    :param fsm_conn_id: the asset's connection, which names the database of that state before
        Airflow 3.3.
    """

    asset_name: str
    fsm_conn_id: str

    def shared_stream_key(self) -> str:
        """Return the key of a stream of its own.

        A trigger that replaces it does not get its events.
        """
        return f"fsm form events {self.trigger_id} {self.asset_name}"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: JsonObject) -> FormEventProducer:
        """Create what polls for the events."""
        return FormEventProducer(**kwargs)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[JsonObject]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield the events of the stream, which are this trigger's own."""
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Emit one event, before Airflow 3.3."""
        key = (self.trigger_id, self.asset_name)
        ended = _ended.pop(key, None)
        if ended is None:
            asset = _asset_events(self.asset_name, self.fsm_conn_id)
            events = asset.events()
        else:
            ended.closing.cancel()
            asset = ended.asset
            asset.watcher.confirm()
            events = ended.events
        is_kept = False
        try:
            yield TriggerEvent(await anext(events))
            # The triggerer asks for more only after it has taken the event.
            _ended[key] = EndedRun(asset, events, asyncio.create_task(_close_later(key)))
            is_kept = True
        finally:
            if not is_kept:
                await events.aclose()


async def _close_later(key: Key) -> None:
    await asyncio.sleep(MAX_RESTART_DELAY)
    ended = _ended.pop(key)
    await ended.events.aclose()


class FormEventProducer(SharedStreamProducer):
    """Polls for new forms, and notes which events Airflow 3.3 has stored."""

    def __init__(self, *, asset_name: str, fsm_conn_id: str) -> None:
        self._asset = _asset_events(asset_name, fsm_conn_id)

    async def open_stream(self) -> AsyncGenerator[tuple[JsonObject, None], None]:
        """Yield events, each after the one before is stored."""
        async with aclosing(self._asset.events()) as events:
            async for event in events:
                yield event, None

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Note whether Airflow has stored the pending event."""
        self._asset.watcher.confirm(is_stored=all(outcome.is_clean for _, outcome in batch))


@dataclass(kw_only=True, eq=False, repr=False)
class FsmFormConfigurationTrigger(DataclassTrigger, BaseEventTrigger):
    """Pass the configuration to the watcher of an asset; emits no event.

    :param watch: a :class:`fsm_provider.polling.watcher_config.WatcherConfig` as JSON, which is the
        same at each parsing, or Airflow would take it for a new trigger. Airflow 3.2 damages
        dictionaries among the arguments.
    """

    watch: str

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Store the configuration, and stay: Airflow restarts a trigger of an asset that ends."""
        # As JSON, whatever its fields: a newer version may have written it, which the watcher
        # refuses as it reads it.
        config = json.loads(self.watch)
        asset = _asset_events(
            config.get("asset_name", ""), config.get("fsm_conn_id", "fsm_default")
        )
        await asset.configure(config)
        await asyncio.Event().wait()
        yield TriggerEvent(None)  # never reached: it makes this a generator


def _asset_events(asset_name: str, fsm_conn_id: str) -> AssetEvents:
    from fsm_provider.polling.watcher import AssetEvents

    if AIRFLOW_V_3_3_PLUS:
        from airflow.sdk.execution_time.context import AssetStateStoreAccessor

        return AssetEvents(asset_name, AssetStateStoreAccessor(name=asset_name))
    from fsm_provider.polling.asset_stores import SqlAssetStore

    return AssetEvents(asset_name, SqlAssetStore(asset_name, fsm_conn_id))
