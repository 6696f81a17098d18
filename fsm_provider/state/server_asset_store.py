"""What is stored with assets, for commands: they have Airflow's database, and no triggerer around them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from sqlalchemy import select, update

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.asset_store import VariableAssetStore
from fsm_provider.state.variables import stored_value

if TYPE_CHECKING:
    from airflow.models.asset import AssetModel
    from sqlalchemy.orm import Session


class ServerAssetStore:
    """The store of an active asset.

    :param asset: the asset.
    :param session: the session with Airflow's database that it is from.
    :raises FsmInputError: if the values are where only workers read them.
    :raises sqlalchemy.exc.SQLAlchemyError: by each method, if the database fails.
    """

    def __init__(self, asset: AssetModel, session: Session) -> None:
        if AIRFLOW_V_3_3_PLUS and (backend := conf.get("workers", "state_store_backend", fallback="")):
            raise FsmInputError(f"only workers read what is in {backend}, state_store_backend of airflow.cfg")
        self._asset = asset
        self._session = session
        self._variables = VariableAssetStore(asset.name)

    def has_watcher(self) -> bool:
        """Return whether a triggerer that is alive runs the trigger that emits the asset's forms."""
        return any(
            one.triggerer_job is not None and one.triggerer_job.is_alive()
            for one in self._asset.triggers
            if one.classpath.endswith(".FsmFormEventTrigger")
        )

    async def aget(self, key: str) -> Any:
        """Return a JSON value, None if there is none.

        :raises FsmInputError: if somebody has edited it.
        :raises VariableUnreadableError: if it cannot be decrypted.
        """
        if AIRFLOW_V_3_3_PLUS:
            backend, scope = self._backend()
            text = backend.get(scope, key, session=self._session)
        else:
            text = stored_value(self._session, self._variables.variable(key))
        return self._variables.parse(key, text)

    def set(self, key: str, value: Any) -> None:
        """Store a JSON value."""
        text = json.dumps(value)
        if AIRFLOW_V_3_3_PLUS:
            backend, scope = self._backend()
            backend.set(scope, key, text, session=self._session)
        else:
            from airflow.models import Variable

            name, description = self._variables.variable(key), self._variables.description
            Variable.set(name, text, description, session=self._session)

    def _backend(self) -> tuple[Any, Any]:
        """Return where Airflow 3.3 stores values, and what is the asset's there."""
        from airflow.state import AssetScope, get_state_backend

        return get_state_backend(), AssetScope(asset_id=self._asset.id)


def active_assets(name: str | None, session: Session) -> list[AssetModel]:
    """Return the active assets whose URIs have the scheme ``fsm``, and with a name if given."""
    from airflow.models.asset import AssetModel

    query = select(AssetModel).where(AssetModel.active.has(), AssetModel.uri.startswith("fsm://"))
    if name is not None:
        query = query.where(AssetModel.name == name)
    return list(session.scalars(query.order_by(AssetModel.name)))


def lock_assets(name: str, session: Session) -> None:
    """Keep others that call this from the assets of a name until the session ends.

    Call it first: what the session has read before may be old.
    """
    from airflow.models.asset import AssetModel

    # SELECT ... FOR UPDATE would lock nothing in SQLite.
    unchanged = update(AssetModel).where(AssetModel.name == name).values(updated_at=AssetModel.updated_at)
    session.execute(unchanged.execution_options(synchronize_session=False))
