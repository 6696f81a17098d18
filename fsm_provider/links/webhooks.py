"""Links from a task that registers webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom, conf

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey

HIDDEN = "***"
"""What stands for the token in an address that is shown."""


class FsmWebhookLink(BaseOperatorLink):
    """Where the deliveries go: the receiver's asset in Airflow, else the address that was registered."""

    name = "Webhook"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Give the address, empty where nothing was registered."""
        return deliveries_of(XCom.get_value(ti_key=ti_key, key="return_value"))


def deliveries_of(registrations: Any) -> str:
    """Give where the deliveries of a task's registrations go."""
    first = registrations[0] if isinstance(registrations, list) and registrations else None
    target = first.get("targetURL") if isinstance(first, dict) else None
    if not isinstance(target, str) or not target.startswith(("https://", "http://")):
        return ""
    if not target.endswith(f"/{HIDDEN}"):
        return target
    connection = target.split("/")[-3]
    query = urlencode({"name_pattern": f"fsm://{connection}/{target.split('/')[-2]}"})
    return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/assets?{query}"
