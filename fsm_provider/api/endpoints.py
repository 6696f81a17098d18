"""The service's operations, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic
from urllib.parse import quote

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.models import AssetDynamicField, Form, Job, RecordT, Webhook
from fsm_provider.api.validation import parse_identifier


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
        """Fill the path.

        :raises FsmInputError: for a parameter that is not an identifier.
        """
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
