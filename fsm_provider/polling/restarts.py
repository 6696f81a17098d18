"""The events of an asset for a trigger that emits one event and ends: Airflow 3.0 to 3.2.

These versions do not tell a trigger that its event is in Airflow's database. But they restart an asset's
trigger that has ended, with its ID and in the same process, and only once its event is in the database. So
the restart confirms the event, and the watcher is kept in the process until then.

If the restart never comes, because the process was killed, or comes elsewhere, the event is emitted again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fsm_provider.polling.asset_events import AssetEvents
from fsm_provider.polling.asset_stores import sql_store_for

MAX_RESTART_DELAY = 60.0
"""Seconds after an event in which a restart confirms it.

A trigger that is started later may be another one: SQLite gives it the ID of one that was deleted.
"""

_kept: dict[tuple[int | None, str], RestartedEvents] = {}
"""Those whose event the triggerer has taken, by the trigger's ID and the asset's name."""
_closing: set[asyncio.Future[None]] = set()
_configured: Counter[str] = Counter()
"""How many triggers configure each asset in this process: none once Airflow has dropped its watchers."""


class RestartedEvents:
    """The events of an asset, which outlive the runs of their trigger."""

    def __init__(self, key: tuple[int | None, str], fsm_conn_id: str) -> None:
        self.key = key
        self._asset = AssetEvents(key[1], sql_store_for(key[1], fsm_conn_id), is_confirmed_by_restart=True)
        self._events = self._asset.events()
        self._expiry: asyncio.TimerHandle | None = None

    async def next_event(self) -> dict[str, Any]:
        """Return the next event; the one before it, if any, is in Airflow's database."""
        self._asset.confirm()
        return await anext(self._events)

    def keep(self) -> None:
        """Keep it until its trigger is restarted: the triggerer has taken its event."""
        _kept[self.key] = self
        self._expiry = asyncio.get_running_loop().call_later(MAX_RESTART_DELAY, self.drop)

    def resume(self) -> None:
        """Keep it no longer: it is used again."""
        del _kept[self.key]
        if self._expiry:
            self._expiry.cancel()

    def drop(self) -> None:
        """Close it, though it was kept; its event is emitted again."""
        self.resume()
        closing = asyncio.ensure_future(self.close())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)

    async def close(self) -> None:
        if _kept.get(self.key) is not self:
            await self._events.aclose()


def resume(trigger_id: int | None, asset_name: str, fsm_conn_id: str) -> RestartedEvents:
    """Return what the last run of a trigger has kept, or begin anew."""
    key = trigger_id, asset_name
    if kept := _kept.get(key):
        kept.resume()
        return kept
    return RestartedEvents(key, fsm_conn_id)


@contextmanager
def configured(asset_name: str) -> Iterator[None]:
    """Note that a trigger configures an asset in this process.

    If Airflow drops the watchers of an asset, it cancels all of them, and drops their events silently: a
    restart does not confirm these. An edit replaces only the configuration.
    """
    _configured[asset_name] += 1
    try:
        yield
    finally:
        _configured[asset_name] -= 1
        if not _configured[asset_name]:
            for kept in [one for one in _kept.values() if one.key[1] == asset_name]:
                kept.drop()
