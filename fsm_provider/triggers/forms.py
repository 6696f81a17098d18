"""The trigger of deferred form sensors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from fsm_provider.api.forms import FormFilters
    from fsm_provider.polling.waits import Deferral, Wait

MIN_DEFERRAL = 15.0
"""Seconds that a trigger waits, at least, before its event.

Airflow fails a task that is queued again before the scheduler has noticed the end of the process that
deferred it. On two busy cores that took up to 11 s from the deferral.
"""
TIMEOUT_GRACE = 60.0
"""Seconds after its deadline at which Airflow ends a wait whose trigger has not: none was running."""


class DataclassTrigger:
    """A trigger whose arguments are the fields of a dataclass."""

    def __post_init__(self) -> None:
        super().__init__()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in signature(type(self)).parameters}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments


@dataclass(kw_only=True, eq=False, repr=False)
class FsmFormTrigger(DataclassTrigger, BaseTrigger):
    """Wait until it is worth another poll on the worker, which decides; fire once, with ``{"wait": {...}}``.

    :param filters: as returned by :meth:`fsm_provider.api.forms.FormFilter.as_dict`.
    :param wait: a :class:`fsm_provider.polling.waits.Deferral` as JSON values.

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
        from fsm_provider.polling.waits import Deferral

        deferral, clock = Deferral(**self.wait), asyncio.get_running_loop().time
        # dag.test() gives no identifier, and has no scheduler.
        shortest = 0.0 if self.trigger_id is None else MIN_DEFERRAL
        began, left = clock(), max(deferral.deadline - time.time(), shortest)
        rest = min(max(deferral.rest(self.poll_interval), shortest), left)
        wait, asked = self._wait(deferral), (self.filters, self.query_params, self.poll_interval)
        timer = asyncio.get_running_loop().call_later(left, wait.wake)
        try:
            with joined(Source.of(self.fsm_conn_id, deferral.service, *asked), wait, deferral.covered_since):
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

    def _wait(self, deferral: Deferral) -> Wait:
        from fsm_provider.api.forms import FormFilter, seconds_of
        from fsm_provider.polling.polls import Query
        from fsm_provider.polling.waits import Criteria, Wait

        given: Any = self.filters
        wanted = FormFilter(**given)
        bounds = seconds_of(wanted.created_since), seconds_of(wanted.updated_since)
        query = Query(given.get("property_id"), given.get("job_id"), *bounds)
        criteria = Criteria(self.minimum_forms, tuple(self.form_names))
        return Wait(query, criteria, self.failure_tolerance, dict(deferral.known or ()))
