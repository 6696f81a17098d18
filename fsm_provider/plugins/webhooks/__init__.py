"""What Airflow's API server (Airflow 3) serves of this provider: the entry point
``airflow.plugins``.

Every component imports this module; the receiver and the page are imported at the first request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

URL_PREFIX = "/fsm/webhooks"


def _served(name: str, url_prefix: str, module: str) -> dict[str, Any]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await import_module(module).app(scope, receive, send)

    return {"app": app, "url_prefix": url_prefix, "name": name}


_APPS = [
    _served("fsm webhooks", URL_PREFIX, "fsm_provider.plugins.webhooks.receiver"),
    _served("fsm page", "/fsm-page", "fsm_provider.page"),
]
_MENU = [
    {
        "name": "Field service",
        "href": "fsm-page/",
        "url_route": "field-service",
        "destination": "nav",
    }
]


class FsmWebhooksPlugin(AirflowPlugin):
    """Mounts the receiver, which accepts nothing until it is configured, and the page."""

    name: str = "fsm_webhooks"
    fastapi_apps: list[dict[str, Any]] = _APPS
    external_views: list[dict[str, Any]] = _MENU
