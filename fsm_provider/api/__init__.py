"""The service's protocol, without Airflow: a client, its records and its errors.

The client is imported when it is first asked for: a DAG file that names an error or a record does
not import an HTTP library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsm_provider.api.errors import (
    FsmAddressError,
    FsmApiError,
    FsmBadRequestError,
    FsmConflictError,
    FsmConnectionError,
    FsmError,
    FsmFileError,
    FsmForbiddenError,
    FsmInputError,
    FsmNotFoundError,
    FsmNotPdfError,
    FsmPaginationError,
    FsmRateLimitedError,
    FsmRedirectError,
    FsmRegistrationMismatchError,
    FsmResponseError,
    FsmSecretLostError,
    FsmServerError,
    FsmUnauthorisedError,
    FsmUncertainWriteError,
)

if TYPE_CHECKING:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.drafts import JobCreate, WebhookCreate
    from fsm_provider.api.models import AssetDynamicField, Form, Job, Webhook
    from fsm_provider.api.settings import Settings

__all__ = [
    "AssetDynamicField",
    "Form",
    "FsmAddressError",
    "FsmApiError",
    "FsmBadRequestError",
    "FsmClient",
    "FsmConflictError",
    "FsmConnectionError",
    "FsmError",
    "FsmFileError",
    "FsmForbiddenError",
    "FsmInputError",
    "FsmNotFoundError",
    "FsmNotPdfError",
    "FsmPaginationError",
    "FsmRateLimitedError",
    "FsmRedirectError",
    "FsmRegistrationMismatchError",
    "FsmResponseError",
    "FsmSecretLostError",
    "FsmServerError",
    "FsmUnauthorisedError",
    "FsmUncertainWriteError",
    "Job",
    "JobCreate",
    "Settings",
    "Webhook",
    "WebhookCreate",
]


_HOMES = {
    "FsmClient": "client",
    "JobCreate": "drafts",
    "Settings": "settings",
    "WebhookCreate": "drafts",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'models')}"), name)
