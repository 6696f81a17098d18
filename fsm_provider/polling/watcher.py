"""The watcher of one asset in a triggerer: a member of the feed that emits new forms, and stores
which.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast
from uuid import uuid4

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import FsmError
from fsm_provider.api.parsing import warn_once
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling import tracker as tracking
from fsm_provider.polling.feed import Feed, joined
from fsm_provider.polling.polls import (
    Form,
    Place,
    Query,
    Source,
    Time,
    places_of,
    read_settings,
    time_of,
)
from fsm_provider.polling.tracker import LOOK_BACK, WATERMARK, NewForms, Watch, reconcile_every

logger: logging.Logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

NO_CONFIGURATION = (
    "The asset '%s' has no configuration yet, so no form is emitted. Two DAGs may define it "
    "differently: import it from one module, or give one of them another name"
)
FAILED = "Polling for the asset '%s' failed, and goes on from %s: %s"
CONFIGURATION = "fsm_forms/configuration"
"""Key of what was announced last."""
OWNER = "fsm_forms/owner"
"""Key of who watches the asset: an identifier, a number that changes while it does, and how it
fares.
"""
RESET = "reset"
"""Key of the last request of ``watermark set``: an identifier and a time."""
SETTLES = 2.0
"""Seconds after Airflow confirms an event until it counts as stored.

Airflow confirms also what it drops, as no asset has the watcher any more, and then cancels the
watcher.
"""
EVENT_INTERVAL = 15.0
"""Seconds between two events of a backlog: one DAG run takes all events that come before it is
made.
"""
CHECK_EVERY = 15.0
"""Seconds between two looks at the configuration, and at who watches the asset; after a failure,
too.
"""
SILENCE = 90.0
"""Seconds after which the triggerer that watches the asset is taken for dead."""
DAYS = 30  # of which it is stored how many forms were emitted
LOG_EVERY = 600.0
"""Seconds between two lines of the log about failed polls."""


class AssetStore(Protocol):
    """JSON values that are stored with an asset: ``AssetStateStoreAccessor`` of Airflow 3.3 and
    newer.
    """

    async def aget(self, key: str) -> Any: ...

    async def aset(self, key: str, value: Any) -> None: ...


class ReplacedError(BaseException):
    """The watcher begins anew, as its configuration, its service or its watermark was changed. No
    failure.
    """


class SupersededError(BaseException):
    """Another triggerer watches the asset."""


class AssetEvents:
    """Emits the events of an asset, for ever: the next after :attr:`watcher` is told that one is
    stored.

    Killed at any time and begun anew, it emits every form; a second time those of an event that was
    stored just before.
    """

    watcher: Watcher

    def __init__(self, asset_name: str, store: AssetStore) -> None:
        self._name, self._store = asset_name, store

    async def configure(self, watch: Watch) -> None:
        await until_done(self._name, partial(self._store.aset, CONFIGURATION, watch))

    async def events(self) -> AsyncGenerator[dict[str, Any]]:
        while True:
            watch = await self._configuration()
            conn_id = watch["fsm_conn_id"]
            service = (await until_done(self._name, partial(read_settings, conn_id))).service
            self.watcher = watcher = Watcher(watch, service, self._store)
            try:
                await until_done(self._name, watcher.restore)
                question = watch["filters"], watch["query_params"], watch["poll_interval"]
                with joined(Source.of(conn_id, service, *question), watcher) as watcher.feed:
                    async with aclosing(watcher.events()) as events:
                        async for forms in events:
                            yield tracking.event_for(watch, [form.reference for form in forms])
            except ReplacedError:
                logger.info("The asset '%s' begins anew from what is stored", self._name)
            except SupersededError:
                logger.warning(
                    "Another triggerer watches the asset '%s': this one waits", self._name
                )
                await self._until_free()

    async def _configuration(self) -> Watch:
        waited = 0
        while not (found := await until_done(self._name, partial(self._store.aget, CONFIGURATION))):
            waited += 1
            if waited % 60 == 0:
                logger.error(NO_CONFIGURATION, self._name)
            await asyncio.sleep(1.0)
        return cast(Watch, found)

    async def _until_free(self) -> None:
        clock = asyncio.get_running_loop().time
        seen, since = None, clock()
        while clock() - since < SILENCE:
            if (owner := await until_done(self._name, partial(self._store.aget, OWNER))) != seen:
                seen, since = owner, clock()
            await asyncio.sleep(CHECK_EVERY)


class Watcher:
    """Emits the new forms of one asset of one service, while no other triggerer claims the asset."""

    def __init__(self, watch: Watch, service: str, store: AssetStore) -> None:
        self.watch: Watch = watch
        self._store, self._name = store, watch["asset_name"]
        self._owner, self._prefix = uuid4().hex, prefix_for(service)
        self.places: list[Place] = places_of(
            watch["job_ids"], watch["property_ids"], watch["form_names"]
        )
        self.tracker: NewForms = NewForms(partial(tracking.is_wanted, watch), watch["late_by"])
        self.feed: Feed
        self.due: float = 0.0
        self.asked: float = 0.0
        self.failing_since: float | None = None
        self._clock = asyncio.get_running_loop().time
        self._polled_at, self._logged_at, self._failures = self._clock(), float("-inf"), 0
        self._status: dict[str, Any] = {}
        self._days = Counter[str]()
        self._reconciled_at = self._save_at = float("-inf")
        self._asked_since: Time | None = None
        self._reconciles = self._has_begun = self._has_moved = False
        self._reset: str | None = None
        self._wake, self._confirmed, self._is_stored = asyncio.Event(), asyncio.Event(), True
        self._metrics = AirflowMetrics(
            {"connection": watch["fsm_conn_id"], "asset": watch["asset_name"]}
        )

    def questions(self) -> list[Query]:
        """Ask what closes the gap; only then reconcile, whose failure leaves none."""
        self._reconciles = (
            self._has_begun and self.check_after(0.0) == 0.0 and not self.tracker.has_gap
        )
        bases = tracking.bases_of(self.watch)
        if self._reconciles:
            oldest = self.tracker.since(self.watch["late_by"])
            by_update = [replace(base, updated_since=oldest) for base in bases]
            return by_update + [replace(base, created_since=oldest) for base in bases]
        self._asked_since = self.tracker.since(LOOK_BACK) if self._has_begun else self.feed.time()
        return [replace(base, updated_since=self._asked_since or None) for base in bases]

    def check_after(self, now: Time) -> float:
        if self.tracker.has_gap:
            return 0.0
        return max(self._reconciled_at + reconcile_every(self.watch) - self._clock(), 0.0)

    def ingest(self, forms: Iterable[Form]) -> None:
        if self._has_begun:  # the floor is stored; what came before, a catch-up brings
            self.tracker.ingest(forms, self.feed.time())

    def polled(self, since: Time | None, started: Time) -> None:
        """Note a complete poll. The service's time of the first one is the floor of ``now``."""
        self._polled_at = self._clock()
        if self.failing_since is None:
            self._failures, self._logged_at = 0, float("-inf")
            self._status = {}
        self._status["polled_at"] = time.time()
        self._metrics.incr("watcher.polls", result="complete")
        self._wake.set()
        if self._has_begun:
            self.tracker.polled(since, started)
        elif self.tracker.floor is None:
            self.tracker.begin(started)

    def caught_up(self, started: Time) -> None:
        if self._reconciles:
            self._reconciled_at = self._clock()
            self._wake.set()
        else:
            self.polled(self._asked_since, started)

    def moved(self) -> None:
        self._has_moved = True
        self._wake.set()

    def fail(self, error: FsmError, since: float) -> None:
        """Log a failure: at once, and every ten minutes."""
        self._failures += 1
        self._status = {"failing_since": time.time(), **self._status, "error": str(error)}
        self._metrics.incr("watcher.polls", result="failed")
        if self._clock() - self._logged_at >= LOG_EVERY:
            self._logged_at = self._clock()
            level = logging.ERROR if error.permanent else logging.WARNING
            logger.log(level, FAILED, self._name, time_of(self.tracker.watermark), error)

    async def restore(self) -> None:
        """Claim the asset, and read what is stored.

        Of an inactive asset, Airflow 3.3 reads None, but a write fails: the claim is first, and
        read last.
        """
        await self._claim()
        keys = (RESET, WATERMARK, tracking.RECENT, *tracking.CHUNKS)
        found = {key: await self._store.aget(self._prefix + key) for key in keys}
        await self._check_claim()
        reset, stored = found.pop(RESET), found.pop(WATERMARK)
        self._reset = reset and reset["id"]
        self._days.update((stored or {}).get("days", {}))
        entries = {key: entry for key, entry in found.items() if entry is not None}
        if reset and (stored is None or stored["reset"] != self._reset):
            self.tracker.begin(reset["time"], entries)
        elif stored is not None:
            self.tracker.restore(stored, entries)
            self._has_begun = True
        elif (floor := tracking.first_floor(self.watch)) is not None:
            self.tracker.begin(floor)

    async def events(self) -> AsyncGenerator[list[Form]]:
        check_at = self._clock() + CHECK_EVERY
        while True:
            if self._clock() >= check_at:
                await self._check()
                check_at = self._clock() + CHECK_EVERY
            if self._has_moved:
                raise ReplacedError
            if forms := self.tracker.next_event(self.watch["max_forms_per_event"]):
                self._confirmed.clear()
                yield forms
                await self._confirmed.wait()
                await asyncio.sleep(SETTLES)
                if self._is_stored:
                    self.tracker.confirm(self.feed.time())
                    self._metrics.incr("watcher.forms", len(forms))
                    self._days[f"{time_of(time.time()):%F}"] += len(forms)
                    await self._save()
                if self.tracker.pending:
                    await asyncio.sleep(EVENT_INTERVAL - SETTLES)
            elif self.tracker.floor is not None and self._clock() >= self._save_at:
                await self._save()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(check_at - self._clock()):
                        await self._wake.wait()
                self._wake.clear()

    def confirm(self, *, is_stored: bool = True) -> None:
        if not is_stored:
            logger.warning(
                "New forms of the asset '%s' could not be stored, and come again", self._name
            )
        self._is_stored = is_stored
        self._confirmed.set()

    async def _claim(self) -> None:
        """Claim the asset, and show that this process is alive: the last one to claim it watches
        it.
        """
        status = {**self._status, "backlog": len(self.tracker.pending)}
        await self._store.aset(OWNER, [self._owner, self._clock(), status])

    async def _check_claim(self) -> None:
        owner = await self._store.aget(OWNER)
        if owner is None or owner[0] != self._owner:
            raise SupersededError

    async def _check(self) -> None:
        """Measure, and make sure that the watcher is to go on."""
        self._metrics.gauge("watcher.poll_age", self._clock() - self._polled_at)
        self._metrics.gauge("watcher.poll_interval", self.watch["poll_interval"])
        self._metrics.gauge("watcher.failures", self._failures)
        self._metrics.gauge("watcher.backlog", len(self.tracker.pending))
        try:
            if await self._store.aget(CONFIGURATION) not in (None, self.watch):
                raise ReplacedError
            await self._check_claim()
            await self._claim()
            reset = await self._store.aget(self._prefix + RESET)
            if reset and reset["id"] != self._reset:
                raise ReplacedError
        except Exception:
            logger.exception("The state of the asset '%s' could not be read", self._name)

    async def _save(self) -> None:
        """Store what was emitted; if that fails, a later call does."""
        try:
            await self._check_claim()
            for key, entry in self.tracker.to_store(self.feed.time()):
                if key == WATERMARK:
                    days = dict(sorted(self._days.items())[-DAYS:])
                    entry = {**entry, "reset": self._reset, "days": days}
                await self._store.aset(self._prefix + key, entry)
        except Exception:
            logger.exception("The watermark of the asset '%s' could not be stored yet", self._name)
            self._save_at = float("-inf")
            await asyncio.sleep(CHECK_EVERY)
            return
        self.tracker.stored()
        self._save_at = self._clock() + reconcile_every(self.watch)
        if not self._has_begun:
            self._has_begun, self.due = True, self._clock()


async def until_done(asset_name: str, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
    while True:
        try:
            return await attempt()
        except FsmError as error:  # of the connection, or of the database that it names
            given = asset_name, str(error)
            warn_once(
                logger, given, "The asset '%s' is not watched: %s", *given, level=logging.ERROR
            )
        except Exception:
            logger.exception(
                "The state of the asset '%s' could not be read or stored yet", asset_name
            )
        await asyncio.sleep(CHECK_EVERY)


def prefix_for(service: str) -> str:
    return f"fsm_forms/{digest_for(service, 12)}/"
