"""Forms as others ask for them, give and take them. A DAG file imports it, so it imports no
pydantic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast
from unicodedata import normalize

from fsm_provider.api import validation
from fsm_provider.api.errors import FsmInputError, FsmResponseError
from fsm_provider.api.validation import pluralize

if TYPE_CHECKING:
    from fsm_provider.api.models import Form, Page

logger: logging.Logger = logging.getLogger(__name__)

FormsXCom = Literal["references", "ids", "full"]
FormReference = dict[str, Any]
"""``id``, ``formName``, ``propertyID``, ``jobID``, ``createdOnDateTime``,
``lastUpdatedOnDateTime``.
"""

FORM_FILTERS: Mapping[str, str] = {
    "property_id": "propertyID",
    "job_id": "jobID",
    "created_since": "createdOnDateTime[gte]",
    "updated_since": "lastUpdatedOnDateTime[gte]",
    "form_category": "formCategory",
    "form_name_id": "formNameID",
    "created_by_type": "createdByType",
    "created_by_id": "createdByID",
}
"""The query parameter of each filter."""
ALL_FILTERS = (*FORM_FILTERS, "form_names")


class FormFilters(TypedDict, total=False):
    """The arguments of :class:`FormFilter`, for ``**filters``."""

    property_id: int | str | None
    job_id: int | str | None
    created_since: datetime | str | None
    updated_since: datetime | str | None
    form_category: str | None
    form_name_id: int | str | None
    created_by_type: str | None
    created_by_id: int | str | None
    form_names: str | list[str] | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFilter:
    """The filters of ``GET /forms``; a form has to match all that are set.

    :param created_since: created at or after; a time without a zone is UTC. Likewise
        ``updated_since``.
    :param form_category: only the service can check it; likewise ``form_name_id``.
    :param form_names: a name, or several of which a form has to have one; checked here, not by the
        service.
    """

    property_id: int | str | None = None
    job_id: int | str | None = None
    created_since: datetime | str | None = None
    updated_since: datetime | str | None = None
    form_category: str | None = None
    form_name_id: int | str | None = None
    created_by_type: str | None = None
    created_by_id: int | str | None = None
    form_names: str | list[str] | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                object.__setattr__(self, field.name, _parse_filter(field.name, value))

    def params(self) -> dict[str, str]:
        return {
            wire_name: format_time(value) if isinstance(value, datetime) else str(value)
            for name, wire_name in FORM_FILTERS.items()
            if (value := getattr(self, name)) is not None
        }

    def matches(self, form: Form) -> bool:
        """Return whether a form matches every filter that its record shows; an unreadable time
        matches.
        """
        return (
            _same(self.property_id, form.property_id)
            and _same(self.job_id, job_id_from(form))
            and _same(self.created_by_type, form.created_by_type)
            and _same(self.created_by_id, form.created_by_id)
            and (self.form_names is None or normalize_name(form.form_name) in self.form_names)
            and _at_or_after(form.created_on_date_time, self.created_since)
            and _at_or_after(form.last_updated_on_date_time, self.updated_since)
        )

    def for_shared_stream(self) -> FormFilter:
        """Return the filters that a reference does not show: waits that agree in them can share a
        listing.
        """
        kept = ("form_category", "form_name_id", "created_by_type", "created_by_id")
        return FormFilter(**{name: getattr(self, name) for name in kept})

    def as_dict(self) -> FormFilters:
        """Return the filters that are set, as JSON values; the inverse is ``FormFilter(**...)``."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return cast(
            FormFilters, {name: _as_json(value) for name, value in given if value is not None}
        )

    def __str__(self) -> str:
        shown = (
            f"{name}={' or '.join(value) if isinstance(value, list) else value}"
            for name, value in self.as_dict().items()
        )
        return ", ".join(shown) or "all forms"


def job_id_from(form: Form) -> int | None:
    return getattr(form.job_details, "job_id", None)


def format_time(timestamp: datetime) -> str:
    """Format a time as the service does: UTC, milliseconds, ``Z``."""
    return timestamp.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_reference_time(value: Any) -> datetime | None:
    """Parse a time of a reference, to UTC; None if it is not an aware time."""
    with suppress(TypeError, ValueError, OverflowError):
        timestamp = datetime.fromisoformat(value)
        return timestamp.astimezone(UTC) if timestamp.tzinfo else None
    return None


def normalize_name(name: Any) -> str:
    return normalize("NFC", name if isinstance(name, str) else str(name or "")).strip()


def _parse_filter(name: str, value: Any) -> Any:
    if name.endswith("_since"):
        return validation.parse_time(name, value)
    if name in ("form_category", "created_by_type"):
        return validation.parse_text(name, value)
    if name != "form_names":
        return validation.parse_identifier(name, value)
    return tuple(map(normalize_name, validation.parse_names(name, value)))


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else str(value)


def _same(expected: int | str | None, found: int | str | None) -> bool:
    return expected is None or validation.canonical_id(expected) == validation.canonical_id(found)


def seconds_of(value: Any) -> float | None:
    """Return seconds since 1970, the later ones when summer time ends; None for none, or a
    placeholder.
    """
    if not isinstance(value, datetime) or value.year < 2000:
        return None
    return max(value.timestamp(), value.replace(fold=1).timestamp())


def _at_or_after(found: Any, bound: Any) -> bool:
    return bound is None or (seconds := seconds_of(found)) is None or seconds >= bound.timestamp()


def reference_to(form: Form) -> FormReference:
    record = {**form.as_json(), "jobID": job_id_from(form)}
    names = ("id", "formName", "propertyID", "jobID", "createdOnDateTime", "lastUpdatedOnDateTime")
    return {name: record[name] for name in names}


def for_xcom(forms: Iterable[Form], xcom: FormsXCom) -> list[Any]:
    if xcom == "ids":
        return [form.id for form in forms]
    return [reference_to(form) if xcom == "references" else form.as_json() for form in forms]


def matching_forms(pages: Iterable[Page[Form]], wanted: FormFilter) -> Iterator[list[Form]]:
    """Drop the forms of each page that do not match, and log their number."""
    dropped, asked = 0, replace(wanted, form_names=None)
    matches = asked.matches if asked.as_dict() else None
    for page in pages:
        found = [form for form in page.data if matches(form)] if matches else page.data
        dropped += len(page.data) - len(found)
        yield (
            found if wanted.form_names is None else [form for form in found if wanted.matches(form)]
        )
        del page, found  # what is alive at the next page counts as long-lived
    if dropped:
        message = (
            "%s of the listing did not match the filter (%s): the service ignores it, or omits it"
        )
        logger.warning(message, pluralize(dropped, "form"), asked)


def parse_forms(given: Any, timezone: tzinfo) -> list[Form]:
    validation.refuse_none("forms", given)
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise FsmInputError(
            f"forms: should be a list of forms, as sensors give, not {type(given).__name__}"
        )
    return [parse_form(f"forms[{index}]", one, timezone) for index, one in enumerate(given)]


def parse_form(where: str, given: Any, timezone: tzinfo) -> Form:
    """Parse a form reference, a form record or a bare identifier; ``where`` is its name in
    messages.
    """
    if isinstance(given, list | tuple):
        cause = "each map index of a mapped task gives one"
        raise FsmInputError(f"{where}: is a list: {cause}. Use .expand(forms=...)")
    if isinstance(given, Mapping) and "customerReference" in given and "formName" not in given:
        raise FsmInputError(f"{where}: is a job, not a form: give the output of a sensor")
    record = deepcopy(dict(given)) if isinstance(given, Mapping) else {"id": given}
    if "jobDetails" not in record and "jobID" in record:
        record["jobDetails"] = {"jobID": record["jobID"]}
    from fsm_provider.api.models import Form
    from fsm_provider.api.parsing import parse_record

    try:
        return parse_record(record, Form, timezone=timezone, where=where)
    except FsmResponseError as error:
        raise FsmInputError(
            f"{error}: should be a reference to a form, its record or its id"
        ) from None
