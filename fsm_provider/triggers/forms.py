"""The triggers: of deferred form sensors, and the two of an asset of completed forms."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from fsm_provider.api.forms import FormFilters
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
"""Seconds after an event in which a restart confirms it; a later one may be another's, with a
reused ID.
"""
Key = tuple[int | None, str]
Kept = tuple["AssetEvents", AsyncGenerator[dict[str, Any]], "asyncio.Task[None]"]
_kept: dict[Key, Kept] = {}
"""Of each trigger that has ended with an event: its events, and the task that closes them."""


class DataclassTrigger:
    """A trigger whose arguments are the fields of a dataclass."""

    def __post_init__(self) -> None:
        super().__init__()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in signature(type(self)).parameters}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments


@dataclass(kw_only=True, eq=False, repr=False)
class FsmFormTrigger(DataclassTrigger, BaseTrigger):
    """Wait until it is worth another poll on the worker, which decides; fire once, with ``{"wait":
    {...}}``.

    :param filters: as returned by :meth:`fsm_provider.api.forms.FormFilter.as_dict`.
    :param wait: a :class:`fsm_provider.polling.waits.WaitState` as JSON values.

    The others are those of :class:`fsm_provider.sensors.forms.FsmFormSensor`; times are in seconds.
    """

    fsm_conn_id: str
    filters: FormFilters
    minimum_forms: int
    form_names: list[str]
    query_params: dict[str, Any] | None
    poll_interval: float
    failure_tolerance: float
    wait: dict[str, Any]

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        from fsm_provider.polling.feed import joined
        from fsm_provider.polling.polls import Source
        from fsm_provider.polling.waits import WaitState

        deferral, clock = WaitState(**self.wait), asyncio.get_running_loop().time
        # dag.test() gives no identifier, and has no scheduler.
        shortest = 0.0 if self.trigger_id is None else MIN_DEFERRAL
        began, left = clock(), max(deferral.deadline - time.time(), shortest)
        rest = min(max(deferral.rest(self.poll_interval), shortest), left)
        wait, asked = self._wait(deferral), (self.filters, self.query_params, self.poll_interval)
        timer = asyncio.get_running_loop().call_later(left, wait.wake)
        try:
            with joined(
                Source.of(self.fsm_conn_id, deferral.service, *asked), wait, deferral.covered_since
            ):
                await wait.woken
        finally:
            timer.cancel()
        waited = clock() - began
        await asyncio.sleep(rest - waited)
        failing_since = deferral.failing_since
        if wait.failed_for is not None:
            since = time.time() - wait.failed_for
            failing_since = min(since, failing_since or since)
        elif waited > rest + self.poll_interval:  # polls have succeeded meanwhile
            failing_since = None
        yield TriggerEvent({"wait": {**self.wait, "failing_since": failing_since}})

    def _wait(self, deferral: WaitState) -> Wait:
        from fsm_provider.api.forms import FormFilter, seconds_of
        from fsm_provider.polling.polls import Query
        from fsm_provider.polling.waits import Criteria, Wait

        given: Any = self.filters
        wanted = FormFilter(**given)
        bounds = seconds_of(wanted.created_since), seconds_of(wanted.updated_since)
        query = Query(given.get("property_id"), given.get("job_id"), *bounds)
        criteria = Criteria(self.minimum_forms, tuple(self.form_names))
        return Wait(query, criteria, self.failure_tolerance, dict(deferral.known or ()))


@dataclass(kw_only=True, eq=False, repr=False)
class FsmFormEventTrigger(DataclassTrigger, BaseEventTrigger):
    """Emit newly completed forms as ``{"asset_name": ..., "question": {...}, "forms":
    [...references...]}``.

    What it held is stored with the asset once an event is in Airflow's database. Airflow 3.3
    confirms that to the trigger's stream. Before, the trigger ends after each event, and Airflow
    restarts it then, with its ID and in the same process. Without that, the event is emitted again.

    What to poll for comes from an :class:`FsmFormConfigurationTrigger` through the asset's state:
    Airflow replaces a trigger whose arguments change, and where two DAGs disagree leaves the asset
    without.

    :param fsm_conn_id: the asset's connection, which names the database of that state before
        Airflow 3.3.
    """

    asset_name: str
    fsm_conn_id: str

    def shared_stream_key(self) -> str:
        """Return the key of a stream of its own: a trigger that replaces it does not get its
        events.
        """
        return f"fsm form events {self.trigger_id} {self.asset_name}"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> FormEventProducer:
        """Create what polls for the events."""
        return FormEventProducer(**kwargs)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[dict[str, Any]]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield the events of the stream, which are this trigger's own."""
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Emit one event, before Airflow 3.3."""
        key = self.trigger_id, self.asset_name
        if key in _kept:
            asset, events, expiry = _kept.pop(key)
            expiry.cancel()
            asset.watcher.confirm()
        else:
            asset = _asset_events(self.asset_name, self.fsm_conn_id)
            events = asset.events()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(aclosing(events))
            yield TriggerEvent(await anext(events))
            # The triggerer asks for more only after it has taken the event.
            _kept[key] = asset, events, asyncio.create_task(_expire(key))
            stack.pop_all()


async def _expire(key: Key) -> None:
    await asyncio.sleep(MAX_RESTART_DELAY)
    _, events, _ = _kept.pop(key)
    await events.aclose()


class FormEventProducer(SharedStreamProducer):
    """Polls for new forms, and notes which events Airflow 3.3 has stored."""

    def __init__(self, *, asset_name: str, fsm_conn_id: str) -> None:
        self._asset = _asset_events(asset_name, fsm_conn_id)

    async def open_stream(self) -> AsyncGenerator[tuple[dict[str, Any], None], None]:
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

    :param watch: a :class:`fsm_provider.polling.tracker.Watch` as JSON, which is the same at each
        parsing, or Airflow would take it for a new trigger. Airflow 3.2 damages dictionaries among
        the arguments.
    """

    watch: str

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Store the configuration, and stay: Airflow restarts a trigger of an asset that ends."""
        watch = json.loads(self.watch)
        await _asset_events(watch["asset_name"], watch["fsm_conn_id"]).configure(watch)
        await asyncio.Event().wait()
        yield TriggerEvent(None)


def _asset_events(asset_name: str, fsm_conn_id: str) -> AssetEvents:
    from fsm_provider.polling.watcher import AssetEvents

    if AIRFLOW_V_3_3_PLUS:
        from airflow.sdk.execution_time.context import AssetStateStoreAccessor

        return AssetEvents(asset_name, AssetStateStoreAccessor(name=asset_name))
    from fsm_provider.polling.asset_stores import SqlAssetStore

    return AssetEvents(asset_name, SqlAssetStore(asset_name, fsm_conn_id))
