"""What an asset's watcher watches for."""

from __future__ import annotations

from datetime import datetime
from itertools import product
from typing import Any, TypedDict

from fsm_provider.api.forms import FORM_FILTERS, FormReference
from fsm_provider.polling.polls import Form, Query, Source, Time

QUESTION = ("fsm_conn_id", "filters", "property_ids", "job_ids", "form_names", "query_params")
"""What decides which forms an asset has; the other keys say when and how often it is polled."""
MAX_BASES = 20
"""Places that an asset's own question asks for one by one; for more, it asks for all."""
HOUR, WEEK = 3_600.0, 7 * 86_400.0


class Watch(TypedDict):
    """The configuration of an asset's watcher: times in seconds, every value plain JSON.

    :param filters: of :class:`~fsm_provider.api.forms.FormFilter`, without property and job.
    :param property_ids: in the one spelling of identifiers, sorted; empty: any.
    :param start_from: ``now``, ``beginning``, or a time in ISO 8601.
    """

    asset_name: str
    fsm_conn_id: str
    filters: dict[str, Any]
    property_ids: list[str]
    job_ids: list[str]
    form_names: list[str]
    query_params: dict[str, Any] | None
    poll_interval: float
    max_forms_per_event: int
    start_from: str
    late_by: float


def is_wanted(watch: Watch, form: Form) -> bool:
    return (
        (not watch["property_ids"] or form.property_id in watch["property_ids"])
        and (not watch["job_ids"] or form.job_id in watch["job_ids"])
        and (not watch["form_names"] or form.name in watch["form_names"])
    )


def bases_of(watch: Watch) -> list[Query]:
    any_place: list[str | None] = [None]
    places = list(product(watch["property_ids"] or any_place, watch["job_ids"] or any_place))
    return [Query(*place) for place in places] if len(places) <= MAX_BASES else [Query()]


def places_of(watch: Watch) -> list[tuple[str, str]]:
    for kind, values in (("job", watch["job_ids"]), ("property", watch["property_ids"])):
        if values:
            return [(kind, value) for value in values]
    return [("name", name) for name in watch["form_names"]] or [("any", "")]


def source_of(watch: Watch, service: str) -> Source:
    filters: Any = {name: value for name, value in watch["filters"].items() if name in FORM_FILTERS}
    return Source.of(watch["fsm_conn_id"], service, filters, watch["query_params"], watch["poll_interval"])


def reconcile_every(watch: Watch) -> float:
    """Return the seconds between two reconciliations: less if polls are frequent, more if they go far."""
    usual = min(max(60 * watch["poll_interval"], 60.0), HOUR)
    return max(usual * max(watch["late_by"] / WEEK, 1.0), watch["poll_interval"])


def first_floor(watch: Watch) -> Time | None:
    """Return where an asset begins that has nothing stored; None: at its first poll."""
    match watch["start_from"]:
        case "now":
            return None
        case "beginning":
            return 0.0
        case text:
            return datetime.fromisoformat(text).timestamp()


def question_from(watch: Watch) -> dict[str, Any]:
    """Return the part of a configuration that decides which forms the asset has."""
    given: dict[str, Any] = {**watch}
    return {name: given[name] for name in QUESTION}


def event_for(watch: Watch, references: list[FormReference]) -> dict[str, Any]:
    return {"asset_name": watch["asset_name"], "question": question_from(watch), "forms": references}
