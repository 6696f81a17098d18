"""Completed forms as an asset: DAGs that start when an engineer has completed a form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from fsm_provider.api.errors import FsmInputError

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from fsm_provider.api.forms import Reference


def completed_forms(
    name: str,
    *,
    fsm_conn_id: str = "fsm_default",
    poll_interval: float = 60,
    start_from: datetime | str = "now",
    look_back: timedelta = timedelta(hours=1),
    reconcile_every: timedelta = timedelta(hours=1),
    reconcile_back: timedelta = timedelta(days=7),
    property_id: int | str | None = None,
    job_id: int | str | None = None,
    form_category: str | None = None,
    form_name_id: int | str | None = None,
    created_by_type: str | None = None,
    created_by_id: int | str | None = None,
    form_names: str | list[str] | None = None,
    query_params: dict[str, Any] | None = None,
) -> Asset:
    """Make an asset that has an event whenever forms were completed or changed (4.3). Needs Airflow 3.3.

    A DAG with ``schedule=completed_forms("gas_safety")`` starts with the new forms of a sweep, which its
    tasks get by :func:`forms_from_events`. An event holds at most 100 references; a sweep that finds more
    has an event for each hundred, 15 s apart. Every form is told of, also where a triggerer dies: a second
    time only where it dies between an event and the note that it is stored. The watermark is kept with
    the asset: it is gone once no DAG names the asset, and begins anew with another connection or filter.

    :param name: the asset's name; its URI is ``fsm://<connection>/forms/<name>``.
    :param fsm_conn_id: the Airflow connection.
    :param poll_interval: seconds between two sweeps, at least 1.
    :param start_from: what the first sweep of all tells of: ``now``, nothing; ``beginning``, every form
        there is; a time, what was updated at or after it, in UTC where it has no zone. A constant: with a
        time that is another at each parsing, so is the watcher.
    :param look_back: what each sweep asks for again from before the one before it, as phones sync late.
    :param reconcile_every: how often a sweep goes back further,
    :param reconcile_back: and how far, for phones that sync days late.
    :param property_id: forms of one property.
    :param job_id: forms of one job.
    :param form_category: category of the form; only the service can check it.
    :param form_name_id: identifier of the form's name; only the service can check it.
    :param created_by_type: type of the creator.
    :param created_by_id: identifier of the creator.
    :param form_names: forms of these names only.
    :param query_params: query parameters that the specification does not show.
    :raises FsmInputError: naming the argument that cannot be used.
    :raises AirflowOptionalProviderFeatureException: before Airflow 3.3, saying what to do instead.
    """
    from fsm_provider.api.forms import FormFilter
    from fsm_provider.api.inputs import read_names
    from fsm_provider.compat import has_shared_streams
    from fsm_provider.lineage import records_of
    from fsm_provider.triggers.forms import NEEDS_3_3, FsmFormEventTrigger

    if not has_shared_streams():
        raise AirflowOptionalProviderFeatureException(f"completed_forms: {NEEDS_3_3}")
    from airflow.sdk import Asset, AssetWatcher

    wanted = FormFilter(
        property_id=property_id,
        job_id=job_id,
        form_category=form_category,
        form_name_id=form_name_id,
        created_by_type=created_by_type,
        created_by_id=created_by_id,
    )
    trigger = FsmFormEventTrigger(
        asset_name=name,
        fsm_conn_id=fsm_conn_id,
        filters=wanted.as_dict(),
        form_names=list(read_names("form_names", form_names or ())),
        query_params=query_params,
        poll_interval=_seconds("poll_interval", poll_interval, least=1),
        start_from=_start(start_from),
        look_back=_seconds("look_back", look_back, least=0),
        reconcile_every=_seconds("reconcile_every", reconcile_every, least=1),
        reconcile_back=_seconds("reconcile_back", reconcile_back, least=0),
    )
    return Asset(
        name=name,
        uri=f"{records_of(fsm_conn_id, 'forms')}/{quote(name, safe='')}",
        watchers=[AssetWatcher(name=name, trigger=trigger)],
    )


def forms_from_events(triggering_asset_events: Mapping[Any, Iterable[Any]]) -> list[Reference]:
    """Give the forms that started a run: those of all its events, each version of a form once.

    A run takes the events of several sweeps where they came while it could not start, and a form may be
    in two events where a triggerer died. Events of other assets are passed over.

    :param triggering_asset_events: ``context["triggering_asset_events"]``.
    :return: references, in the order of their events.
    """
    events = {id(event): event for of_one in triggering_asset_events.values() for event in of_one}
    references: dict[tuple[Any, Any], Reference] = {}
    for event in sorted(events.values(), key=_time_of):
        payload = (event.extra or {}).get("payload")
        forms = payload.get("forms") if isinstance(payload, dict) else None
        for reference in forms if isinstance(forms, list) else []:
            references.setdefault((reference["id"], reference["lastUpdatedOnDateTime"]), reference)
    return list(references.values())


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check a URI of the scheme ``fsm`` for Airflow.

    :raises ValueError: where it does not name a connection and something of it.
    """
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError(f"{uri.geturl()}: should be fsm://<connection>/<what>, e.g. fsm://fsm_default/forms")
    return uri


def _seconds(name: str, value: timedelta | float, *, least: float) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not seconds >= least:
        raise FsmInputError(f"{name}: {seconds:g} s is less than {least:g} s")
    return seconds


def _start(value: datetime | str) -> str:
    from fsm_provider.api.inputs import read_time

    if value in ("now", "beginning"):
        return str(value)
    return read_time("start_from", value).astimezone(UTC).isoformat()


def _time_of(event: Any) -> datetime:
    moment: datetime = event.timestamp
    return moment
