"""The configurations that have watched an asset, in the asset's store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypedDict

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.parsing import warn_once
from fsm_provider.polling.asset_stores import asset_store_for
from fsm_provider.state.assets import AssetClaimedError, AssetStore

if TYPE_CHECKING:
    from fsm_provider.polling.watch import FormWatch

logger: logging.Logger = logging.getLogger(__name__)

CONFLICT_WINDOW = timedelta(hours=1)
"""A replaced configuration that comes back within this time probably belongs to a second DAG."""
CONFIGURATIONS = "fsm_forms/configurations"
"""Key of the configurations that have watched the asset, the current one last."""
MAX_CONFIGURATIONS = 4
INTERVAL = "fsm_forms/poll_interval"
OPENED = "fsm_forms/opened"
"""Key of the time when the asset was last watched."""
MAX_PAUSE = 30.0
"""Seconds, at most, between two attempts to read the state store."""


class Configuration(TypedDict):
    """A configuration that has watched an asset.

    :param at: when it was last stored, ISO 8601.
    """

    watch: FormWatch
    at: str


async def announce(watch: FormWatch) -> None:
    """Store the configuration that the watcher of an asset polls with.

    Log an error if another configuration replaced this one a short time ago.
    """
    store = asset_store_for(watch["asset_name"], watch["fsm_conn_id"])

    async def put() -> None:
        known: list[Configuration] = await store.aget(CONFIGURATIONS) or []
        now = datetime.now(UTC)
        others = [one for one in known if one["watch"] != watch]
        if known and known[-1] in others:
            for one in known:
                if one not in others and now - datetime.fromisoformat(one["at"]) < CONFLICT_WINDOW:
                    _report_conflict(watch, known[-1]["watch"])
        mine = Configuration(watch=watch, at=now.isoformat())
        await store.aset(CONFIGURATIONS, [*others, mine][-MAX_CONFIGURATIONS:])

    await until_stored(store, watch["asset_name"], "The configuration", put)


async def announce_interval(asset_name: str, fsm_conn_id: str, seconds: float) -> None:
    """Store the interval in seconds at which the watcher of an asset polls."""
    store = asset_store_for(asset_name, fsm_conn_id)
    await until_stored(store, asset_name, "The interval", lambda: store.aset(INTERVAL, seconds))


async def until_stored(
    store: AssetStore, asset_name: str, what: str, attempt: Callable[[], Awaitable[None]]
) -> None:
    """Repeat an attempt to read and write an asset's state store until it succeeds.

    :raises AssetClaimedError: if another triggerer watches the asset meanwhile.
    """
    pause = 1.0
    while True:
        try:
            # For an inactive asset a read returns None as if nothing were stored, but a write fails.
            await store.aset(OPENED, datetime.now(UTC).isoformat())
            return await attempt()
        except AssetClaimedError:
            raise
        except FsmInputError as error:  # a person has to act; the connection is then read again
            key, level = (asset_name, str(error)), logging.ERROR
            warn_once(logger, key, "The asset '%s' is not watched: %s", asset_name, error, level=level)
        except Exception:
            logger.exception(
                "%s of the asset '%s' could not be read or stored; the next attempt is in %g s",
                what,
                asset_name,
                pause,
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)


def _report_conflict(watch: FormWatch, other: FormWatch) -> None:
    different = [name for name, value in watch.items() if value != other.get(name)]
    logger.error(
        "The configuration of the asset '%s' alternates: it was %s, then %s, and is now the former again. "
        "Unless somebody has edited it back, two DAGs define the asset with different arguments, and it is "
        "polled with those that Airflow has read last. Import the asset from one module, or give one of them "
        "another name",
        watch["asset_name"],
        ", ".join(f"{name}={watch.get(name)!r}" for name in different),
        ", ".join(f"{name}={other.get(name)!r}" for name in different),
    )
