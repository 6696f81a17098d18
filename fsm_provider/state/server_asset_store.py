"""What is stored with assets, for commands: they have Airflow's database, and no triggerer around them."""

from __future__ import annotations

import json
from typing import Any

from airflow.providers.common.compat.sdk import conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.compat import has_shared_streams
from fsm_provider.state.asset_store import PREFIX, VariableAssetStore
from fsm_provider.state.variables import read_variable_in_server

BACKENDS = (("state_store", "backend"), ("workers", "state_store_backend"))
"""Sections and settings of airflow.cfg that say where Airflow 3.3 stores the values of assets."""


class ServerAssetStore:
    """The store of an active asset, in Airflow's database.

    :param asset_name: the asset's name.
    :raises sqlalchemy.exc.SQLAlchemyError: by each method, if the database fails.
    """

    def __init__(self, asset_name: str) -> None:
        self._name = asset_name
        self._variables = VariableAssetStore(asset_name)

    async def aget(self, key: str) -> Any:
        """Return a JSON value, None if there is none."""
        if has_shared_streams():
            return _values(key).get(self._name)
        text = read_variable_in_server(self._variables.variable(key))
        return None if text is None else json.loads(text)

    def set(self, key: str, value: Any) -> None:
        """Store a JSON value."""
        text = json.dumps(value)
        if not has_shared_streams():
            from airflow.models import Variable

            Variable.set(self._variables.variable(key), text, description=self._variables.description)
            return
        from airflow.models.asset import AssetModel
        from airflow.state import AssetScope, get_state_backend
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            mine = select(AssetModel.id).where(AssetModel.name == self._name, AssetModel.active.has())
            scope = AssetScope(asset_id=session.scalars(mine).one())
            get_state_backend().set(scope, key, text, session=session)


def values_of_assets(key: str) -> list[Any]:
    """Return the values that are stored under a key, one for each asset that has one.

    :raises FsmInputError: if airflow.cfg says that they are not in Airflow's database.
    :raises sqlalchemy.exc.SQLAlchemyError: if the database fails.
    """
    if has_shared_streams():
        for section, name in BACKENDS:
            backend = conf.get(section, name, fallback="")
            if backend and not backend.endswith(".MetastoreBackend"):
                raise FsmInputError(
                    f"[{section}] {name} of airflow.cfg: what {backend} stores cannot be read here"
                )
        return list(_values(key).values())
    from airflow.models import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    names = Variable.key.like(f"{PREFIX}.%.{key.replace('/', '.')}")
    with create_session() as session:
        return [json.loads(one.val) for one in session.scalars(select(Variable).where(names)) if one.val]


def _values(key: str) -> dict[str, Any]:
    """Return what is stored under a key in Airflow 3.3, by the names of active assets."""
    from airflow.models.asset import AssetModel
    from airflow.models.asset_state_store import AssetStateStoreModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = (
        select(AssetModel.name, AssetStateStoreModel.value)
        .join(AssetModel, AssetModel.id == AssetStateStoreModel.asset_id)
        .where(AssetModel.active.has(), AssetStateStoreModel.key == key)
    )
    with create_session() as session:
        return {name: json.loads(text) for name, text in session.execute(query)}
