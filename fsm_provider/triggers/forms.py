"""Triggers of deferred form sensors and of assets of completed forms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from inspect import signature
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import BaseTrigger, TriggerEvent

from fsm_provider.api.errors import FsmError

if TYPE_CHECKING:
    from fsm_provider.api.form_filter import FormFilters
    from fsm_provider.polling.producer import FormEventProducer
    from fsm_provider.polling.watch import FormWatch

MIN_DEFERRAL = 15.0
"""Seconds that a trigger waits, at least, before its event.

Airflow fails a task that is queued again before the scheduler has noticed the end of the process that
deferred it ("finished with state success, but the task instance's state attribute is queued"). On two busy
cores that took up to 11 s from the deferral.
"""
TIMEOUT_GRACE = 60.0
"""Seconds after its deadline at which Airflow ends a wait whose trigger has not: none was running."""


class FsmFormTrigger(BaseTrigger):
    """Poll for completed forms at an interval until there are enough.

    Waits in one triggerer share their requests if connection, interval and the filters agree that a form's
    reference does not show; property, job, form names and lower bounds may differ. One listing a poll serves
    all of them, and a trigger is woken only when it is done.

    Fires once, with ``{"forms": [...references...]}``, ``{"error": {...}}``
    (:meth:`fsm_provider.api.FsmError.as_dict`), or ``{"timed_out": "..."}``, the message of the timeout.

    :param fsm_conn_id: the Airflow connection.
    :param filters: as returned by :meth:`fsm_provider.api.form_filter.FormFilter.as_dict`.
    :param minimum_forms: number of forms that are enough.
    :param form_names: names of which each needs a form; empty: any form counts.
    :param query_params: query parameters that the specification does not document.
    :param poll_interval: seconds between two polls, at least 1.
    :param failure_tolerance: seconds for which polls may fail before the error is the event. An error that
        is not transient is the event at once.
    :param shared: share the requests.
    :param began: when the sensor began, ISO 8601; None: now.
    :param deadline: when it times out, ISO 8601; None: never by itself.
    :param log_interval: seconds between two lines of the log about the wait; None: none.
    """

    def __init__(
        self,
        *,
        fsm_conn_id: str,
        filters: FormFilters,
        minimum_forms: int,
        form_names: list[str],
        query_params: dict[str, Any] | None,
        poll_interval: float,
        failure_tolerance: float = 600.0,
        shared: bool = True,
        began: str | None = None,
        deadline: str | None = None,
        log_interval: float | None = None,
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
        self.began = began
        self.deadline = deadline
        self.log_interval = log_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, from which another triggerer continues."""
        return _serialized(self, *signature(FsmFormTrigger).parameters)

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Wait until there are enough forms, the failure tolerance is used up, or the sensor times out."""
        from fsm_provider.api.form_filter import FormFilter
        from fsm_provider.polling.criteria import FormCriteria
        from fsm_provider.polling.form_waits import FormWait
        from fsm_provider.polling.streams import wait_for_forms
        from fsm_provider.polling.wait_status import WaitStatus

        clock = asyncio.get_running_loop().time
        # dag.test() gives no identifier, and has no scheduler.
        earliest = clock() + (0.0 if self.trigger_id is None else MIN_DEFERRAL)
        criteria = FormCriteria(minimum_forms=self.minimum_forms, form_names=tuple(self.form_names))
        wait, now = FormWait(FormFilter(**self.filters), criteria), datetime.now(UTC)
        status = WaitStatus(
            target=wait.target,
            began=datetime.fromisoformat(self.began) if self.began else now,
            until=datetime.fromisoformat(self.deadline) if self.deadline else None,
            others=wait.others.values(),
        )
        self.log.info("%s", status.start(self.poll_interval))
        try:
            async with asyncio.timeout((status.until - now).total_seconds() if status.until else None):
                forms = await wait_for_forms(
                    wait,
                    fsm_conn_id=self.fsm_conn_id,
                    query_params=self.query_params,
                    interval=self.poll_interval,
                    # The worker polled just before it deferred, and no event may be sent earlier.
                    first_after=min(self.poll_interval, MIN_DEFERRAL),
                    failure_tolerance=self.failure_tolerance,
                    status=status,
                    log=self.log,
                    log_interval=self.log_interval,
                    shared=self.shared,
                )
            payload: dict[str, Any] = {"forms": forms}
        except TimeoutError:
            payload = {"timed_out": status.timeout()}
        except FsmError as error:
            payload = {"error": error.as_dict()}
        await asyncio.sleep(earliest - clock())
        yield TriggerEvent(payload)


class FsmFormEventTrigger(BaseEventTrigger):
    """Emit newly completed forms, poll after poll, as the watcher of an asset.

    Each event holds new forms: ``{"asset_name": ..., "question": {...filters...}, "forms":
    [...references...]}``. What was emitted is stored with the asset once the events are in Airflow's
    database. Airflow 3.3 confirms that to the trigger's stream. Before, the trigger ends after each event,
    and its restart is the confirmation.

    What to poll for, and how often, comes from an ``FsmFormConfigurationTrigger`` and an
    ``FsmFormIntervalTrigger`` through the asset's state store. As arguments of this trigger they would
    identify it: Airflow would replace it whenever two DAGs disagree about the asset, and leave the asset
    without a watcher in between. The connection is part of the asset's URI.

    :param asset_name: the asset whose state store holds the configuration and the watermark.
    :param fsm_conn_id: its connection, which names the database of that store before Airflow 3.3.
    """

    def __init__(self, *, asset_name: str, fsm_conn_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asset_name = asset_name
        self.fsm_conn_id = fsm_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, from which another triggerer continues."""
        return _serialized(self, "asset_name", "fsm_conn_id")

    def shared_stream_key(self) -> str:
        """Return the key of this trigger's own stream: only a stream learns when its events are stored.

        A trigger that replaces this one has another key, so that it does not get this one's events.
        """
        return f"fsm form events {self.trigger_id} {self.asset_name}"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> FormEventProducer:
        """Create the producer, which polls for the events and notes which of them are stored."""
        from fsm_provider.polling.asset_stores import asset_store_for
        from fsm_provider.polling.producer import FormEventProducer

        return FormEventProducer(kwargs["asset_name"], asset_store_for(**kwargs))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[dict[str, Any]]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield the events of the stream, which are this trigger's own."""
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Emit one event; only Airflow before 3.3 calls this."""
        from fsm_provider.polling.restarts import resume

        producer = resume(self.trigger_id, self.asset_name, self.fsm_conn_id)
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

    def __init__(self, *, watch: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, from which another triggerer continues."""
        return _serialized(self, "watch")

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Store the configuration, and stay: Airflow restarts a trigger of an asset that ends."""
        from fsm_provider.polling.configurations import announce
        from fsm_provider.polling.restarts import configured

        watch: FormWatch = json.loads(self.watch)
        async with configured(watch["asset_name"]):
            await announce(watch)
            await asyncio.Event().wait()
        yield TriggerEvent(None)


class FsmFormIntervalTrigger(BaseEventTrigger):
    """Pass the interval to the watcher of an asset; emits no event.

    A trigger of its own, so that two DAGs that disagree only about the interval share the configuration.

    :param asset_name: the asset.
    :param fsm_conn_id: its connection.
    :param poll_interval: seconds between two polls.
    """

    def __init__(self, *, asset_name: str, fsm_conn_id: str, poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asset_name = asset_name
        self.fsm_conn_id = fsm_conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, from which another triggerer continues."""
        return _serialized(self, "asset_name", "fsm_conn_id", "poll_interval")

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Store the interval, and stay, as :class:`FsmFormConfigurationTrigger` does."""
        from fsm_provider.polling.configurations import announce_interval
        from fsm_provider.polling.restarts import configured

        async with configured(self.asset_name):
            await announce_interval(self.asset_name, self.fsm_conn_id, self.poll_interval)
            await asyncio.Event().wait()
        yield TriggerEvent(None)


def _serialized(trigger: BaseTrigger, *names: str) -> tuple[str, dict[str, Any]]:
    """Return the class path of a trigger, and those of its attributes that are its arguments."""
    kind = type(trigger)
    return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(trigger, name) for name in names}
