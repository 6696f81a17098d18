"""The operations of section 4, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import quote

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.inputs import read_identifier
from fsm_provider.api.models import AssetDynamicField, Form, Job, Record, Webhook

RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[RecordT]):
    """One operation.

    :param path: with ``{names}`` for its path parameters.
    :param parameters: the query parameters that the specification shows, by our names for them.
    :param response: what a listing's elements, or the whole body, are read into.
    :param success: the status of a success.
    :param versioned: whether its request carries ``X-API-VERSION`` (section 9).
    """

    method: str
    path: str
    response: type[RecordT]
    parameters: Mapping[str, str] = field(default_factory=dict)
    success: int = 200
    versioned: bool = False

    def path_for(self, **parameters: int | str) -> str:
        """Fill the path.

        :raises FsmInputError: for a parameter that is no identifier.
        """
        segments = {}
        for name, value in parameters.items():
            text = str(read_identifier(name, value))
            if text in (".", ".."):
                raise FsmInputError(f"{name}: {text!r} is no identifier")
            segments[name] = quote(text, safe="")
        return self.path.format_map(segments)


LIST_ASSET_DYNAMIC_FIELDS = Endpoint("GET", "/assetDynamicFieldValues", AssetDynamicField)
CREATE_JOB = Endpoint("POST", "/properties/{propertyID}/jobs", Job, success=201, versioned=True)
LIST_FORMS = Endpoint(
    "GET",
    "/forms",
    Form,
    parameters={
        "property_id": "propertyID",
        "job_id": "jobID",
        "created_since": "createdOnDateTime[gte]",
        "updated_since": "lastUpdatedOnDateTime[gte]",
        "form_category": "formCategory",
        "form_name_id": "formNameID",
        "created_by_type": "createdByType",
        "created_by_id": "createdByID",
    },
)
REGISTER_WEBHOOK = Endpoint("POST", "/settings/webhooks", Webhook)
