"""Links from a task that registers webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom, conf

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey

HIDDEN = "***"
"""Replaces the token in a URL that is shown."""


class FsmWebhookLink(BaseOperatorLink):
    """Where deliveries go: the receiver's asset in Airflow, or else the registered URL."""

    name = "Webhook"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL; empty if nothing was registered."""
        return deliveries_url(XCom.get_value(ti_key=ti_key, key="return_value"))


def deliveries_url(registrations: Any) -> str:
    """Return the URL of what receives the deliveries of a task's registrations."""
    first = registrations[0] if isinstance(registrations, list) and registrations else None
    target = first.get("targetURL") if isinstance(first, dict) else None
    if not isinstance(target, str) or not target.startswith(("https://", "http://")):
        return ""
    if not target.endswith(f"/{HIDDEN}"):
        return target
    connection = target.split("/")[-3]
    query = urlencode({"name_pattern": f"fsm://{connection}/{target.split('/')[-2]}"})
    return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/assets?{query}"
