"""Forms as others give and take them: records, compact references, identifiers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import tzinfo
from typing import Any, Literal

from fsm_provider.api.errors import FsmInputError, FsmResponseError
from fsm_provider.api.form_filter import FormFilter, FormReference, job_id_from
from fsm_provider.api.models import Form, Page
from fsm_provider.api.parsing import parse_record
from fsm_provider.api.validation import refuse_none

logger: logging.Logger = logging.getLogger(__name__)

FormsXCom = Literal["references", "ids", "full"]


def reference_to(form: Form) -> FormReference:
    """Return the compact reference of a form: JSON values, and no URL."""
    record = form.as_json()
    return {
        "id": form.id,
        "formName": record["formName"],
        "propertyID": record["propertyID"],
        "jobID": job_id_from(form),
        "createdOnDateTime": record["createdOnDateTime"],
        "lastUpdatedOnDateTime": record["lastUpdatedOnDateTime"],
    }


def for_xcom(forms: Iterable[Form], xcom: FormsXCom) -> list[Any]:
    """Convert forms to the JSON values that ``xcom`` names, in order."""
    match xcom:
        case "references":
            return [reference_to(form) for form in forms]
        case "ids":
            return [form.id for form in forms]
        case "full":
            return [form.as_json() for form in forms]


def matching_forms(pages: Iterable[Page[Form]], wanted: FormFilter) -> Iterator[list[Form]]:
    """Drop the forms of each page that do not match, and log their number."""
    dropped, asked = 0, replace(wanted, form_names=None)
    for page in pages:
        matching = [form for form in page.data if asked.matches(form)]
        dropped += len(page.data) - len(matching)
        if wanted.form_names is not None:
            matching = [form for form in matching if wanted.matches(form)]
        del page  # what is alive at the next page counts as long-lived: see Listing
        yield matching
        del matching
    if dropped:
        logger.warning(
            "%s forms of the listing did not match the filter (%s) and were left out: "
            "the service ignores a part of it",
            dropped,
            asked,
        )


def parse_forms(given: Any, timezone: tzinfo) -> list[Form]:
    """Parse form references, form records or bare identifiers.

    :param timezone: the zone of date-times that carry none.
    :raises FsmInputError: naming the first invalid one.
    """
    refuse_none("forms", given)
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise FsmInputError(f"forms: should be a list of forms, not {type(given).__name__}")
    return [parse_form(f"forms[{index}]", one, timezone) for index, one in enumerate(given)]


def parse_form(where: str, given: Any, timezone: tzinfo) -> Form:
    """Parse a form reference, a form record or a bare identifier.

    :param where: the caller's name for it, for messages.
    :param timezone: the zone of date-times that carry none.
    :raises FsmInputError: if it is none of these.
    """
    if isinstance(given, list | tuple):
        raise FsmInputError(
            f"{where}: is a list: each map index of a mapped task gives one. Use .expand(forms=...), or join "
            "the lists"
        )
    record = deepcopy(dict(given)) if isinstance(given, Mapping) else {"id": given}
    if "jobDetails" not in record and "jobID" in record:
        record["jobDetails"] = {"jobID": record["jobID"]}
    try:
        return parse_record(record, Form, timezone=timezone, where=where)
    except FsmResponseError as error:
        raise FsmInputError(f"{error}: should be a reference to a form, its record or its id") from None
