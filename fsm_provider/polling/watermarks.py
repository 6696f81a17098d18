"""What commands and the page read of the watchers of assets, and how they set one back."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from airflow.providers.common.compat.sdk import conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from sqlalchemy import select

from fsm_provider.api.errors import FsmInputError
from fsm_provider.compat import read_connection_outside_of_tasks
from fsm_provider.hooks.fsm import settings_from
from fsm_provider.polling.asset_stores import SqlAssetStore, read_all
from fsm_provider.polling.polls import time_of
from fsm_provider.polling.tracker import WATERMARK
from fsm_provider.polling.watcher import OWNER, RESET, prefix_for


@dataclass
class Watched:
    """An asset of completed forms.

    :ivar dag_ids: the DAGs that it starts.
    :ivar progress: what its watcher has stored: times, and forms by day.
    :ivar status: of its watcher, some 20 s ago at most: ``polled_at``, ``backlog``, ``error``,
        ``failing_since``.
    """

    asset_id: int
    name: str
    fsm_conn_id: str
    prefix: str = ""
    dag_ids: set[str] = field(default_factory=set)
    progress: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)

    def time(self, name: str) -> datetime | None:
        return time_of(self.progress.get(name, self.status.get(name)))

    def forms_on(self, days: Iterable[str]) -> dict[str, int]:
        return {day: self.progress.get("days", {}).get(day, 0) for day in days}

    def begin_anew(self, since: datetime) -> None:
        """Have the watcher emit the forms that were updated since a time."""
        self.store(self.prefix + RESET, {"id": uuid4().hex, "time": since.timestamp()})

    def store(self, key: str, value: Any) -> None:
        if not AIRFLOW_V_3_3_PLUS:
            asyncio.run(_sql_store(self).aset(key, value))
            return
        from airflow.state import AssetScope, get_state_backend

        _refuse_other_backend()
        get_state_backend().set(AssetScope(asset_id=self.asset_id), key, json.dumps(value))


def watched(name: str | None = None, fsm_conn_id: str | None = None) -> list[Watched]:
    """Return the assets of completed forms in DAGs that Airflow has read, by name."""
    from airflow.models.asset import AssetModel, DagScheduleAssetReference
    from airflow.utils.session import create_session

    query = select(AssetModel.id, AssetModel.name, AssetModel.uri, DagScheduleAssetReference.dag_id)
    query = query.join(AssetModel.scheduled_dags, isouter=True).where(
        AssetModel.active.has(), AssetModel.uri.like("fsm://%/forms/%")
    )
    if name is not None:
        query = query.where(AssetModel.name == name)
    with create_session() as session:
        found = session.execute(query).all()
    of_conn: dict[str, dict[int, Watched]] = defaultdict(dict)
    for asset_id, asset_name, uri, dag_id in found:
        conn_id = unquote(urlsplit(uri).netloc)
        one = of_conn[conn_id].setdefault(asset_id, Watched(asset_id, asset_name, conn_id))
        one.dag_ids |= {dag_id} - {None}
    every = []
    for conn_id in of_conn if fsm_conn_id is None else of_conn.keys() & {fsm_conn_id}:
        some = list(of_conn[conn_id].values())
        prefix = prefix_for(settings_from(read_connection_outside_of_tasks(conn_id)).service)
        stored = read([(one, key) for one in some for key in (prefix + WATERMARK, OWNER)])
        for one, progress, owner in zip(some, stored[::2], stored[1::2], strict=True):
            one.prefix, one.progress, one.status = prefix, progress or {}, dict(*(owner or ())[2:])
        every += some
    return sorted(every, key=lambda one: one.name)


def read(wanted: Sequence[tuple[Watched, str]]) -> list[Any]:
    """Return what is stored with assets of one connection, by one query."""
    if not AIRFLOW_V_3_3_PLUS:
        return asyncio.run(read_all([(_sql_store(one), key) for one, key in wanted]))
    from airflow.models.asset_state_store import AssetStateStoreModel as Stored
    from airflow.utils.session import create_session

    _refuse_other_backend()
    ids, keys = {one.asset_id for one, _ in wanted}, {key for _, key in wanted}
    query = select(Stored.asset_id, Stored.key, Stored.value)
    with create_session() as session:
        found = session.execute(query.where(Stored.asset_id.in_(ids), Stored.key.in_(keys)))
        values = {(asset_id, key): json.loads(text) for asset_id, key, text in found}
    return [values.get((one.asset_id, key)) for one, key in wanted]


def _refuse_other_backend() -> None:
    if backend := conf.get("workers", "state_store_backend", fallback=""):
        raise FsmInputError(f"only workers read what is in {backend}, state_store_backend of airflow.cfg")


def _sql_store(one: Watched) -> SqlAssetStore:
    return SqlAssetStore(
        one.name,
        one.fsm_conn_id,
        # In a thread: it ends the thread's session with Airflow's database.
        lambda conn_id: asyncio.to_thread(read_connection_outside_of_tasks, conn_id),
    )
