"""What a deferred form sensor waits with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.connection import get_async_connection
from airflow.triggers.base import BaseTrigger, TriggerEvent

from fsm_provider.api.errors import FsmError, FsmUnauthorisedError

if TYPE_CHECKING:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.forms import FormFilters, Reference
    from fsm_provider.api.settings import Settings


class FsmFormTrigger(BaseTrigger):
    """Look for completed forms at an interval until they are enough.

    The worker has looked just before it deferred, so the first look comes after one interval. It must
    not come at once: Airflow fails a task that resumes before the scheduler has noted its deferral
    ("state attribute is queued"). The client runs in a thread, and never waits there: what it would
    sleep through, the trigger sleeps through on the event loop.

    Fires once, with ``{"forms": [...references...]}`` or ``{"error": {...}}``
    (:meth:`fsm_provider.api.FsmError.as_dict`).

    :param fsm_conn_id: the Airflow connection.
    :param filters: as :meth:`fsm_provider.api.forms.FormFilter.as_dict` gives them.
    :param minimum_forms: so many forms are enough.
    :param form_names: and at least one of each of these names.
    :param query_params: query parameters that the specification does not show.
    :param poll_interval: seconds between two looks, at least 1.
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
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fsm_conn_id = fsm_conn_id
        self.filters = filters
        self.minimum_forms = minimum_forms
        self.form_names = form_names
        self.query_params = query_params
        self.poll_interval = poll_interval

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
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the forms are enough, or an error stays."""
        try:
            yield TriggerEvent({"forms": await self._poll()})
        except FsmError as error:
            yield TriggerEvent({"error": error.as_dict()})

    async def _poll(self) -> list[Reference]:
        from fsm_provider.api.client import FsmClient
        from fsm_provider.api.forms import FormDemand
        from fsm_provider.api.retry import Attempts, RetryPolicy

        demand = FormDemand(minimum_forms=self.minimum_forms, form_names=tuple(self.form_names))
        settings = await self._settings()
        policy = RetryPolicy(max_retries=settings.max_retries)
        attempts = Attempts(policy)
        client = FsmClient(settings, retry_policy=RetryPolicy(max_retries=0))
        try:
            pause = self.poll_interval
            while True:
                await asyncio.sleep(pause)
                try:
                    found = await asyncio.to_thread(self._look, client)
                except FsmUnauthorisedError:
                    token, settings = settings.token, await self._settings()
                    if settings.token == token:
                        raise
                    client.close()
                    client = FsmClient(settings, retry_policy=RetryPolicy(max_retries=0))
                    pause = 0
                except FsmError as error:
                    pause = attempts.delay_after(error)
                else:
                    counted = demand.wanted(found)
                    if demand.is_met_by(counted):
                        return counted
                    attempts, pause = Attempts(policy), self.poll_interval
        finally:
            client.close()

    def _look(self, client: FsmClient) -> list[Reference]:
        from fsm_provider.api.forms import reference_to

        return [reference_to(form) for form in client.list_forms(params=self.query_params, **self.filters)]

    async def _settings(self) -> Settings:
        from fsm_provider.hooks.fsm import FsmHook, settings_of

        return settings_of(await get_async_connection(self.fsm_conn_id, hook=FsmHook))
