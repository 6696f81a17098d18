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
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from fsm_provider.polling.asset_stores import sql_store_for
from fsm_provider.polling.configurations import until_stored
from fsm_provider.polling.producer import FormEventProducer
from fsm_provider.state.assets import RENEW_INTERVAL, AssetClaimedError

logger: logging.Logger = logging.getLogger(__name__)

MAX_RESTART_DELAY = 60.0
"""Seconds after an event in which a restart confirms it.

A trigger that is started later may be another one: SQLite gives it the ID of one that was deleted.
"""

_kept: dict[tuple[int | None, str], RestartedProducer] = {}
"""Producers whose event the triggerer has taken, by the trigger's ID and the asset's name."""
_closing: set[asyncio.Future[None]] = set()
_configured: Counter[str] = Counter()
"""How many triggers configure each asset in this process: none once Airflow has dropped its watchers."""


class RestartedProducer:
    """A producer that outlives the runs of its trigger.

    :param trigger_id: the trigger's ID.
    :param asset_name: the asset whose store holds the configuration and the watermark.
    :param fsm_conn_id: its connection, which names the database of the store.
    """

    def __init__(self, trigger_id: int | None, asset_name: str, fsm_conn_id: str) -> None:
        self.asset_name = asset_name
        self._key = trigger_id, asset_name
        self._fsm_conn_id = fsm_conn_id
        self._producer: FormEventProducer | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def next_event(self) -> dict[str, Any]:
        """Return the next event; the one before it, if any, is in Airflow's database.

        If another process has claimed the asset, wait until it is silent, and read what it has stored.
        """
        while True:
            if self._producer is None:
                self._store = sql_store_for(self.asset_name, self._fsm_conn_id)
                await until_stored(self._store, self.asset_name, "The claim", self._store.claim)
                self._producer = FormEventProducer(self.asset_name, self._store, confirmation_delay=0.0)
                self._events = self._producer.open_stream()
            else:
                await self._producer.advance([])
            try:
                return await self._owned(anext(self._events))
            except AssetClaimedError as error:
                logger.warning("The state of the asset '%s' is read again: %s", self.asset_name, error)
                await self._events.aclose()
                self._producer = None

    def keep(self) -> None:
        """Keep the producer until its trigger is restarted: the triggerer has taken its event."""
        _kept[self._key] = self
        self._expiry = asyncio.get_running_loop().call_later(MAX_RESTART_DELAY, self.drop)

    def resume(self) -> None:
        """Keep it no longer: it is used again."""
        del _kept[self._key]
        if self._expiry:
            self._expiry.cancel()

    def drop(self) -> None:
        """Close a producer that was kept; its event is emitted again."""
        self.resume()
        closing = asyncio.ensure_future(self.close())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)

    async def close(self) -> None:
        """Close the producer, unless it is kept; an event that was not confirmed is emitted again."""
        if self._producer is not None and _kept.get(self._key) is not self:
            await self._events.aclose()

    async def _owned(self, event: Awaitable[tuple[dict[str, Any], None]]) -> dict[str, Any]:
        """Wait for an event, and show meanwhile that this process is alive.

        :raises AssetClaimedError: if another process has claimed the asset.
        """
        waiting = asyncio.ensure_future(event)
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=RENEW_INTERVAL)
                try:
                    await self._store.renew()
                except AssetClaimedError:
                    raise
                except Exception:
                    logger.exception("The claim of the asset '%s' could not be renewed", self.asset_name)
            return waiting.result()[0]
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])


def resume(trigger_id: int | None, asset_name: str, fsm_conn_id: str) -> RestartedProducer:
    """Return the producer that the last run of a trigger has kept, else a new one."""
    if kept := _kept.get((trigger_id, asset_name)):
        kept.resume()
        return kept
    return RestartedProducer(trigger_id, asset_name, fsm_conn_id)


@asynccontextmanager
async def configured(asset_name: str) -> AsyncIterator[None]:
    """Note that a trigger configures an asset in this process.

    If Airflow drops the watchers of an asset, it cancels all of them, and drops their events silently: a
    restart does not confirm these. An edit usually replaces one of them, and drops nothing.
    """
    _configured[asset_name] += 1
    try:
        yield
    finally:
        _configured[asset_name] -= 1
        if not _configured[asset_name]:
            for kept in [one for one in _kept.values() if one.asset_name == asset_name]:
                kept.drop()
