"""The filters of a form listing, and the shapes in which tasks pass completed forms on.

DAG files import it, so it imports no pydantic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast
from unicodedata import normalize

from fsm_provider.api.errors import FsmInputError, FsmResponseError
from fsm_provider.api.validation import (
    JsonObject,
    canonical_id,
    check_found,
    parse_identifier,
    parse_names,
    parse_text,
    parse_time,
    pluralize,
)

if TYPE_CHECKING:
    from fsm_provider.api.models import Form, Page

logger: logging.Logger = logging.getLogger(__name__)

FormsXCom = Literal["references", "ids", "full"]
"""What XCom holds of a form: a :data:`FormReference`, its identifier, or its complete record."""
FormReference = JsonObject
"""A form without its content.

JSON values: ``id``, ``formName``, ``propertyID``, ``jobID``, ``createdOnDateTime``,
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
"""The query parameter of each filter (section 4.3 of the service's specification)."""
ALL_FILTERS = (*FORM_FILTERS, "form_names")
"""The names of all filters; the service does not know ``form_names``."""


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
    """The filters of ``GET /forms`` (section 4.3); a form has to match all that are set.

    :param created_since: created at or after this time: a datetime or ISO 8601; without a zone it
        is UTC. Likewise ``updated_since``.
    :param form_category: only the service can check it; likewise ``form_name_id``.
    :param form_names: a name, or several of which a form has to have one; checked here, not by the
        service.

    Once it is made, its times are datetimes, and ``form_names`` is a tuple of normalised names.

    :raises FsmInputError: names the first filter that is not valid.
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
        for name in ALL_FILTERS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _parse_filter(name, value))

    def params(self) -> dict[str, str]:
        """Return the query parameters of the filters that are set, ``form_names`` excepted."""
        params = {}
        for name, param in FORM_FILTERS.items():
            value = getattr(self, name)
            if isinstance(value, datetime):
                params[param] = format_time(value)
            elif value is not None:
                params[param] = str(value)
        return params

    def matches(self, form: Form) -> bool:
        """Return whether a form matches every filter that its record shows.

        A time that cannot be read matches; an identifier that is not there does not.
        """
        is_of_wanted_origin = (
            _is_same(self.property_id, form.property_id)
            and _is_same(self.job_id, job_id_from(form))
            and _is_same(self.created_by_type, form.created_by_type)
            and _is_same(self.created_by_id, form.created_by_id)
        )
        if not is_of_wanted_origin:
            return False
        if self.form_names is not None and normalize_name(form.form_name) not in self.form_names:
            return False
        if not _is_at_or_after(form.created_on_date_time, self.created_since):
            return False
        return _is_at_or_after(form.last_updated_on_date_time, self.updated_since)

    def filters_not_in_references(self) -> FormFilter:
        """Return the filters that a reference to a form does not show.

        Waits that agree in these can share a listing: each checks the others on references.
        """
        return FormFilter(
            form_category=self.form_category,
            form_name_id=self.form_name_id,
            created_by_type=self.created_by_type,
            created_by_id=self.created_by_id,
        )

    def as_dict(self) -> FormFilters:
        """Return the filters that are set, as JSON values; the inverse is ``FormFilter(**...)``."""
        filters: JsonObject = {}
        for name in ALL_FILTERS:
            value = getattr(self, name)
            if isinstance(value, datetime):
                filters[name] = value.isoformat()
            elif isinstance(value, tuple):
                filters[name] = list(value)
            elif value is not None:
                filters[name] = str(value)
        return cast(FormFilters, filters)

    def __str__(self) -> str:
        shown = []
        for name, value in self.as_dict().items():
            text = " or ".join(value) if isinstance(value, list) else value
            shown.append(f"{name}={text}")
        return ", ".join(shown) or "all forms"


def job_id_from(form: Form) -> int | None:
    """Return the identifier of a form's job; None where its record does not show it."""
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
    """Return a form's name as names are compared: in Unicode's form NFC, without blanks around it.

    :param name: of a record, where it may be of any type; None is the empty name.
    """
    text = name if isinstance(name, str) else str(name or "")
    return normalize("NFC", text).strip()


def _parse_filter(name: str, value: Any) -> Any:
    if name.endswith("_since"):
        return parse_time(name, value)
    if name in ("form_category", "created_by_type"):
        return parse_text(name, value)
    if name == "form_names":
        names = parse_names(name, value)
        return tuple(normalize_name(form_name) for form_name in names)
    return parse_identifier(name, value)


def _is_same(expected: int | str | None, identifier: int | str | None) -> bool:
    """Return whether an identifier is the expected one; where none is expected, any is."""
    if expected is None:
        return True
    return canonical_id(expected) == canonical_id(identifier)


def seconds_of(value: Any) -> float | None:
    """Return the seconds since 1970 of a record's time; None if it is none, or a placeholder.

    A time that the end of summer time repeats is the later one.
    """
    if not isinstance(value, datetime) or value.year < 2000:
        return None
    return max(value.timestamp(), value.replace(fold=1).timestamp())


def _is_at_or_after(timestamp: Any, bound: Any) -> bool:
    """Return whether a record's time is at or after a bound; any is where there is no bound."""
    if bound is None:
        return True
    seconds = seconds_of(timestamp)
    return seconds is None or seconds >= bound.timestamp()


def reference_to(form: Form) -> FormReference:
    """Return the reference to a form, without the URL of its PDF."""
    record = form.as_json()
    return {
        "id": record["id"],
        "formName": record["formName"],
        "propertyID": record["propertyID"],
        "jobID": job_id_from(form),
        "createdOnDateTime": record["createdOnDateTime"],
        "lastUpdatedOnDateTime": record["lastUpdatedOnDateTime"],
    }


def for_xcom(forms: Iterable[Form], xcom: FormsXCom) -> list[Any]:
    """Return forms as XCom is to hold them, in their order."""
    if xcom == "ids":
        return [form.id for form in forms]
    if xcom == "references":
        return [reference_to(form) for form in forms]
    return [form.as_json() for form in forms]


def matching_forms(pages: Iterable[Page[Form]], wanted: FormFilter) -> Iterator[list[Form]]:
    """Yield the forms of each page that match; in the end, log how many of the others there were.

    Those with another name are not counted, as the service cannot leave them out.

    No form is held while the next page is read: Python's garbage collector counts what is alive
    then as long-lived, and took up to a third of a listing's time.
    """
    sent = replace(wanted, form_names=None)
    is_anything_sent = bool(sent.as_dict())
    dropped = 0
    for page in pages:
        forms = page.data
        if is_anything_sent:
            forms = [form for form in page.data if sent.matches(form)]
        dropped += len(page.data) - len(forms)
        if wanted.form_names is not None:
            forms = [form for form in forms if normalize_name(form.form_name) in wanted.form_names]
        yield forms
        del page, forms
    if dropped:
        logger.warning(
            "%s of the listing did not match the filter (%s): the service ignores it, or omits it",
            pluralize(dropped, "form"),
            sent,
        )


def parse_forms(forms: Any, timezone: tzinfo) -> list[Form]:
    """Parse the argument ``forms`` of an operator; see :func:`parse_form`.

    :raises FsmInputError: if it is no list, or names the first item that is no form.
    """
    check_found("forms", forms)
    is_single_form = isinstance(forms, str | Mapping)
    if is_single_form or not isinstance(forms, Iterable):
        raise FsmInputError(
            f"forms: should be a list of forms, as sensors give, not {type(forms).__name__}"
        )
    return [parse_form(f"forms[{index}]", form, timezone) for index, form in enumerate(forms)]


def parse_form(where: str, form: Any, timezone: tzinfo) -> Form:
    """Parse a form given as a reference, a record or a bare identifier; it is not modified.

    :param where: its name in messages.
    :param timezone: of its times without a zone.
    :raises FsmInputError: if it is none of these.
    """
    from fsm_provider.api.models import Form
    from fsm_provider.api.parsing import parse_record

    record = _record_of_form(where, form)
    try:
        return parse_record(record, Form, timezone, where)
    except FsmResponseError as error:
        raise FsmInputError(
            f"{error}: should be a reference to a form, its record or its id"
        ) from None


def _record_of_form(where: str, form: Any) -> JsonObject:
    """Return a form's record, of its own, whichever way the form is given."""
    if isinstance(form, list | tuple):
        raise FsmInputError(
            f"{where}: is a list: each map index of a mapped task gives one. Use .expand(forms=...)"
        )
    if not isinstance(form, Mapping):
        return {"id": form}
    if "customerReference" in form and "formName" not in form:
        raise FsmInputError(f"{where}: is a job, not a form: give the output of a sensor")
    record = deepcopy(dict(form))
    is_reference = "jobDetails" not in record and "jobID" in record
    if is_reference:
        record["jobDetails"] = {"jobID": record["jobID"]}
    return record
