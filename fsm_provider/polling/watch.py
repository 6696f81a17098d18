"""The configuration of an asset's watcher."""

from __future__ import annotations

from typing import Any, TypedDict

from fsm_provider.api.form_filter import FORM_FILTERS, FormFilter, FormFilters, FormReference

QUESTION = ("fsm_conn_id", "filters", "form_names", "query_params")
"""What decides which forms an asset has; the other keys say when and how often it is polled."""


class WatchFilters(FormFilters, total=False):
    """The filters of a watcher.

    :param property_ids: several properties, in place of ``property_id``.
    :param job_ids: several jobs, in place of ``job_id``.
    """

    property_ids: list[str]
    job_ids: list[str]


class FormWatch(TypedDict):
    """The configuration of a watcher of completed forms: times in seconds, and every value plain JSON."""

    asset_name: str
    fsm_conn_id: str
    filters: WatchFilters
    form_names: list[str]
    query_params: dict[str, Any] | None
    start_from: str
    look_back: float
    reconcile_every: float
    reconcile_back: float
    max_forms_per_event: int


def filter_from(watch: FormWatch) -> FormFilter:
    """Return the filters that one request can ask for: those of a single property and a single job."""
    given: dict[str, Any] = {**watch["filters"]}
    return FormFilter(**{name: value for name, value in given.items() if name in FORM_FILTERS})


def question_from(watch: FormWatch) -> dict[str, Any]:
    """Return the part of a configuration that decides which forms the asset has."""
    given: dict[str, Any] = {**watch}
    return {name: given[name] for name in QUESTION}


def event_for(watch: FormWatch, references: list[FormReference]) -> dict[str, Any]:
    """Return the event that a watcher emits of new forms."""
    return {
        "asset_name": watch["asset_name"],
        "question": question_from(watch),
        "forms": references,
    }
