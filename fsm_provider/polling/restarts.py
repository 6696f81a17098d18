"""The event producer for a trigger that emits one event and ends: Airflow 3.0 to 3.2.

These versions do not tell a trigger that its event is in Airflow's database. But they restart an asset's
trigger that has ended, with its ID and in the same process, and only once its event is in the database. So
the restart confirms the event, and the producer is kept in the process until then.

If the restart never comes, because the process was killed, or comes elsewhere, the event is emitted again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fsm_provider.polling.producer import FormEventProducer, until_stored
from fsm_provider.state.asset_store import AssetClaimedError, ClaimedAssetStore

logger: logging.Logger = logging.getLogger(__name__)

MAX_RESTART_DELAY = 60.0
"""Seconds after an event in which a restart confirms it.

A trigger that is started later may be another one: SQLite gives it the ID of one that was deleted.
"""
REPLACEMENT_DELAY = 0.5
"""Seconds from the end of a configuration to the beginning of the one that replaces it, at most."""

_kept: dict[tuple[int | None, str], RestartedProducer] = {}
"""Producers whose event the triggerer has taken, by the trigger's ID and the asset's name."""
_configured: Counter[str] = Counter()
"""How many configurations each asset has in this process: none once Airflow has dropped its watchers."""


class RestartedProducer:
    """A producer that outlives the runs of its trigger.

    :param trigger_id: the trigger's ID.
    :param asset_name: the asset whose store holds the configuration and the watermark.
    """

    def __init__(self, trigger_id: int | None, asset_name: str) -> None:
        self.asset_name = asset_name
        self.kept_at = 0.0
        self._key = trigger_id, asset_name
        self._producer: FormEventProducer | None = None

    async def next_event(self) -> dict[str, Any]:
        """Return the next event; the one before it, if any, is in Airflow's database.

        If another triggerer has claimed the asset, claim it again, and read what that one has stored.
        """
        while True:
            if self._producer is None:
                self._producer = await self._open()
                self._events = self._producer.open_stream()
            else:
                await self._producer.advance([])
            try:
                event, _ = await anext(self._events)
            except AssetClaimedError as error:
                logger.warning("Reading the state of the asset '%s' again: %s", self.asset_name, error)
                self._producer = None
            else:
                return event

    def keep(self) -> None:
        """Keep the producer until its trigger is restarted: the triggerer has taken its event."""
        self.kept_at = asyncio.get_running_loop().time()
        _kept[self._key] = self

    async def close(self) -> None:
        """Close the producer, unless it is kept; an event that was not confirmed is emitted again."""
        if self._producer is not None and _kept.get(self._key) is not self:
            await self._events.aclose()

    async def _open(self) -> FormEventProducer:
        store = ClaimedAssetStore(self.asset_name)
        await until_stored(self.asset_name, "The claim", store.claim)
        return FormEventProducer(self.asset_name, store=store, confirmation_delay=0.0)


async def resume(trigger_id: int | None, asset_name: str) -> RestartedProducer:
    """Return the producer that the last run of a trigger has kept, else a new one."""
    oldest = asyncio.get_running_loop().time() - MAX_RESTART_DELAY
    await _drop(lambda kept: kept.kept_at < oldest)
    return _kept.pop((trigger_id, asset_name), None) or RestartedProducer(trigger_id, asset_name)


@asynccontextmanager
async def configured(asset_name: str) -> AsyncIterator[None]:
    """Note that an asset has a configuration in this process.

    If Airflow drops the watchers of an asset, it cancels the configuration without replacing it, and drops
    their events silently. A restart does not confirm these.
    """
    _configured[asset_name] += 1
    try:
        yield
    finally:
        _configured[asset_name] -= 1
        await asyncio.sleep(REPLACEMENT_DELAY)
        if not _configured[asset_name]:
            await _drop(lambda kept: kept.asset_name == asset_name)


async def _drop(is_dropped: Callable[[RestartedProducer], bool]) -> None:
    for key, kept in list(_kept.items()):
        if is_dropped(kept):
            del _kept[key]
            await kept.close()
