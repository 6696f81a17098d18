"""The service's operations, as data, and whether a response to a write is the one to what was sent.

A response may repeat the token in any field: ``hide`` removes it from what is quoted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic
from urllib.parse import quote

from fsm_provider.api.errors import FsmInputError, FsmRegistrationMismatchError, FsmResponseError
from fsm_provider.api.models import AssetDynamicField, Form, Job, RecordT, Webhook
from fsm_provider.api.redaction import hide, printable
from fsm_provider.api.validation import parse_identifier, spelled

if TYPE_CHECKING:
    from fsm_provider.api.payloads import JobRequest, WebhookCreate

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[RecordT]):
    """One operation.

    :param path: with ``{name}`` for each path parameter.
    :param response: the class of a listing's elements, or of the complete body.
    :param versioned: whether the request carries ``X-API-VERSION``.
    """

    method: str
    path: str
    response: type[RecordT]
    versioned: bool = False

    def path_for(self, **parameters: int | str) -> str:
        """Fill the path."""
        segments = {}
        for name, value in parameters.items():
            text = str(parse_identifier(name, value))
            if text in (".", ".."):
                raise FsmInputError(f"{name}: {text!r} is not an identifier")
            segments[name] = quote(text, safe="")
        return self.path.format_map(segments)


LIST_ASSET_DYNAMIC_FIELDS = Endpoint("GET", "/assetDynamicFieldValues", AssetDynamicField)
CREATE_JOB = Endpoint("POST", "/properties/{propertyID}/jobs", Job, versioned=True)
LIST_FORMS = Endpoint("GET", "/forms", Form)
REGISTER_WEBHOOK = Endpoint("POST", "/settings/webhooks", Webhook)


def check_id(record: Job | Webhook) -> None:
    if record.id <= 0:
        raise FsmResponseError(f"the body has no usable 'id': {record.id}")


def check_job(job: Job, *, request: JobRequest, hide: Callable[[str], str]) -> None:
    """Check that a job is the requested one. Another customer reference is only logged: it may be normalised.

    :raises FsmResponseError: if it is on another property, or its identifier is not positive.
    """
    check_id(job)
    echoed: Any = job.property_id  # unconverted if it is not an integer
    if echoed not in (None, "") and spelled(echoed) != spelled(request.property_id):
        shown = hide(repr(echoed))[:60]
        raise FsmResponseError(f"the response holds another job, {job.id}: its propertyID is {shown}")
    sent = request.job.customer_reference
    if None not in (sent, job.customer_reference) and job.customer_reference != sent:
        logger.warning(
            "job %s has the customerReference %s, but %r was sent",
            *(job.id, hide(repr(job.customer_reference)), sent),
        )


def check_registration(registration: Webhook, sent: WebhookCreate, hidden: Iterable[str]) -> None:
    """Check that a webhook was registered as requested. Another target is only logged: it may be normalised.

    :param hidden: what no error may contain.

    :raises FsmRegistrationMismatchError: if it is of another object, or for other event types.
    """
    echoed = registration.event_types
    if echoed is None:
        logger.warning(
            "webhook %s was registered, but the response does not say for which event types", registration.id
        )
    if registration.target_url not in (None, sent.target_url):
        logger.warning("the response to webhook %s holds another targetURL than was sent", registration.id)
    is_ours = echoed is None or (isinstance(echoed, list) and set(map(str, echoed)) == set(sent.event_types))
    if not is_ours or registration.object not in (None, sent.object):
        shown = printable(hide(f"{registration.object} {echoed}", *hidden))
        raise FsmRegistrationMismatchError(
            f"webhook {registration.id} was registered for {shown} instead of {sent.object} "
            f"{sent.event_types}: set event_types_style on the connection to what "
            "the service understands, and delete this webhook in the service",
            webhook_id=registration.id,
        )
