"""What is stored with an asset: in Airflow's asset state store, before 3.3 in Variables."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol
from uuid import uuid4

from airflow.providers.common.compat.sdk import AirflowException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.digest import digest_for
from fsm_provider.state.trigger_variables import delete_variable, read_variable, write_variable

PREFIX = "fsm_asset"
DIGITS = 32
OWNER = "owner"
"""Key of the process that owns the asset, with a value that changes at each renewal."""
RENEW_INTERVAL = 15.0
"""Seconds between two renewals."""
MAX_SILENCE = 90.0
"""Seconds without a renewal after which the owner is taken for dead; between two events it renews nothing."""
PROCESS = uuid4().hex
_claimed: set[tuple[str, str]] = set()
"""The processes and the names of assets that they have owned."""


class AssetReader(Protocol):
    """Reads the JSON values that are stored with an asset."""

    async def aget(self, key: str) -> Any:
        """Return a value, None if there is none."""


class AssetStore(AssetReader, Protocol):
    """JSON values that are stored with an asset: ``AssetStateStoreAccessor`` of Airflow 3.3 and newer."""

    async def aset(self, key: str, value: Any) -> None:
        """Store a value other than None."""

    async def adelete(self, key: str) -> None:
        """Delete a value, if there is one."""


class AssetClaimedError(AirflowException):
    """Another process has claimed the asset, and stores what it does."""


def asset_store_for(name: str) -> AssetStore:
    """Return the store of an asset, in a triggerer."""
    if not AIRFLOW_V_3_3_PLUS:
        return VariableAssetStore(name)
    from airflow.sdk.execution_time.context import AssetStateStoreAccessor

    store: AssetStore = AssetStateStoreAccessor(name=name)
    return store


class VariableAssetStore:
    """An asset's store in Variables, whose names begin with a digest of the asset's.

    :param asset_name: the asset's name, which may be any text.
    """

    def __init__(self, asset_name: str) -> None:
        self._prefix = f"{PREFIX}.{digest_for(asset_name, DIGITS)}"
        self.description = f"State of the asset '{asset_name}'. Do not edit"

    async def aget(self, key: str) -> Any:
        """Return a JSON value, None if there is none.

        :raises VariableUnreadableError: if that is unknown.
        :raises FsmInputError: if somebody has edited it.
        """
        return self.parse(key, await read_variable(self.variable(key)))

    async def aset(self, key: str, value: Any) -> None:
        """Store a JSON value."""
        await write_variable(self.variable(key), json.dumps(value), self.description)

    async def adelete(self, key: str) -> None:
        """Delete a value, if there is one."""
        await delete_variable(self.variable(key))

    def variable(self, key: str) -> str:
        """Return the name of the Variable that holds a value."""
        # Airflow 3.0 finds no Variable with a slash in its name.
        return f"{self._prefix}.{key.replace('/', '.')}"

    def parse(self, key: str, text: str | None) -> Any:
        """Parse the JSON value that a Variable holds, None if there is none.

        :raises FsmInputError: if somebody has edited it.
        """
        try:
            return None if text is None else json.loads(text)
        except ValueError as error:
            text = f"Variable {self.variable(key)} is not what was stored: {error}"
            raise FsmInputError(text) from None


class ClaimedAssetStore(VariableAssetStore):
    """The store of an asset for the one process that watches it.

    Several may try at the same time. Airflow moves a trigger away from a triggerer that is silent, which may
    wake up later; and Airflow 3.0 and 3.1 run the trigger of an asset in every triggerer. The last process to
    begin owns the asset. Another one gets it back once the owner is silent.

    :param asset_name: the asset's name.
    :param process: what identifies the process.
    :raises AssetClaimedError: by each write, if another process has claimed the asset since.
    """

    def __init__(self, asset_name: str, process: str = PROCESS) -> None:
        super().__init__(asset_name)
        self._asset_name = asset_name
        self._process = process

    async def claim(self) -> None:
        """Own the asset; wait first until the owner is silent, if this process has owned it before."""
        if (self._process, self._asset_name) in _claimed:
            await self._until_silent()
        await self._claim()
        _claimed.add((self._process, self._asset_name))

    async def renew(self) -> None:
        """Show that the owner is not silent."""
        await self._check_owned()
        await self._claim()

    async def aset(self, key: str, value: Any) -> None:
        """Store a JSON value."""
        await self._check_owned()
        await super().aset(key, value)

    async def adelete(self, key: str) -> None:
        """Delete a value, if there is one."""
        await self._check_owned()
        await super().adelete(key)

    async def _claim(self) -> None:
        await super().aset(OWNER, [self._process, uuid4().hex])

    async def _until_silent(self) -> None:
        clock = asyncio.get_running_loop().time
        seen, since = None, clock()
        while (owner := await self.aget(OWNER)) and owner[0] != self._process:
            if owner != seen:
                seen, since = owner, clock()
            elif clock() - since >= MAX_SILENCE:
                return
            await asyncio.sleep(RENEW_INTERVAL)

    async def _check_owned(self) -> None:
        owner = await self.aget(OWNER)
        if not owner or owner[0] != self._process:
            raise AssetClaimedError("another triggerer watches the asset meanwhile")
