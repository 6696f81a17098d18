"""Assets of completed forms for commands: up to where forms were emitted, and how to emit some again."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS

from fsm_provider.api.client import FsmClient
from fsm_provider.api.form_filter import FormReference, format_time, parse_reference_time
from fsm_provider.compat import read_connection_outside_of_tasks
from fsm_provider.hooks.fsm import settings_from
from fsm_provider.polling.asset_stores import database_for
from fsm_provider.polling.configurations import CONFIGURATIONS
from fsm_provider.polling.form_poll import FormPoll
from fsm_provider.polling.new_forms import StoredWatermark
from fsm_provider.polling.replays import REPLAY, Replay, requested_replay
from fsm_provider.polling.stored_trackers import is_begun, newest_of, restore, stored_watermarks, tracker_for
from fsm_provider.polling.watch import FormWatch
from fsm_provider.state.assets import AssetStore, SqlAssetStore
from fsm_provider.state.server_asset_store import ServerAssetStore, active_assets, has_watcher, lock_assets
from fsm_provider.terminal import RefusedError

if TYPE_CHECKING:
    from airflow.models.asset import AssetModel
    from sqlalchemy.orm import Session


@dataclass(frozen=True)
class WatchedAsset:
    """An active asset, as its watcher has left it.

    :param watch: its current configuration.
    :param waiting: the replay that is requested, and that no watcher has begun.
    :param has_watcher: whether a watcher runs.
    """

    watch: FormWatch
    waiting: Replay | None
    has_watcher: bool
    _watermarks: dict[str, StoredWatermark]
    _store: AssetStore

    @classmethod
    async def read(cls, asset: AssetModel, store: AssetStore) -> Self | None:
        """Read an asset; None if none of its watchers has ever begun."""
        if not (known := await store.aget(CONFIGURATIONS)):
            return None
        watch: FormWatch = known[-1]["watch"]
        watermarks = await stored_watermarks(watch, store)
        replay = await requested_replay(watch, store)
        waiting = None if replay is None or is_begun(replay, watermarks) else replay
        return cls(watch, waiting, has_watcher(asset), watermarks, store)

    @property
    def name(self) -> str:
        """The asset's name."""
        return self.watch["asset_name"]

    @property
    def at(self) -> datetime | None:
        """Where a restarted watcher begins; None while the forms of the first poll are emitted."""
        newest = newest_of(self._watermarks)
        return parse_reference_time(newest["moment"]) if newest else None

    @property
    def remarks(self) -> list[str]:
        """What is worth knowing besides."""
        newest = newest_of(self._watermarks)
        known = {
            "more forms are to be emitted": newest and "polled" in newest,
            f"to emit again: forms {self.waiting}": self.waiting,
            "no watcher runs": not self.has_watcher,
        }
        return [remark for remark, is_so in known.items() if is_so]

    def replay(self, since: datetime, until: datetime | None) -> Replay:
        """Make a request.

        :raises RefusedError: if the watcher could not do what it says.
        """
        if self.waiting:
            raise RefusedError(
                f"'{self.name}': forms {self.waiting} were requested before, and not begun yet"
            )
        if self.at is None:
            raise RefusedError(f"'{self.name}': its watcher is still at the forms of its first poll")
        start = parse_reference_time(self.watch["start_from"])
        if start and since < start:
            raise RefusedError(
                f"'{self.name}': {format_time(since)} is before its start_from, {format_time(start)}"
            )
        return Replay(uuid4().hex, self.watch["fsm_conn_id"], since, until)

    async def preview(self, replay: Replay) -> list[FormReference]:
        """Return the forms that a request would emit again, oldest first, after a listing.

        :raises FsmError: if the listing fails.
        """
        tracker = tracker_for(self.watch)
        await restore(tracker, self.watch, self._store)
        tracker.replay(replay)
        query = tracker.next_query(0.0, datetime.now(UTC))
        poll = FormPoll(query.wanted, self.watch["query_params"])
        connection = read_connection_outside_of_tasks(self.watch["fsm_conn_id"])
        with closing(FsmClient(settings_from(connection))) as client:
            while (result := poll.read_page(client)) is None:
                pass
        new = tracker.ingest(query, result, 0.0)
        forms = [form for form in new if replay.covers(_updated(form))]
        return sorted(forms, key=lambda form: _updated(form) or replay.since)

    async def request(self, replay: Replay) -> None:
        """Store a request for the watcher."""
        await self._store.aset(REPLAY, replay.as_dict())


async def watched_assets(
    session: Session, name: str | None = None, *, lock: bool = False
) -> list[WatchedAsset]:
    """Return the active assets that have been watched; of a name there is one at most.

    :param lock: let no other command request anything of the name until the session ends.
    :raises RefusedError: if this Airflow has none.
    """
    if not AIRFLOW_V_3_0_PLUS:
        raise RefusedError("assets of completed forms need Airflow 3.0 or newer")
    if lock and name is not None:
        lock_assets(name, session)
    assets = active_assets(name, session)
    found = [await WatchedAsset.read(one, _store_of(one, session)) for one in assets]
    return [one for one in found if one]


def _store_of(asset: AssetModel, session: Session) -> AssetStore:
    if AIRFLOW_V_3_3_PLUS:
        return ServerAssetStore(asset, session)
    fsm_conn_id = unquote(urlsplit(asset.uri).netloc)
    # In a thread: it ends the thread's session with Airflow's database.
    return SqlAssetStore(
        asset.name,
        lambda: database_for(
            fsm_conn_id, lambda one: asyncio.to_thread(read_connection_outside_of_tasks, one)
        ),
    )


def _updated(form: FormReference) -> datetime | None:
    return parse_reference_time(form["lastUpdatedOnDateTime"])
