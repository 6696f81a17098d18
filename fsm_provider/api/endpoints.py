"""The operations of section 4, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote

from fsm_provider.api.models import AssetDynamicField, Form, Job, Record, Webhook

RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[RecordT]):
    """One operation.

    :param path: with ``{names}`` for its path parameters.
    :param response: what a listing's elements, or the whole body, are read into.
    :param success: the status of a success.
    :param versioned: whether its request carries ``X-API-VERSION`` (section 9).
    """

    method: str
    path: str
    response: type[RecordT]
    success: int = 200
    versioned: bool = False

    def path_for(self, **parameters: int | str) -> str:
        """Fill the path.

        :raises ValueError: for a parameter that is empty or would lead to another path.
        """
        return self.path.format_map({name: path_segment(name, value) for name, value in parameters.items()})


def path_segment(name: str, value: int | str) -> str:
    """Quote an identifier for a path.

    :raises ValueError: where it is empty, no identifier, or would lead to another path.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{name}: should be an integer or text, not {type(value).__name__}")
    text = str(value).strip()
    if not text:
        raise ValueError(f"{name}: is empty")
    if text in (".", ".."):
        raise ValueError(f"{name}: {text!r} is no identifier")
    return quote(text, safe="")


LIST_ASSET_DYNAMIC_FIELDS = Endpoint("GET", "/assetDynamicFieldValues", AssetDynamicField)
CREATE_JOB = Endpoint("POST", "/properties/{propertyID}/jobs", Job, success=201, versioned=True)
LIST_FORMS = Endpoint("GET", "/forms", Form)
REGISTER_WEBHOOK = Endpoint("POST", "/settings/webhooks", Webhook)
