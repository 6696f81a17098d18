"""The trigger of deferred form sensors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from fsm_provider.api.forms import FormFilters
    from fsm_provider.polling.feed import Feed
    from fsm_provider.polling.waits import Deferral, Wait

MIN_DEFERRAL = 15.0
"""Seconds that a trigger waits, at least, before its event.

Airflow fails a task that is queued again before the scheduler has noticed the end of the process that
deferred it ("finished with state success, but the task instance's state attribute is queued"). On two busy
cores that took up to 11 s from the deferral.
"""
TIMEOUT_GRACE = 60.0
"""Seconds after its deadline at which Airflow ends a wait whose trigger has not: none was running."""


class FsmFormTrigger(BaseTrigger):
    """Wait until it is worth another poll on the worker, which decides.

    Fires once, with ``{"wait": {...}}``: that of the sensor, which may have failed meanwhile. Waits in one
    triggerer share their requests if connection, interval and the filters agree that a form's reference does
    not show; property, job, form names and lower bounds may differ.

    :param fsm_conn_id: the Airflow connection.
    :param filters: as returned by :meth:`fsm_provider.api.forms.FormFilter.as_dict`.
    :param minimum_forms: number of forms that are enough.
    :param form_names: names of which each needs a form; empty: any form counts.
    :param query_params: query parameters that the specification does not document.
    :param poll_interval: seconds between two polls, at least 1.
    :param failure_tolerance: seconds for which polls may fail with transient errors.
    :param wait: a :class:`fsm_provider.polling.waits.Deferral` as JSON values.
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
        failure_tolerance: float,
        wait: dict[str, Any],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fsm_conn_id = fsm_conn_id
        self.filters = filters
        self.minimum_forms = minimum_forms
        self.form_names = form_names
        self.query_params = query_params
        self.poll_interval = poll_interval
        self.failure_tolerance = failure_tolerance
        self.wait = wait

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        kind = type(self)
        names = signature(kind).parameters
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Wait until the sensor is to poll again: for its forms, an error, or its timeout."""
        from fsm_provider.polling.waits import Deferral

        deferral, clock = Deferral(**self.wait), asyncio.get_running_loop().time
        # dag.test() gives no identifier, and has no scheduler.
        shortest = 0.0 if self.trigger_id is None else MIN_DEFERRAL
        began, left = clock(), max(deferral.deadline - time.time(), shortest)
        rest = min(max(deferral.rest(self.poll_interval), shortest), left)
        wait, feed = self._joined(deferral)
        del deferral  # there may be very many
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await wait.woken.wait()
        finally:
            feed.leave(wait)
        waited = clock() - began
        await asyncio.sleep(rest - waited)
        ended = Deferral(**self.wait)
        if wait.failed_for is not None:
            since = time.time() - wait.failed_for
            ended = replace(ended, failing_since=min(since, ended.failing_since or since))
        elif waited > rest + self.poll_interval:  # polls have succeeded meanwhile
            ended = replace(ended, failing_since=None)
        yield TriggerEvent({"wait": asdict(ended)})

    def _joined(self, deferral: Deferral) -> tuple[Wait, Feed]:
        from fsm_provider.api.forms import FormFilter
        from fsm_provider.polling.feed import feed_of
        from fsm_provider.polling.polls import Query, Source
        from fsm_provider.polling.waits import Criteria, Wait

        context = copy_context()
        wait = Wait(
            Query.from_filter(FormFilter(**self.filters)),
            Criteria(self.minimum_forms, tuple(self.form_names)),
            asyncio.Event(),
            lambda text: context.run(self.log.warning, "%s", text),
            self.failure_tolerance,
            dict(deferral.known or ()),
        )
        feed = feed_of(
            Source.of(self.fsm_conn_id, deferral.service, self.filters, self.query_params, self.poll_interval)
        )
        feed.join(wait, None if deferral.known is None else deferral.polled_at)
        return wait, feed
