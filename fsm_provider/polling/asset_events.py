"""The events of an asset: its configuration, as announced; the service of its connection; and its watcher."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from fsm_provider.api.errors import FsmError
from fsm_provider.api.parsing import warn_once
from fsm_provider.polling.feed import joined
from fsm_provider.polling.polls import read_settings
from fsm_provider.polling.watch import Watch, event_for, source_of
from fsm_provider.polling.watcher import SETTLES, Claim, ReplacedError, SupersededError, Watcher
from fsm_provider.state.assets import AssetStore

logger: logging.Logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

CONFIGURATION = "fsm_forms/configuration"
"""Key of what was announced last."""
MAX_PAUSE = 30.0
"""Seconds, at most, between two attempts to read or to store."""
SILENCE, SILENCE_WITHOUT_BEATS = 90.0, 600.0
"""Seconds after which the triggerer that watches the asset is taken for dead."""


class AssetEvents:
    """Emits the events of an asset, one at a time: the next after the one before is stored.

    It never ends by itself. Killed or cancelled at any time and begun anew, it still emits every form, and a
    second time the forms of an event that was stored just before.

    :param is_confirmed_by_restart: before Airflow 3.3, where several triggerers may watch the asset.
    """

    def __init__(self, asset_name: str, store: AssetStore, *, is_confirmed_by_restart: bool = False) -> None:
        self._name, self._store = asset_name, store
        self._is_by_restart = is_confirmed_by_restart
        self._watch: Watch | None = None
        self._watcher: Watcher | None = None

    async def events(self) -> AsyncGenerator[dict[str, Any]]:
        """Yield events of new forms; call :meth:`confirm` after each."""
        settles = 0.0 if self._is_by_restart else SETTLES
        while True:
            self._watch = watch = await self._configuration()
            claim = Claim(self._store, beats=self._is_by_restart)
            settings = await until_done(self._name, lambda: read_settings(watch["fsm_conn_id"]))  # noqa: B023
            watcher = Watcher(watch, settings.service, self._store, claim, self._check, settles)
            self._watcher = watcher
            try:
                await until_done(self._name, watcher.restore)
                source = source_of(watch, settings.service)
                async with joined(source, watcher) as watcher.feed, aclosing(watcher.events()) as events:
                    async for forms in events:
                        yield event_for(watch, [form.reference for form in forms])
            except ReplacedError:
                logger.info("The asset '%s' begins anew from what is stored", self._name)
            except SupersededError:
                logger.warning("Another triggerer watches the asset '%s': this one waits", self._name)
                await claim.until_free(SILENCE if self._is_by_restart else SILENCE_WITHOUT_BEATS)

    def confirm(self, *, is_stored: bool = True) -> None:
        if self._watcher:
            self._watcher.confirm(is_stored=is_stored)

    async def _configuration(self) -> Watch:
        waited = 0
        while not (found := await until_done(self._name, lambda: self._store.aget(CONFIGURATION))):
            waited += 1
            if waited % 60 == 0:
                logger.error(
                    "The asset '%s' has no configuration yet, so no form is emitted. If two DAGs define it "
                    "with different arguments, Airflow removes the triggers of both: import the asset from "
                    "one module, or give one of them another name",
                    self._name,
                )
            await asyncio.sleep(1.0)
        return cast(Watch, found)

    async def _check(self) -> None:
        if await self._store.aget(CONFIGURATION) not in (None, self._watch):
            raise ReplacedError


async def announce(watch: Watch, store: AssetStore) -> None:
    """Store the configuration that the asset's watcher is to use from now on."""
    await until_done(watch["asset_name"], lambda: store.aset(CONFIGURATION, watch))


async def until_done(asset_name: str, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Repeat an attempt to read or to store something until it succeeds.

    :raises SupersededError: if another triggerer watches the asset.
    """
    pause = 1.0
    while True:
        try:
            return await attempt()
        except SupersededError:
            raise
        except FsmError as error:  # of the connection, or of the database that it names
            key = asset_name, str(error)
            warn_once(
                logger, key, "The asset '%s' is not watched: %s", asset_name, error, level=logging.ERROR
            )
        except Exception:
            logger.exception(
                "The state of the asset '%s' could not be read or stored; the next attempt is in %g s",
                *(asset_name, pause),
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)
