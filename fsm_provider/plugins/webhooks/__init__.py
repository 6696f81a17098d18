"""The webhook receiver in Airflow's API server (Airflow 3): the entry point ``airflow.plugins``.

Every component imports this module; the receiver itself is imported at the first delivery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

URL_PREFIX = "/fsm/webhooks"


class LazyReceiver:
    """The receiver as an ASGI application, created at its first request."""

    _app: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            from fsm_provider.plugins.webhooks.receiver import Receiver

            self._app = Receiver()
        await self._app(scope, receive, send)


class FsmWebhooksPlugin(AirflowPlugin):
    """Mounts the receiver under ``/fsm/webhooks``. It accepts nothing until it is configured."""

    name: str = "fsm_webhooks"
    fastapi_apps: list[dict[str, Any]] = (
        [{"app": LazyReceiver(), "url_prefix": URL_PREFIX, "name": "fsm webhooks"}]
        if AIRFLOW_V_3_0_PLUS
        else []
    )
