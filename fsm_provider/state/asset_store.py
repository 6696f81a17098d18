"""What is stored with an asset: in Airflow's asset state store, before 3.3 in Variables."""

from __future__ import annotations

import json
from typing import Any, Protocol
from uuid import uuid4

from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.compat import airflow_asset_state_store, has_shared_streams
from fsm_provider.state.digest import digest_for
from fsm_provider.state.trigger_variables import delete_variable, read_variable, write_variable

PREFIX = "fsm_asset"
DIGITS = 32
OWNER = "owner"
"""Key of the owner that claimed an asset last."""


class AssetStore(Protocol):
    """JSON values that are stored with an asset: ``AssetStateStoreAccessor`` of Airflow 3.3 and newer."""

    async def aget(self, key: str) -> Any:
        """Return a value, None if there is none."""

    async def aset(self, key: str, value: Any) -> None:
        """Store a value other than None."""

    async def adelete(self, key: str) -> None:
        """Delete a value, if there is one."""


class AssetClaimedError(AirflowException):
    """Another triggerer has claimed the asset, and stores what it does."""


def asset_store_for(name: str) -> AssetStore:
    """Return the store of an asset, in a triggerer."""
    store: AssetStore = airflow_asset_state_store(name) if has_shared_streams() else VariableAssetStore(name)
    return store


class VariableAssetStore:
    """An asset's store in Variables, whose names begin with a digest of the asset's.

    :param asset_name: the asset's name, which may be any text.
    """

    def __init__(self, asset_name: str) -> None:
        self._prefix = f"{PREFIX}.{digest_for(asset_name, DIGITS)}"
        self._description = f"State of the asset '{asset_name}'. Do not edit"

    async def aget(self, key: str) -> Any:
        """Return a JSON value, None if there is none.

        :raises VariableUnreadableError: if that is unknown.
        :raises ValueError: if somebody has edited it.
        """
        text = await read_variable(name := self._name(key))
        try:
            return None if text is None else json.loads(text)
        except ValueError as error:
            raise ValueError(f"Variable {name} is not what was stored: {error}") from None

    async def aset(self, key: str, value: Any) -> None:
        """Store a JSON value."""
        await write_variable(self._name(key), json.dumps(value), self._description)

    async def adelete(self, key: str) -> None:
        """Delete a value, if there is one."""
        await delete_variable(self._name(key))

    def _name(self, key: str) -> str:
        # Airflow 3.0 finds no Variable with a slash in its name.
        return f"{self._prefix}.{key.replace('/', '.')}"


class ClaimedAssetStore(VariableAssetStore):
    """The store of an asset for the one triggerer that watches it: the last one to call :meth:`claim`.

    Airflow moves a trigger away from a triggerer that has been silent, which may wake up later.

    :raises AssetClaimedError: by each write, if another one has claimed the asset since.
    """

    def __init__(self, asset_name: str) -> None:
        super().__init__(asset_name)
        self._owner = uuid4().hex

    async def claim(self) -> None:
        """Become the owner."""
        await super().aset(OWNER, self._owner)

    async def is_owned(self) -> bool:
        """Return whether nobody has claimed the asset since."""
        return bool(await self.aget(OWNER) == self._owner)

    async def aset(self, key: str, value: Any) -> None:
        """Store a JSON value."""
        await self._check_owned()
        await super().aset(key, value)

    async def adelete(self, key: str) -> None:
        """Delete a value, if there is one."""
        await self._check_owned()
        await super().adelete(key)

    async def _check_owned(self) -> None:
        if not await self.is_owned():
            raise AssetClaimedError("another triggerer watches the asset meanwhile")
