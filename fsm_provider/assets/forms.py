"""Completed forms as an asset, for DAGs that start when an engineer has completed a form."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from fsm_provider.api.errors import FsmInputError

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from fsm_provider.api.forms import FormReference

logger: logging.Logger = logging.getLogger(__name__)

LARGEST_EVENT = 1000
"""References: about 200 kB of JSON, which Airflow's database, its API and each run of the event handle."""
MAX_LATE = timedelta(days=366)
NEEDS_3_0 = (
    "completed_forms: watching for completed forms needs Airflow 3.0 or newer, since Airflow 2 has no asset "
    "watchers. Schedule the DAG by time instead and list what was updated since its last run that succeeded, "
    "as the example forms_since_watermark does."
)

_defined: dict[str, list[dict[str, Any]]] = {}
"""The questions of the assets that this process has defined, by name."""


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

    A DAG with ``schedule=completed_forms("gas_safety")`` starts with the new forms of a poll, which its
    tasks get by :func:`forms_from_events`. Every form is emitted, even if a triggerer dies or the DAG is
    paused for a while; a second time only if its watcher ends after an event is stored and before that is
    recorded. What was updated before the asset began is history, whatever arguments change.

    Define an asset once, in a module that its DAGs import. Where two DAGs define it with different arguments,
    both get the events of one definition, and :func:`forms_from_events` logs an error that names both.

    :param name: the asset's name; its URI is ``fsm://<connection>/forms/<name>``.
    :param fsm_conn_id: the Airflow connection.
    :param poll_interval: seconds between two polls, at least 1.
    :param max_forms_per_event: references in one event, from 1 to 1,000. Up to one run starts for each event.
    :param start_from: where it begins if nothing is stored: ``now``, at its first poll; ``beginning``, with
        every form there is; a time, with forms updated at or after it, in UTC if it has no zone.
    :param late_by: how late a phone may sync, from an hour to 366 days. Each poll goes back an hour, and one
        an hour goes back so far. What was emitted is remembered for as long.
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
    from fsm_provider.api.forms import FormFilter, same_name
    from fsm_provider.api.validation import parse_count, parse_names, parse_text
    from fsm_provider.polling.tracker import Watch, question_from
    from fsm_provider.storage.lineage import uri_for_records
    from fsm_provider.triggers.assets import FsmFormConfigurationTrigger, FsmFormEventTrigger

    if not AIRFLOW_V_3_0_PLUS:
        raise AirflowOptionalProviderFeatureException(NEEDS_3_0)
    from airflow.sdk import Asset, AssetWatcher

    parse_text("name", name)
    parse_text("fsm_conn_id", fsm_conn_id)
    wanted = FormFilter(
        form_category=form_category,
        form_name_id=form_name_id,
        created_by_type=created_by_type,
        created_by_id=created_by_id,
    )
    watch = Watch(
        asset_name=name,
        fsm_conn_id=fsm_conn_id,
        filters=dict(wanted.as_dict()),
        property_ids=_identifiers("property_id", property_id),
        job_ids=_identifiers("job_id", job_id),
        form_names=list(map(same_name, parse_names("form_names", form_names or ()))),
        query_params=_query_params(query_params),
        poll_interval=_seconds("poll_interval", poll_interval, least=1),
        max_forms_per_event=parse_count("max_forms_per_event", max_forms_per_event, max_value=LARGEST_EVENT),
        start_from=_start(start_from),
        late_by=_seconds("late_by", late_by, least=3600, most=MAX_LATE.total_seconds()),
    )
    _defined.setdefault(name, []).append(question_from(watch))
    return Asset(
        name=name,
        uri=f"{uri_for_records(fsm_conn_id, 'forms')}/{quote(name, safe='')}",
        watchers=[
            AssetWatcher(name=name, trigger=FsmFormEventTrigger(asset_name=name, fsm_conn_id=fsm_conn_id)),
            AssetWatcher(
                name=f"{name} configuration",
                trigger=FsmFormConfigurationTrigger(watch=json.dumps(watch, sort_keys=True)),
            ),
        ],
    )


def forms_from_events(triggering_asset_events: Mapping[Any, Iterable[Any]]) -> list[FormReference]:
    """Return the forms that started a run: those of all its events, each version of a form once.

    A run takes the events of several polls if they came while it could not start, and a form may be in two
    events if a triggerer died. Of one version, the last reference is returned. References of a form without
    a readable ``lastUpdatedOnDateTime`` are one version if they are equal, even if the form's record has
    changed between them: a task that reads the record gets the last. Events of other assets are ignored.

    :param triggering_asset_events: ``context["triggering_asset_events"]``.
    :return: references, in the order of their events; each names its connection, as ``fsm_conn_id``.
    """
    from fsm_provider.api.forms import parse_reference_time

    events = {id(event): event for group in triggering_asset_events.values() for event in group}
    references: dict[tuple[Any, ...], FormReference] = {}
    for event in sorted(events.values(), key=attrgetter("timestamp")):
        match (event.extra or {}).get("payload"):
            case {
                "asset_name": str(name),
                "question": {"fsm_conn_id": str(conn_id)} as question,
                "forms": list(forms),
            }:
                _check_question(name, question)
            case _:
                continue  # another asset's
        for reference in forms:
            updated = parse_reference_time(reference["lastUpdatedOnDateTime"])
            version = updated or json.dumps(reference, sort_keys=True)
            references[conn_id, reference["id"], version] = {**reference, "fsm_conn_id": conn_id}
    return list(references.values())


def _check_question(asset_name: str, polled: dict[str, Any]) -> None:
    """Log an error if this process has read another definition than an event was polled with."""
    if others := [question for question in _defined.get(asset_name, ()) if question != polled]:
        logger.error(
            "The asset '%s' is defined here with %s, and the forms of this event were polled with %s. Unless "
            "the arguments were edited meanwhile, two DAGs define the asset differently: import it from one "
            "module, or give one of them another name",
            *(asset_name, others[-1], polled),
        )


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Validate a URI of the scheme ``fsm`` for Airflow.

    :raises ValueError: if it lacks the connection or the path.
    """
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError(f"{uri.geturl()}: should be fsm://<connection>/<what>, e.g. fsm://fsm_default/forms")
    return uri


def _seconds(name: str, value: timedelta | float, *, least: float, most: float = math.inf) -> float:
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise FsmInputError(f"{name}: should be a timedelta, or a number of seconds such as 60")
    if seconds < least:
        raise FsmInputError(f"{name}: {seconds:g} s is less than {least:g} s")
    if seconds > most:
        raise FsmInputError(f"{name}: {seconds:g} s is more than {most:g} s")
    return seconds


def _query_params(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return query parameters as JSON has them, as the events of the asset do."""
    from fsm_provider.api.validation import parse_params

    if given is None:
        return None
    try:
        params: dict[str, Any] = json.loads(json.dumps(parse_params("query_params", given), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise FsmInputError(
            f"query_params: {error}: give text, numbers, booleans or lists of these"
        ) from None
    return params


def _identifiers(name: str, value: int | str | list[int | str] | None) -> list[str]:
    """Return the identifiers of a filter in one spelling, each once, sorted; empty: there is no filter."""
    from fsm_provider.api.validation import parse_identifier, spelled

    if value is None:
        return []
    given = list(value) if isinstance(value, list | tuple) else [value]
    if not given:
        raise FsmInputError(f"{name}: is an empty list, which no form matches")
    return sorted({spelled(parse_identifier(name, one)) for one in given})


def _start(value: datetime | str) -> str:
    from fsm_provider.api.validation import parse_time

    if value in ("now", "beginning"):
        return str(value)
    try:
        return parse_time("start_from", value).astimezone(UTC).isoformat()
    except OverflowError:
        raise FsmInputError(f"start_from: {value} is no time of a calendar in UTC") from None
