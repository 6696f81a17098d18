"""The webhook receiver in Airflow's API server (Airflow 3): the entry point ``airflow.plugins``.

Every component imports this module; the receiver itself is imported at the first delivery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

URL_PREFIX = "/fsm/webhooks"


@cache
def _receiver() -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    from fsm_provider.plugins.webhooks.receiver import Receiver

    return Receiver()


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    await _receiver()(scope, receive, send)


class FsmWebhooksPlugin(AirflowPlugin):
    """Mounts the receiver under ``/fsm/webhooks``. It accepts nothing until it is configured."""

    name: str = "fsm_webhooks"
    fastapi_apps: list[dict[str, Any]] = [  # noqa: RUF012 - as the base declares it
        {"app": _app, "url_prefix": URL_PREFIX, "name": "fsm webhooks"}
    ]
