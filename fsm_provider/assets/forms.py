"""Completed forms as an asset, for DAGs that start when an engineer has completed a form."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from fsm_provider.api.forms import FormFilter, FormReference, normalize_name, parse_reference_time
from fsm_provider.api.validation import (
    JsonObject,
    parse_count,
    parse_identifiers,
    parse_names,
    parse_params,
    parse_seconds,
    parse_text,
    parse_time,
    with_hints,
)

if TYPE_CHECKING:
    from airflow.sdk import Asset

logger: logging.Logger = logging.getLogger(__name__)

LARGEST_EVENT = 1000
"""References: about 200 kB of JSON, which Airflow's database, its API and each run of the event
handle.
"""
LONGEST = timedelta(days=366).total_seconds()
NEEDS_3_0 = (
    "completed_forms: needs Airflow 3.0 or newer, for its asset watchers. Schedule the DAG by "
    "time instead and list what was updated since its last success, as the example "
    "forms_since_watermark does."
)
DEFINED_TWICE = (
    "The asset '%s' is defined here with %s, and the forms of this event were polled with %s. "
    "Unless it was edited meanwhile, two DAGs define it differently: import it from one module, "
    "or give one of them another name"
)


_defined: dict[str, list[JsonObject]] = {}
"""The questions of the assets that this process has defined, by name."""


@with_hints
def completed_forms(
    name: str,
    *,
    fsm_conn_id: str = "fsm_default",
    poll_interval: float = 60,
    max_forms_per_event: int = 100,
    start_from: datetime | str = "now",
    late_by: timedelta = timedelta(days=7),
    property_id: int | str | list[int | str] | None = None,
    job_id: int | str | list[int | str] | None = None,
    form_category: str | None = None,
    form_name_id: int | str | None = None,
    created_by_type: str | None = None,
    created_by_id: int | str | None = None,
    form_names: str | list[str] | None = None,
    query_params: dict[str, Any] | None = None,
) -> Asset:
    """Define an asset with an event whenever forms were completed or changed. Needs Airflow 3.0.

    Before Airflow 3.3, the connection has to name a SQL database as its ``state_conn_id``.

    A DAG with ``schedule=completed_forms("gas_safety")`` starts with the new forms of a poll, which
    its tasks get by :func:`forms_from_events`. Every form is emitted; a second time only if a
    triggerer ends before an event that is stored is recorded. What was updated before the asset
    began is history. Define an asset once, in a module that its DAGs import.

    :param name: the asset's name; its URI is ``fsm://<connection>/forms/<name>``.
    :param fsm_conn_id: the Airflow connection.
    :param poll_interval: seconds between two polls, at least 1.
    :param max_forms_per_event: references in one event, from 1 to 1,000. Up to one run starts for
        each event.
    :param start_from: where it begins if nothing is stored: ``now``, at its first poll;
        ``beginning``, with every form there is; a time, with forms updated at or after it, in UTC
        if it has no zone.
    :param late_by: how late a phone may sync, from an hour to 366 days. Each poll goes back an
        hour. About once an hour, one goes back this far: after 60 polls if that is sooner, and less
        often if it is more than a week. What was emitted is remembered for as long.
    :param property_id: forms of one property, or of each in a list.
    :param job_id: forms of one job, or of each in a list.
    :param form_category: category of the form; only the service can check it.
    :param form_name_id: identifier of the form's name; only the service can check it.
    :param created_by_type: type of the creator.
    :param created_by_id: identifier of the creator.
    :param form_names: forms of these names only.
    :param query_params: query parameters that the specification does not document.
    :raises FsmInputError: naming the argument that is invalid.
    :raises AirflowOptionalProviderFeatureException: before Airflow 3.0; it says what to do instead.
    """
    from fsm_provider.polling.watcher_config import WatcherConfig
    from fsm_provider.storage import uri_for_records
    from fsm_provider.triggers.forms import FsmFormConfigurationTrigger, FsmFormEventTrigger

    if not AIRFLOW_V_3_0_PLUS:
        raise AirflowOptionalProviderFeatureException(NEEDS_3_0)
    from airflow.sdk import Asset, AssetWatcher

    name = parse_text("name", name)
    fsm_conn_id = parse_text("fsm_conn_id", fsm_conn_id)
    if start_from not in ("now", "beginning"):
        start_from = parse_time("start_from", start_from).astimezone(UTC).isoformat()
    wanted = FormFilter(
        form_category=form_category,
        form_name_id=form_name_id,
        created_by_type=created_by_type,
        created_by_id=created_by_id,
    )
    names = []
    if form_names is not None:
        names = [normalize_name(name) for name in parse_names("form_names", form_names)]
    params = json.dumps(parse_params("query_params", query_params))
    config = WatcherConfig(
        asset_name=name,
        fsm_conn_id=fsm_conn_id,
        filters=dict(wanted.as_dict()),
        property_ids=parse_identifiers("property_id", property_id),
        job_ids=parse_identifiers("job_id", job_id),
        form_names=names,
        query_params=json.loads(params) or None,  # as it comes back with each event
        poll_interval=parse_seconds("poll_interval", poll_interval, 1, LONGEST),
        max_forms_per_event=parse_count(
            "max_forms_per_event", max_forms_per_event, max_value=LARGEST_EVENT
        ),
        start_from=str(start_from),
        late_by=parse_seconds("late_by", late_by, 3600, LONGEST),
    )
    _defined.setdefault(name, []).append(config.question())
    configuration = json.dumps(asdict(config), sort_keys=True)  # the same at each parsing
    events = AssetWatcher(
        name=name, trigger=FsmFormEventTrigger(asset_name=name, fsm_conn_id=fsm_conn_id)
    )
    announcement = AssetWatcher(
        name=f"{name} configuration", trigger=FsmFormConfigurationTrigger(watch=configuration)
    )
    folder = uri_for_records(fsm_conn_id, "forms")
    uri = f"{folder}/{quote(name, safe='')}"
    return Asset(name=name, uri=uri, watchers=[events, announcement])


def forms_from_events(triggering_asset_events: Mapping[Any, Iterable[Any]]) -> list[FormReference]:
    """Return the forms that started a run: those of all its events, each version of a form once.

    Of one version, the last reference is returned. References without a readable
    ``lastUpdatedOnDateTime`` are one version if they are equal. Events of other assets are ignored.

    :param triggering_asset_events: ``context["triggering_asset_events"]``.
    :return: references, in the order of their events; each names its connection, as
        ``fsm_conn_id``.
    """
    events = {}  # that of an asset and of its alias is one
    for group in triggering_asset_events.values():
        for event in group:
            events[id(event)] = event
    references = {}
    for event in sorted(events.values(), key=attrgetter("timestamp")):
        for reference in _references_of(event):
            updated = parse_reference_time(reference["lastUpdatedOnDateTime"])
            version = updated or json.dumps(reference, sort_keys=True)
            references[reference["fsm_conn_id"], reference["id"], version] = reference
    return list(references.values())


def _references_of(event: Any) -> Iterator[FormReference]:
    """Yield the forms of an event, with their connection; none if it is of another asset.

    If this process has defined the asset otherwise than it was polled, that is logged.
    """
    match (event.extra or {}).get("payload"):
        case {
            "asset_name": str(name),
            "question": {"fsm_conn_id": str(fsm_conn_id)} as polled,
            "forms": list(references),
        }:
            others = [question for question in _defined.get(name, ()) if question != polled]
            if others:
                logger.error(DEFINED_TWICE, name, others[-1], polled)
            for reference in references:
                yield {**reference, "fsm_conn_id": fsm_conn_id}
