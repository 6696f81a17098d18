"""What people ask of an asset of completed forms: how far it is, and that it begins anew.

The command ``watermark``, the page and ``doctor`` call it. Airflow's database has the assets. What
their watchers store is there, too, since Airflow 3.3; before, it is in the SQL database that the
connection names.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from airflow.providers.common.compat.sdk import conf
from airflow.providers.common.compat.version_compat import (
    AIRFLOW_V_3_0_PLUS,
    AIRFLOW_V_3_3_PLUS,
)
from airflow.utils.session import create_session
from sqlalchemy import and_, or_, select, union

from fsm_provider.api.errors import FsmInputError, FsmRefusedError
from fsm_provider.api.validation import validate_with
from fsm_provider.hooks.connection import read_connection_outside_of_tasks
from fsm_provider.polling.asset_status import AssetStatus, WatcherStatus
from fsm_provider.polling.asset_stores import SqlAssetStore, read_all
from fsm_provider.polling.formats import format_of
from fsm_provider.polling.tracker import WATERMARK
from fsm_provider.polling.watcher import CONFIGURATION, OWNER, RESET
from fsm_provider.polling.watcher_config import FORMAT, STORED_BY_NEWER
from fsm_provider.user_errors import text_of

URI_PATTERN = "fsm://%/forms/%"
AssetKey = tuple[str, str]
"""The name and the URI of an asset."""
LOST_FOR = timedelta(days=7)
"""How long a DAG counts as lost once Airflow finds it in no file any more."""
StoredValues = Mapping[tuple[int, str], Any]
"""What is stored with assets, by the asset's id and the key."""


def watched_assets(name: str | None = None, fsm_conn_id: str | None = None) -> list[AssetStatus]:
    """Return the assets of completed forms, in the order of their names.

    :param name: of the assets; None: of any. So with ``fsm_conn_id``.

    If reading fails for one connection, its assets have ``read_error``; others are read.
    """
    assets = [
        asset
        for asset in _assets_in_dags()
        if name in (None, asset.name) and fsm_conn_id in (None, asset.fsm_conn_id)
    ]
    by_connection = defaultdict(list)
    for asset in assets:
        by_connection[asset.fsm_conn_id].append(asset)
    for assets_of_one in by_connection.values():
        _add_what_is_stored(assets_of_one)
    shared = [asset for asset in assets if len(asset.found) > 1]
    if shared:
        _compare_definitions(shared)
    return assets


def conn_ids_of_assets() -> set[str]:
    """Return the connections that assets of completed forms name, whether or not they exist."""
    return {asset.fsm_conn_id for asset in _assets_in_dags()}


def begin_anew(assets: Collection[AssetStatus], since: datetime) -> None:
    """Have the watchers of assets emit the forms that were updated since a time.

    :raises FsmRefusedError: if Airflow would drop the request with one of the assets, or its
        watcher refuses what is stored: none is set.
    """
    for asset in assets:
        if asset.is_gone:
            raise FsmRefusedError(
                f"no file has a DAG that '{asset.name}' starts, and Airflow keeps nothing for an "
                "asset without a DAG: mend the file first"
            )
        if asset.refusal:
            raise FsmRefusedError(f"'{asset.name}': {asset.refusal}")
    keys = [asset.read_prefix() + RESET for asset in assets]
    value = {"id": uuid4().hex, "time": since.timestamp()}
    for asset, key in zip(assets, keys, strict=True):
        if not AIRFLOW_V_3_3_PLUS:
            asyncio.run(sql_store(asset, create=True).aset(key, value))
            continue
        from airflow.state import AssetScope, get_state_backend

        get_state_backend().set(AssetScope(asset_id=asset.asset_id), key, json.dumps(value))


def read_stored(assets: Collection[AssetStatus], keys: Collection[str]) -> StoredValues:
    """Return what is stored with assets of one connection, by one query.

    :raises FsmNoLedgerError: if there is no database for it yet: none is made.
    """
    if AIRFLOW_V_3_3_PLUS:
        return _read_from_airflow(assets, keys)
    wanted = {}
    for asset in assets:
        store = sql_store(asset, create=False)
        for key in keys:
            wanted[asset.asset_id, key] = (store, key)
    values = asyncio.run(read_all(list(wanted.values())))
    return dict(zip(wanted, values, strict=True))


def sql_store(asset: AssetStatus, *, create: bool) -> SqlAssetStore:
    """Return the store of an asset, before Airflow 3.3.

    :param create: make the tables if there are none.
    """

    async def read_connection(conn_id: str) -> Any:
        # In a thread: reading ends the thread's session with Airflow's database.
        return await asyncio.to_thread(read_connection_outside_of_tasks, conn_id)

    return SqlAssetStore(asset.name, asset.fsm_conn_id, read_connection, create=create)


def _assets_in_dags() -> list[AssetStatus]:
    """Return the assets of completed forms, in the order of their names, as Airflow has them."""
    if not AIRFLOW_V_3_0_PLUS:
        return []
    assets = _assets_of_found_dags()
    _add_lost_dags(assets)
    return sorted(assets.values(), key=lambda asset: asset.name)


def _assets_of_found_dags() -> dict[AssetKey, AssetStatus]:
    """Return the assets that start a DAG in a file, and active ones that start none at all."""
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.models.asset import DagScheduleAssetNameReference as ByName
    from airflow.models.asset import DagScheduleAssetReference as Scheduled
    from airflow.models.asset import DagScheduleAssetUriReference as ByUri
    from airflow.models.dag import DagModel

    is_active = AssetModel.active.has()
    used = union(
        select(Scheduled.asset_id, Scheduled.dag_id),
        select(AssetModel.id, ByName.dag_id).where(
            AssetModel.name == ByName.name,
            or_(is_active, ByName.name.not_in(select(AssetActive.name))),
        ),
        select(AssetModel.id, ByUri.dag_id).where(
            AssetModel.uri == ByUri.uri,
            or_(is_active, ByUri.uri.not_in(select(AssetActive.uri))),
        ),
    ).subquery()
    is_found = and_(DagModel.dag_id == used.c.dag_id, ~DagModel.is_stale)
    query = (
        select(
            AssetModel.id,
            AssetModel.name,
            AssetModel.uri,
            is_active,
            DagModel.dag_id,
            DagModel.is_paused,
        )
        .outerjoin(used, used.c.asset_id == AssetModel.id)
        .outerjoin(DagModel, is_found)
        .where(
            AssetModel.uri.like(URI_PATTERN),
            or_(DagModel.dag_id.is_not(None), and_(is_active, used.c.dag_id.is_(None))),
        )
    )
    assets: dict[AssetKey, AssetStatus] = {}
    with create_session() as session:
        # A row for each DAG that an asset starts; if it starts none, one without a DAG.
        for asset_id, name, uri, is_active_now, dag_id, is_paused in session.execute(query):
            asset = assets.setdefault((name, uri), _new_status(asset_id, name, uri))
            asset.is_active = bool(is_active_now)
            if dag_id is not None:
                asset.dag_ids.add(dag_id)
            if is_paused:
                asset.paused.add(dag_id)
    return assets


def _new_status(asset_id: int, name: str, uri: str) -> AssetStatus:
    return AssetStatus(asset_id=asset_id, name=name, fsm_conn_id=unquote(urlsplit(uri).netloc))


def _add_lost_dags(assets: dict[AssetKey, AssetStatus]) -> None:
    """Add DAGs that Airflow does not find in a file, and the assets that it drops therefore.

    Where the file cannot be imported, they count as long as that lasts. Without such an error (the
    file was removed or renamed, or parsing ends the process), they count for ``LOST_FOR``, unless
    the asset starts a DAG in a file.
    """
    from airflow.models.asset import AssetModel
    from airflow.models.dag import DagModel
    from airflow.models.errors import ParseImportError as Failed

    # Airflow 3.0 has the whole path of a file that cannot be imported.
    is_of_file = and_(
        DagModel.bundle_name == Failed.bundle_name,
        Failed.filename.in_([DagModel.relative_fileloc, DagModel.fileloc]),
    )
    oldest = datetime.now(UTC) - LOST_FOR
    is_lately_lost = and_(DagModel.is_stale, DagModel.last_parsed_time > oldest)
    query = (
        select(DagModel.dag_id, Failed.id)
        .outerjoin(Failed, is_of_file)
        .where(or_(Failed.id.is_not(None), is_lately_lost))
    )
    with create_session() as session:
        rows = session.execute(query).all()
        if not rows:
            return
        # Also those that nothing defines any more.
        known = session.execute(
            select(AssetModel.id, AssetModel.name, AssetModel.uri).where(
                AssetModel.uri.like(URI_PATTERN)
            )
        ).all()
    error_by_dag = {row.dag_id: row.id for row in rows}
    ids = {(row.name, row.uri): row.id for row in known}
    for dag in _serialized_dags(error_by_dag):
        for key in _assets_used(dag.data, assets, ids):
            asset = assets.setdefault(key, _new_status(ids[key], *key))
            if error_by_dag[dag.dag_id] is not None or not asset.found:
                asset.dag_ids.add(dag.dag_id)
                asset.lost.add(dag.dag_id)


def _assets_used(
    serialized: Any, used: Collection[AssetKey], known: Collection[AssetKey]
) -> Iterator[AssetKey]:
    """Yield the assets of completed forms on which a serialized DAG is scheduled.

    A reference stands for those of ``used`` that have its name or URI; if none has, of ``known``.
    """
    for definition in _definitions_in(serialized):
        key: tuple[Any, Any] = (definition.get("name"), definition.get("uri"))
        if definition["__type"] == "asset_ref":
            yield from _named_by(key, used) or _named_by(key, known)
        elif key in known:
            yield key


def _named_by(reference: AssetKey, keys: Collection[AssetKey]) -> list[AssetKey]:
    name, uri = reference
    return [key for key in keys if name == key[0] or uri == key[1]]


def _add_what_is_stored(assets: Sequence[AssetStatus]) -> None:
    """Fill in what the watchers of assets of one connection have stored."""
    try:
        progress_key = assets[0].read_prefix() + WATERMARK
        values = read_stored(assets, (OWNER, CONFIGURATION, progress_key))
    except Exception as error:
        if text_of(error) is None:
            raise
        for asset in assets:
            asset.read_error = error
        return
    for asset in assets:
        owner = values.get((asset.asset_id, OWNER))
        asset.was_watched = owner is not None
        status = owner[-1] if isinstance(owner, list) and owner else None
        config = values.get((asset.asset_id, CONFIGURATION))
        progress = values.get((asset.asset_id, progress_key))
        for part in (config, progress):
            if isinstance(part, dict) and format_of(part) > FORMAT:
                asset.refusal = STORED_BY_NEWER.format(format_of(part))
        try:
            asset.stored = _parse_status(config, status, progress)
        except FsmInputError as error:
            asset.read_error = error


def _parse_status(*parts: Any) -> WatcherStatus:
    """Return what is in the values that a watcher stores; a task can write them, too."""
    fields: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, dict):
            fields.update(part)
    return validate_with(WatcherStatus.model_validate, fields)


def running_jobs(*job_types: str) -> list[Any]:
    """Return Airflow's jobs of some types that run, the newest heartbeat first.

    :param job_types: ``TriggererJob``, ``SchedulerJob``, ``DagProcessorJob``.
    """
    from airflow.jobs.job import Job

    query = select(Job).where(Job.job_type.in_(job_types), Job.state == "running")
    with create_session() as session:
        jobs = session.scalars(query.order_by(Job.latest_heartbeat.desc())).all()
        session.expunge_all()
    return [job for job in jobs if job.is_alive()]


def _compare_definitions(assets: Collection[AssetStatus]) -> None:
    """Set ``is_disputed`` where the serialized DAGs of an asset define it differently."""
    dags = _serialized_dags(set().union(*(asset.found for asset in assets)))
    for asset in assets:
        found = asset.found
        watchers = set[str]()
        for dag in dags:
            if dag.dag_id in found:
                watchers.update(_watchers_of(asset.name, dag.data))
        asset.is_disputed = len(watchers) > 1


def _watchers_of(name: str, serialized: Any) -> Iterator[str]:
    for definition in _definitions_in(serialized):
        if definition["__type"] == "asset" and definition["name"] == name:
            yield json.dumps(definition.get("watchers"), sort_keys=True)


def _serialized_dags(dag_ids: Collection[str]) -> list[Any]:
    from airflow.models.serialized_dag import SerializedDagModel

    return list(SerializedDagModel.get_latest_serialized_dags(dag_ids=sorted(dag_ids)))


def _definitions_in(serialized: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the assets and references in a DAG's schedule; inlets and outlets look otherwise."""
    match serialized:
        case {"__type": "asset", "name": str()} | {"__type": "asset_ref"}:
            yield serialized
        case dict():
            yield from _definitions_in(list(serialized.values()))
        case list():
            for value in serialized:
                yield from _definitions_in(value)


def _read_from_airflow(assets: Collection[AssetStatus], keys: Collection[str]) -> StoredValues:
    """Return what is stored in the database of Airflow 3.3."""
    from airflow.models.asset_state_store import AssetStateStoreModel as Stored

    backend = conf.get("workers", "state_store_backend", fallback="")
    if backend:
        raise FsmInputError(
            f"only workers and triggerers read what is in {backend}, state_store_backend of "
            "airflow.cfg"
        )
    ids = {asset.asset_id for asset in assets}
    query = select(Stored.asset_id, Stored.key, Stored.value)
    query = query.where(Stored.asset_id.in_(ids), Stored.key.in_(keys))
    with create_session() as session:
        rows = session.execute(query).all()
    return {(asset_id, key): _parse_json(text) for asset_id, key, text in rows}


def _parse_json(text: str) -> Any:
    """Return the value of a JSON text, or the text if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
