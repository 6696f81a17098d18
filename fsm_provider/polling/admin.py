"""The assets of completed forms, for people: how far each is, and to begin anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from airflow.providers.common.compat.sdk import conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from sqlalchemy import select

from fsm_provider.api.errors import FsmInputError
from fsm_provider.hooks.connection import read_connection_outside_of_tasks, settings_from
from fsm_provider.polling.asset_stores import SqlAssetStore, read_all
from fsm_provider.polling.tracker import WATERMARK
from fsm_provider.polling.watcher import OWNER, RESET, prefix_for


@dataclass
class AssetStatus:
    """An asset of completed forms.

    :ivar dag_ids: the DAGs that it starts.
    :ivar stored: by its watcher: times, forms by day, and how it fares, some 20 s ago at most.
    """

    asset_id: int
    name: str
    fsm_conn_id: str
    dag_ids: set[str] = field(default_factory=set)
    prefix: str = ""
    stored: dict[str, Any] = field(default_factory=dict)

    def begin_anew(self, since: datetime) -> None:
        key, value = self.prefix + RESET, {"id": uuid4().hex, "time": since.timestamp()}
        if AIRFLOW_V_3_3_PLUS:
            from airflow.state import AssetScope, get_state_backend

            get_state_backend().set(AssetScope(asset_id=self.asset_id), key, json.dumps(value))
        else:
            asyncio.run(self.sql_store().aset(key, value))

    def sql_store(self) -> SqlAssetStore:
        # In a thread: it ends the thread's session with Airflow's database.
        read = asyncio.to_thread
        of = read_connection_outside_of_tasks
        return SqlAssetStore(self.name, self.fsm_conn_id, lambda conn_id: read(of, conn_id))


def watched_assets(name: str | None = None, fsm_conn_id: str | None = None) -> list[AssetStatus]:
    """Return the assets of completed forms in DAGs that Airflow has read, by name."""
    from airflow.models.asset import AssetModel
    from airflow.models.asset import DagScheduleAssetReference as Scheduled
    from airflow.utils.session import create_session

    query = select(AssetModel.id, AssetModel.name, AssetModel.uri, Scheduled.dag_id).order_by(
        AssetModel.name
    )
    query = query.outerjoin(Scheduled, Scheduled.asset_id == AssetModel.id)
    is_ours = AssetModel.active.has(), AssetModel.uri.like("fsm://%/forms/%")
    found: dict[int, AssetStatus] = {}
    with create_session() as session:
        for asset_id, of, uri, dag_id in session.execute(query.where(*is_ours)):
            one = found.setdefault(
                asset_id, AssetStatus(asset_id, of, unquote(urlsplit(uri).netloc))
            )
            one.dag_ids |= {dag_id} - {None}
    assets = [one for one in found.values() if name in (None, one.name)]
    assets = [one for one in assets if fsm_conn_id in (None, one.fsm_conn_id)]
    for conn_id in {one.fsm_conn_id for one in assets}:
        of_conn = [one for one in assets if one.fsm_conn_id == conn_id]
        prefix = prefix_for(settings_from(read_connection_outside_of_tasks(conn_id)).service)
        stored = read([(one, key) for one in of_conn for key in (OWNER, prefix + WATERMARK)])
        for one, owner, progress in zip(of_conn, stored[::2], stored[1::2], strict=True):
            one.prefix, one.stored = prefix, (owner or [{}])[-1] | (progress or {})
    return assets


def read(wanted: Sequence[tuple[AssetStatus, str]]) -> list[Any]:
    """Return what is stored with assets of one connection, by one query."""
    if not AIRFLOW_V_3_3_PLUS:
        return asyncio.run(read_all([(one.sql_store(), key) for one, key in wanted]))
    from airflow.models.asset_state_store import AssetStateStoreModel as Stored
    from airflow.utils.session import create_session

    if backend := conf.get("workers", "state_store_backend", fallback=""):
        raise FsmInputError(
            f"only workers read what is in {backend}, state_store_backend of airflow.cfg"
        )
    ids, keys = {one.asset_id for one, _ in wanted}, {key for _, key in wanted}
    query = select(Stored.asset_id, Stored.key, Stored.value)
    with create_session() as session:
        found = session.execute(query.where(Stored.asset_id.in_(ids), Stored.key.in_(keys)))
        values = {(asset_id, key): json.loads(text) for asset_id, key, text in found}
    return [values.get((one.asset_id, key)) for one, key in wanted]
