"""What an asset watches for: the arguments of ``completed_forms``, as its watcher gets them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from fsm_provider.api.forms import FormReference
from fsm_provider.api.validation import JsonObject
from fsm_provider.polling.formats import known_fields, refuse_newer
from fsm_provider.polling.polls import BEGINNING, FormSelection, Time

HOUR = 3_600.0
WEEK = 7 * 86_400.0
FORMAT = 1
"""Of what this version stores with an asset, and the newest that it reads."""
STORED_BY_NEWER = (
    "what is stored with it was written by a newer version of airflow-provider-fsm (format {}): "
    "install that version again, or give the asset another name"
)


@dataclass(frozen=True, kw_only=True)
class WatcherConfig:
    """The configuration of an asset's watcher: JSON values. What is empty matches any.

    :param filters: of :class:`~fsm_provider.api.forms.FormFilter`, without property and job.
    :param start_from: ``now``, ``beginning``, or a time in ISO 8601.
    """

    asset_name: str = ""
    fsm_conn_id: str = "fsm_default"
    filters: JsonObject = field(default_factory=dict)
    property_ids: list[str] = field(default_factory=list)
    job_ids: list[str] = field(default_factory=list)
    form_names: list[str] = field(default_factory=list)
    query_params: dict[str, Any] | None = None
    poll_interval: float = 60.0
    max_forms_per_event: int = 100
    start_from: str = "now"
    late_by: float = WEEK
    format: int = FORMAT

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return a stored configuration, maybe of another version of this package.

        :raises FsmInputError: if a newer version has written it.
        """
        refuse_newer(stored, FORMAT, STORED_BY_NEWER)
        return cls(**known_fields(cls, stored))

    def selection(self) -> FormSelection:
        return FormSelection(self.property_ids, self.job_ids, self.form_names)

    def question(self) -> JsonObject:
        """Return the fields that decide which forms match, which each event carries."""
        return {
            "fsm_conn_id": self.fsm_conn_id,
            "filters": self.filters,
            "property_ids": self.property_ids,
            "job_ids": self.job_ids,
            "form_names": self.form_names,
            "query_params": self.query_params,
        }

    def event_with(self, references: list[FormReference]) -> JsonObject:
        return {"asset_name": self.asset_name, "question": self.question(), "forms": references}

    def first_floor(self) -> Time | None:
        """Return where an asset begins that has nothing stored; None: at its first poll."""
        if self.start_from == "now":
            return None
        if self.start_from == "beginning":
            return BEGINNING
        return datetime.fromisoformat(self.start_from).timestamp()

    def reconcile_every(self) -> float:
        """Return the seconds between two reconciliations.

        Usually an hour; less where polls are frequent, more where it goes back more than a week.
        """
        usual = min(60 * self.poll_interval, HOUR)
        weeks_back = max(self.late_by / WEEK, 1.0)
        return max(usual * weeks_back, self.poll_interval)
