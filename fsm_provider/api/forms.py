"""What a listing of forms is asked for, and when an answer is what someone waits for (4.3)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal, TypedDict, cast

from fsm_provider.api.endpoints import LIST_FORMS
from fsm_provider.api.errors import FsmInputError, FsmResponseError
from fsm_provider.api.inputs import read_identifier, read_time
from fsm_provider.api.models import Form, Page
from fsm_provider.api.reading import read_record

logger: logging.Logger = logging.getLogger(__name__)

Reference = dict[str, Any]
"""``id``, ``formName``, ``propertyID``, ``jobID``, ``createdOnDateTime``, ``lastUpdatedOnDateTime``."""

FormsXCom = Literal["references", "ids", "full"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFilter:
    """The filters of ``GET /forms``; each narrows the list.

    :param property_id: forms of one property.
    :param job_id: forms of one job.
    :param created_since: created at or after; a time without a zone is UTC.
    :param updated_since: last updated at or after; likewise.
    :param form_category: category of the form; only the service can tell it.
    :param form_name_id: identifier of the form's name; only the service can tell it.
    :param created_by_type: type of the creator.
    :param created_by_id: identifier of the creator.
    :raises FsmInputError: naming the filter that is not of its type.
    """

    property_id: int | str | None = None
    job_id: int | str | None = None
    created_since: datetime | str | None = None
    updated_since: datetime | str | None = None
    form_category: str | None = None
    form_name_id: int | str | None = None
    created_by_type: str | None = None
    created_by_id: int | str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            read = read_time if field.name.endswith("_since") else read_identifier
            if value is not None:
                object.__setattr__(self, field.name, read(field.name, value))

    def params(self) -> dict[str, str]:
        """Give the query parameters."""
        return {
            wire_name: format_time(value) if isinstance(value, datetime) else str(value)
            for name, wire_name in LIST_FORMS.parameters.items()
            if (value := getattr(self, name)) is not None
        }

    def matches(self, form: Form) -> bool:
        """Check a form against every filter that its record can be checked against.

        A service that ignores a filter must not pass someone else's form off as the one awaited. A
        time that cannot be read is taken to match: the service has filtered by it.
        """
        return (
            _same(self.property_id, form.property_id)
            and _same(self.job_id, job_id_of(form))
            and _same(self.created_by_type, form.created_by_type)
            and _same(self.created_by_id, form.created_by_id)
            and _at_or_after(form.created_on_date_time, self.created_since)
            and _at_or_after(form.last_updated_on_date_time, self.updated_since)
        )

    def matches_reference(self, reference: Reference) -> bool:
        """Check a reference against what it shows: property, job, and both times."""
        return (
            _same(self.property_id, reference["propertyID"])
            and _same(self.job_id, reference["jobID"])
            and _at_or_after(read_moment(reference["createdOnDateTime"]), self.created_since)
            and _at_or_after(read_moment(reference["lastUpdatedOnDateTime"]), self.updated_since)
        )

    def widened(self) -> FormFilter:
        """Give the filter that all waits can share that differ only in what a reference shows.

        Each lower bound becomes the start of its day in UTC; property and job go. What the widened
        filter lets through, :meth:`matches_reference` narrows down again.
        """
        return replace(
            self,
            property_id=None,
            job_id=None,
            created_since=_start_of_day(self.created_since),
            updated_since=_start_of_day(self.updated_since),
        )

    def age(self, now: datetime) -> timedelta | None:
        """Tell how far back the later of the two lower bounds is, None where there is none."""
        bounds = [bound for bound in (self.created_since, self.updated_since) if isinstance(bound, datetime)]
        return now - max(bounds) if bounds else None

    def as_dict(self) -> FormFilters:
        """Give the filters that are set, as JSON values; ``FormFilter(**...)`` undoes it."""
        return cast(
            FormFilters,
            {
                field.name: value.isoformat() if isinstance(value, datetime) else str(value)
                for field in fields(self)
                if (value := getattr(self, field.name)) is not None
            },
        )

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.as_dict().items()) or "all forms"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormDemand:
    """When the forms that are there are enough.

    :param minimum_forms: so many, at least 1.
    :param form_names: only forms of these names count, and each has to have one; none: any form.
    """

    minimum_forms: int = 1
    form_names: tuple[str, ...] = ()

    def counts(self, reference: Reference) -> bool:
        """Tell whether a form counts: it has one of the names asked for, or none is."""
        return not self.form_names or reference["formName"] in self.form_names

    def wanted(self, references: Iterable[Reference]) -> list[Reference]:
        """Keep what counts, each form once."""
        latest = {reference["id"]: reference for reference in references if self.counts(reference)}
        return list(latest.values())

    def is_met_by(self, wanted: list[Reference]) -> bool:
        """Tell whether ``wanted`` is enough."""
        return len(wanted) >= self.minimum_forms and not self.missing(wanted)

    def missing(self, wanted: list[Reference]) -> list[str]:
        """Name the form names of which there is none."""
        there = [reference["formName"] for reference in wanted]
        return [name for name in self.form_names if name not in there]


def reference_to(form: Form) -> Reference:
    """Give the compact reference of a form: JSON values, and no address."""
    record = form.as_json()
    return {
        "id": form.id,
        "formName": record["formName"],
        "propertyID": record["propertyID"],
        "jobID": job_id_of(form),
        "createdOnDateTime": record["createdOnDateTime"],
        "lastUpdatedOnDateTime": record["lastUpdatedOnDateTime"],
    }


def for_xcom(forms: Iterable[Form], xcom: FormsXCom) -> list[Any]:
    """Give forms as the JSON values that ``xcom`` names, in their order."""
    match xcom:
        case "references":
            return [reference_to(form) for form in forms]
        case "ids":
            return [form.id for form in forms]
        case "full":
            return [form.as_json() for form in forms]


def matching_forms(pages: Iterable[Page[Form]], wanted: FormFilter) -> Iterator[list[Form]]:
    """Leave out of each page what the service should not have listed, and say how much that was."""
    others = 0
    for page in pages:
        matching = [form for form in page.data if wanted.matches(form)]
        others += len(page.data) - len(matching)
        yield matching
    if others:
        logger.warning(
            "%s forms of the listing did not match the filter (%s) and were left out: "
            "the service ignores a part of it",
            others,
            wanted,
        )


def read_forms(given: Any, timezone: tzinfo) -> list[Form]:
    """Read references to forms, records of forms, or bare identifiers.

    :param timezone: the zone of date-times that carry none.
    :raises FsmInputError: naming the first that is none.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise FsmInputError(f"forms: should be a list of forms, not {type(given).__name__}")
    return [read_form(f"forms[{index}]", one, timezone) for index, one in enumerate(given)]


def read_form(where: str, given: Any, timezone: tzinfo) -> Form:
    """Read a reference to a form, a record of one, or a bare identifier.

    :param where: what it is to the caller.
    :param timezone: the zone of date-times that carry none.
    :raises FsmInputError: where it is none.
    """
    record = deepcopy(dict(given)) if isinstance(given, Mapping) else {"id": given}
    if "jobDetails" not in record and "jobID" in record:
        record["jobDetails"] = {"jobID": record["jobID"]}
    try:
        return read_record(record, Form, timezone=timezone, where=where)
    except FsmResponseError as error:
        raise FsmInputError(f"{error}: should be a reference to a form, its record or its id") from None


def job_id_of(form: Form) -> int | None:
    """Give the job that a form was completed against, where it can be read."""
    return getattr(form.job_details, "job_id", None)


def format_time(moment: datetime) -> str:
    """Write a time as the service writes its own: UTC, milliseconds, ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_moment(value: Any) -> datetime | None:
    """Read a time of a reference, None where it is none: such a time matches every bound."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return moment if moment.tzinfo else None
    return None


def _start_of_day(bound: datetime | str | None) -> datetime | None:
    if not isinstance(bound, datetime):
        return None
    return bound.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _same(asked: int | str | None, found: int | str | None) -> bool:
    return asked is None or (found is not None and str(asked) == str(found))


def _at_or_after(found: Any, asked: Any) -> bool:
    return asked is None or not isinstance(found, datetime) or found >= asked
