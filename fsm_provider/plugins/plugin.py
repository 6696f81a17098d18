"""What the API server of Airflow 3 serves of this provider: entry point ``airflow.plugins``.

Every component of Airflow imports this module. The receiver and the page are imported at their
first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowPlugin

from fsm_provider.plugins import page, webhooks

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from fsm_provider.api.validation import JsonObject


async def serve_webhooks(scope: Scope, receive: Receive, send: Send) -> None:
    from fsm_provider.plugins.webhooks.receiver import app

    await app(scope, receive, send)


async def serve_page(scope: Scope, receive: Receive, send: Send) -> None:
    from fsm_provider.plugins.page.app import app

    await app(scope, receive, send)


APPS: list[JsonObject] = [
    {"name": "fsm webhooks", "url_prefix": webhooks.URL_PREFIX, "app": serve_webhooks},
    {"name": "fsm page", "url_prefix": page.URL_PREFIX, "app": serve_page},
]
MENU_ITEMS: list[JsonObject] = [
    {
        "name": "Field service",
        "href": f"{page.URL_PREFIX.removeprefix('/')}/",
        "url_route": "field-service",
        "destination": "nav",
    }
]


class FsmPlugin(AirflowPlugin):
    """Mounts the receiver, which accepts nothing until it is configured, and the page."""

    name: str = "fsm"
    fastapi_apps: list[JsonObject] = APPS
    external_views: list[JsonObject] = MENU_ITEMS
