"""The service's protocol, without Airflow: a client, its records and its errors.

Names are imported lazily, so that a DAG file that uses an error or a record loads no HTTP library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsm_provider.api import errors
from fsm_provider.api.errors import *  # noqa: F403 - its __all__ names them

if TYPE_CHECKING:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.job_rows import jobs_from_rows
    from fsm_provider.api.models import AssetDynamicField, Form, Job, Webhook
    from fsm_provider.api.payloads import JobCreate, JobFields, WebhookCreate
    from fsm_provider.api.settings import Settings

__all__ = [
    "AssetDynamicField",
    "Form",
    "FsmClient",
    "Job",
    "JobCreate",
    "JobFields",
    "Settings",
    "Webhook",
    "WebhookCreate",
    "jobs_from_rows",
]
__all__ += errors.__all__

_MODULES = {
    "AssetDynamicField": "models",
    "Form": "models",
    "FsmClient": "client",
    "Job": "models",
    "JobCreate": "payloads",
    "JobFields": "payloads",
    "Settings": "settings",
    "Webhook": "models",
    "WebhookCreate": "payloads",
    "jobs_from_rows": "job_rows",
}
"""The module of each name that is imported once it is used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
