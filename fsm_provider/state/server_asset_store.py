"""Assets for commands, which have Airflow's database, and no triggerer around them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf
from sqlalchemy import select

from fsm_provider.api.errors import FsmInputError

if TYPE_CHECKING:
    from airflow.models.asset import AssetModel
    from sqlalchemy.orm import Session


class ServerAssetStore:
    """What Airflow 3.3 and newer store with an active asset.

    :param asset: the asset.
    :param session: the session with Airflow's database that it is from.
    :raises FsmInputError: if the values are where only workers read them; by ``aget``, if one was edited.
    :raises sqlalchemy.exc.SQLAlchemyError: by each method, if the database fails.
    """

    def __init__(self, asset: AssetModel, session: Session) -> None:
        from airflow.state import AssetScope, get_state_backend

        if backend := conf.get("workers", "state_store_backend", fallback=""):
            raise FsmInputError(f"only workers read what is in {backend}, state_store_backend of airflow.cfg")
        self._backend: Any = get_state_backend()
        self._scope = AssetScope(asset_id=asset.id)
        self._session = session

    async def aget(self, key: str) -> Any:
        text = self._backend.get(self._scope, key, session=self._session)
        try:
            return None if text is None else json.loads(text)
        except ValueError as error:
            raise FsmInputError(f"'{key}' of the asset is not what was stored: {error}") from None

    async def aset(self, key: str, value: Any) -> None:
        self._backend.set(self._scope, key, json.dumps(value), session=self._session)


def has_watcher(asset: AssetModel) -> bool:
    """Return whether a triggerer that is alive runs the trigger that emits the asset's forms."""
    return any(
        one.triggerer_job is not None and one.triggerer_job.is_alive()
        for one in asset.triggers
        if one.classpath.endswith(".FsmFormEventTrigger")
    )


def active_assets(name: str | None, session: Session) -> list[AssetModel]:
    from airflow.models.asset import AssetModel

    query = select(AssetModel).where(AssetModel.active.has(), AssetModel.uri.like("fsm://%/forms/%"))
    if name is not None:
        query = query.where(AssetModel.name == name)
    return list(session.scalars(query.order_by(AssetModel.name)))
