"""The watcher of one asset in a triggerer: it emits new forms, and stores which."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar
from uuid import uuid4

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.parsing import warn_once
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling.feed import Feed, subscribe
from fsm_provider.polling.formats import format_of, refuse_newer
from fsm_provider.polling.lister import Source, read_settings
from fsm_provider.polling.polls import (
    LOOK_BACK,
    FormVersion,
    Query,
    RoutingKey,
    Time,
    time_of,
)
from fsm_provider.polling.tracker import CHUNKS, RECENT, WATERMARK, FormTracker
from fsm_provider.polling.watcher_config import FORMAT, STORED_BY_NEWER, WatcherConfig

logger: logging.Logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

NO_CONFIGURATION = (
    "The asset '%s' has no configuration yet, so no form is emitted. Two DAGs may define it "
    "differently: import it from one module, or give one of them another name. Or its DAG was away "
    "for a while: restart the triggerer"
)
FAILED = "Polling for the asset '%s' failed, and goes on from %s: %s"
CONFIGURATION = "fsm_forms/configuration"
"""Key of what was announced last. Like that of the owner, it has no prefix of a service."""
OWNER = "fsm_forms/owner"
"""Key of who watches the asset.

Its value is a list: the watcher's identifier, a number that changes for as long as its triggerer is
alive, and how it fares.
"""
RESET = "reset"
"""Key of the last request of ``watermark set``, an identifier and a time.

Like the keys of the tracker, it comes after the prefix of a service (:func:`prefix_for`).
"""
SETTLES = 2.0
"""Seconds after Airflow confirms an event until it counts as stored.

Airflow confirms also what it drops, as no asset has the watcher any more, and then cancels the
watcher.
"""
EVENT_INTERVAL = 15.0
"""Seconds between two events of a backlog.

One DAG run takes all events that come before it is made.
"""
CHECK_EVERY = 15.0
"""Seconds between two looks at the configuration and at who watches the asset.

It is the pause after a failure, too.
"""
SILENCE = 90.0
"""Seconds after which the triggerer that watches the asset is taken for dead."""
DAYS = 30  # of which it is stored how many forms were emitted
LOG_EVERY = 600.0
"""Seconds between two lines of the log about failed polls."""
LOG_WAITING_EVERY = 60
"""Looks at a configuration that is not there, a second apart, of which one is logged."""
LONG_AGO = float("-inf")
"""A time of the event loop before every other."""


class AssetStore(Protocol):
    """JSON values that are stored with an asset.

    Airflow 3.3 and newer has it as ``AssetStateStoreAccessor``; before, it is a ``SqlAssetStore``.
    """

    async def aget(self, key: str) -> Any:
        """Return the value of a key; None: there is none."""

    async def aset(self, key: str, value: Any) -> None:
        """Store a value, in place of the one before."""


class ReplacedError(BaseException):
    """The watcher begins anew: its configuration, its service or its watermark was changed.

    It is no failure, and so no ``Exception``: what logs failures, and goes on, lets it through.
    """


class SupersededError(BaseException):
    """Another triggerer watches the asset. It is no failure, either."""


class AssetEvents:
    """Yields the events of an asset, for ever.

    Each but the first comes after :attr:`watcher` was told that the one before is stored.

    The asset's trigger takes them from :meth:`events`, in the event loop of the triggerer. Each
    round waits for a configuration, reads the connection, and makes a :class:`Watcher`, which is
    restored and subscribed to the feed; a change of one of them ends the round. A second triggerer
    that watches the asset claims it, and then this one waits until that is silent.

    Killed at any time and begun anew, it emits every form; a second time those of an event that was
    stored just before.
    """

    watcher: Watcher

    def __init__(self, asset_name: str, store: AssetStore) -> None:
        self._name = asset_name
        self._store = store

    async def configure(self, config: Mapping[str, Any]) -> None:
        """Store the configuration, which the watcher reads, whichever triggerer runs it.

        One that a newer version has written stays: its error is logged.
        """

        async def replace_older() -> None:
            await self._read_configuration()  # which refuses a newer one
            await self._store.aset(CONFIGURATION, config)

        await self._until_done(replace_older)

    async def events(self) -> AsyncGenerator[dict[str, Any]]:
        while True:
            config = await self._wait_for_configuration()
            settings = await self._until_done(partial(read_settings, config.fsm_conn_id))
            source = Source.from_arguments(
                config.fsm_conn_id,
                settings.service,
                config.filters,
                config.query_params,
                config.poll_interval,
            )
            watcher = Watcher(config, settings.service, self._store)
            self.watcher = watcher
            try:
                await self._until_done(watcher.restore)
                with subscribe(source, watcher) as watcher.feed:
                    async with aclosing(watcher.events()) as events:
                        async for forms in events:
                            yield config.event_with([form.reference for form in forms])
            except ReplacedError:
                logger.info("The asset '%s' begins anew from what is stored", self._name)
            except SupersededError:
                logger.warning(
                    "Another triggerer watches the asset '%s': this one waits", self._name
                )
                await self._until_free()

    async def _wait_for_configuration(self) -> WatcherConfig:
        looks = 0
        while True:
            config = await self._until_done(self._read_configuration)
            if config is not None:
                return config
            looks += 1
            if looks % LOG_WAITING_EVERY == 0:
                logger.error(NO_CONFIGURATION, self._name)
            await asyncio.sleep(1.0)

    async def _read_configuration(self) -> WatcherConfig | None:
        stored = await self._store.aget(CONFIGURATION)
        return WatcherConfig.from_json(stored) if stored else None

    async def _until_free(self) -> None:
        clock = asyncio.get_running_loop().time
        last_seen = None
        unchanged_since = clock()
        while clock() - unchanged_since < SILENCE:
            owner = await self._until_done(partial(self._store.aget, OWNER))
            if owner != last_seen:
                last_seen = owner
                unchanged_since = clock()
            await asyncio.sleep(CHECK_EVERY)

    async def _until_done(self, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Attempt something until it succeeds; what fails is logged."""
        while True:
            try:
                return await attempt()
            except FsmError as error:  # of the connection, or of the database that it names
                text = str(error)
                warn_once(
                    logger,
                    (self._name, text),
                    "The asset '%s' is not watched: %s",
                    self._name,
                    text,
                    level=logging.ERROR,
                )
            except Exception:
                logger.exception(
                    "The state of the asset '%s' could not be read or stored yet", self._name
                )
            await asyncio.sleep(CHECK_EVERY)


class Watcher:
    """Emits the new forms of one asset of one service, while no other triggerer claims the asset.

    :class:`AssetEvents` makes it, calls :meth:`restore`, subscribes it to a feed, and takes the
    forms of each event from :meth:`events`; once Airflow has stored an event, the trigger calls
    :meth:`confirm`. The feed calls the methods of a :class:`~.subscriber.Subscriber`, which give
    the forms to the tracker and wake :meth:`events`. Everything runs in one event loop.

    It begins as soon as its floor is stored: of ``start_from="now"``, the start of its first poll,
    by the earlier of the service's clock and ours. Before, it takes no form.
    """

    is_wait: ClassVar[bool] = False

    feed: Feed

    def __init__(self, config: WatcherConfig, service: str, store: AssetStore) -> None:
        self.config: WatcherConfig = config
        self.tracker: FormTracker = FormTracker(config.selection(), config.late_by)
        self._store = store
        self._prefix = prefix_for(service)
        self._owner = uuid4().hex
        self._refused_key: str | None = None  # of an entry that a newer version has written
        self._reset: str | None = None  # the last request of ``watermark set`` that it follows
        self._clock = asyncio.get_running_loop().time
        # Polls.
        self._has_begun = False  # the floor is stored
        self._has_service_changed = False  # the connection leads to another service
        # The bound of the last catch-up, where it was a poll of its own; None: it reconciled.
        self._own_poll_since: Time | None = None
        self._reconciled_at = LONG_AGO
        self._polled_at = self._clock()
        # Events.
        self._wake = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._is_stored = True
        self._save_at = LONG_AGO  # as soon as there is a floor
        # What people see, and what they change.
        self._check_at = self._clock() + CHECK_EVERY
        self._failures = 0
        self._logged_at = LONG_AGO
        self._unpolled_since = time.time()
        self._status: dict[str, Any] = {}
        self._emitted_by_day = Counter[str]()
        self._metrics = AirflowMetrics(
            {"connection": config.fsm_conn_id, "asset": config.asset_name}
        )

    # --- what the feed calls ---

    def routing_keys(self) -> list[RoutingKey]:
        return self.config.selection().routing_keys()

    def begin_catch_up(self) -> list[Query]:
        """Close a gap first; without one, reconcile once that is due.

        A reconciliation asks for forms that a phone has synced late. If it fails, it leaves no gap.
        """
        selection = self.config.selection()
        is_reconciliation_due = self._clock() >= self._next_reconciliation()
        if self._has_begun and not self.tracker.has_gap and is_reconciliation_due:
            self._own_poll_since = None
            oldest = self.tracker.since(self.config.late_by)
            by_update = replace(selection, updated_since=oldest)
            by_creation = replace(selection, created_since=oldest)
            return by_update.queries_by_place() + by_creation.queries_by_place()
        since = self.feed.time()
        if self._has_begun:
            since = self.tracker.since(LOOK_BACK)
        self._own_poll_since = since
        return replace(selection, updated_since=since).queries_by_place()

    def check_after(self, now: Time) -> float:
        if self.tracker.has_gap:
            return 0.0
        return max(self._next_reconciliation() - self._clock(), 0.0)

    def _next_reconciliation(self) -> float:
        return self._reconciled_at + self.config.reconcile_every()

    def ingest(self, forms: Iterable[FormVersion]) -> None:
        if self._has_begun:  # what came before, a catch-up brings
            self.tracker.ingest(forms, self.feed.time())

    def on_poll(self, since: Time, started: Time) -> None:
        """Note a complete poll. The start of the first one is the floor of ``now``."""
        self._polled_at = self._clock()
        if "polled_at" not in self._status:  # the first one: whoever looks is told so at once
            self._check_at = LONG_AGO
        if not self.feed.is_failing(self):
            self._failures = 0
            self._logged_at = LONG_AGO
            self._status = {}
        self._status["polled_at"] = time.time()
        self._metrics.incr("watcher.polls", result="complete")
        self._wake.set()
        if self._has_begun:
            self.tracker.record_poll(since, started)
        elif self.tracker.floor is None:
            self.tracker.begin(started)

    def on_catch_up(self, started: Time) -> None:
        if self._own_poll_since is not None:
            self.on_poll(self._own_poll_since, started)
            return
        self._reconciled_at = self._clock()
        self._wake.set()

    def on_failure(self, error: FsmError, since: float) -> None:
        """Log a failure: at once, and every ten minutes."""
        self._failures += 1
        self._status.setdefault("failing_since", time.time())
        self._status["error"] = str(error)
        self._metrics.incr("watcher.polls", result="failed")
        if self._clock() - self._logged_at >= LOG_EVERY:
            self._logged_at = self._clock()
            level = logging.ERROR if error.permanent else logging.WARNING
            watermark = time_of(self.tracker.watermark or None) or "its beginning"
            logger.log(level, FAILED, self.config.asset_name, watermark, error)

    def on_service_changed(self) -> None:
        self._has_service_changed = True
        self._wake.set()

    # --- events ---

    async def events(self) -> AsyncGenerator[list[FormVersion]]:
        """Yield the forms of each event, the next once :meth:`confirm` was called for the last.

        :raises ReplacedError: if the watcher is to begin anew.
        :raises SupersededError: if another triggerer has claimed the asset.
        """
        while True:
            if self._clock() >= self._check_at:
                self._measure()
                await self._check()
                self._check_at = self._clock() + CHECK_EVERY
            if self._has_service_changed:
                raise ReplacedError
            forms = self.tracker.take_event(self.config.max_forms_per_event)
            if forms:
                self._confirmed.clear()
                yield forms
                await self._confirmed.wait()
                await self._record_event(forms)
            elif self.tracker.floor is not None and self._clock() >= self._save_at:
                await self._save()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._check_at - self._clock()):
                        await self._wake.wait()
                self._wake.clear()

    def confirm(self, *, is_stored: bool = True) -> None:
        """Take from Airflow whether the last event is in its database."""
        if not is_stored:
            logger.warning(
                "New forms of the asset '%s' could not be stored, and come again",
                self.config.asset_name,
            )
        self._is_stored = is_stored
        self._confirmed.set()

    async def _record_event(self, forms: list[FormVersion]) -> None:
        await asyncio.sleep(SETTLES)
        if self._is_stored:
            self.tracker.confirm_event(self.feed.time())
            self._metrics.incr("watcher.forms", len(forms))
            today = f"{time_of(time.time()):%F}"
            self._emitted_by_day[today] += len(forms)
            await self._save()
        if self.tracker.pending:
            await asyncio.sleep(EVENT_INTERVAL - SETTLES)

    # --- what is stored ---

    async def restore(self) -> None:
        """Claim the asset, and read what is stored.

        Airflow 3.3 reads None for all keys of an asset that is inactive, but refuses to write one.
        So the claim is written before all is read, and is read after that.

        :raises FsmInputError: if a newer version has written it. Called again, it claims nothing
            before that is gone: the newer version may watch the asset elsewhere.
        """
        if self._refused_key is not None:
            await self._read(self._refused_key)
        await self._read_last_poll()
        await self._claim_or_renew()
        reset = await self._read(RESET)
        stored = await self._read(WATERMARK) or {}
        entries = {}
        for key in (RECENT, *CHUNKS):
            entry = await self._read(key)
            if entry is not None:
                entries[key] = entry
        await self._check_claim()
        self._emitted_by_day = Counter(stored.get("days", {}))
        self._reset = reset["id"] if reset else None
        has_begun = stored.get("floor") is not None or stored.get("watermark") is not None
        if reset and stored.get("reset") != self._reset:
            self.tracker.begin(reset["time"], entries)
        elif has_begun:
            self.tracker.restore(stored, entries)
            self._has_begun = True
        else:
            self.tracker.begin(self.config.first_floor())

    async def _read(self, key: str) -> Any:
        """Return what is stored for this service; refuse what a newer version has written."""
        entry = await self._store.aget(self._prefix + key)
        if entry is not None:
            try:
                refuse_newer(entry, FORMAT, STORED_BY_NEWER)
            except FsmInputError:
                self._refused_key = key
                raise
        self._refused_key = None
        return entry

    async def _read_last_poll(self) -> None:
        """Go on from when the watcher before polled last, or else began."""
        match await self._store.aget(OWNER):
            case [_, _, {"polled_at": float(at)}] | [_, _, {"unpolled_since": float(at)}]:
                if at < self._unpolled_since:  # a task can write it, too
                    self._unpolled_since = at

    async def _claim_or_renew(self) -> None:
        """Claim the asset, and show that this process is alive.

        The last one to claim it watches it.
        """
        backlog = len(self.tracker.pending)
        status = {**self._status, "backlog": backlog, "seen_at": time.time()}
        status["unpolled_since"] = self._unpolled_since
        status["poll_interval"] = self.config.poll_interval  # until it heeds another configuration
        await self._store.aset(OWNER, [self._owner, self._clock(), status])

    async def _check_claim(self) -> None:
        owner = await self._store.aget(OWNER)
        if owner is None or owner[0] != self._owner:
            raise SupersededError

    def _measure(self) -> None:
        self._metrics.gauge("watcher.poll_age", self._clock() - self._polled_at)
        self._metrics.gauge("watcher.poll_interval", self.config.poll_interval)
        self._metrics.gauge("watcher.failures", self._failures)
        self._metrics.gauge("watcher.backlog", len(self.tracker.pending))

    async def _check(self) -> None:
        """Make sure that the watcher is to go on, and renew its claim.

        :raises ReplacedError: if it is to begin anew.
        :raises SupersededError: if another triggerer has claimed the asset.
        """
        try:
            announced = await self._store.aget(CONFIGURATION)
            if announced is not None:
                is_newer = format_of(announced) > FORMAT
                if is_newer or WatcherConfig.from_json(announced) != self.config:
                    raise ReplacedError
            await self._check_claim()
            await self._claim_or_renew()
            reset = await self._read(RESET)
            if reset and reset["id"] != self._reset:
                raise ReplacedError
        except Exception:
            logger.exception(
                "The state of the asset '%s' could not be read", self.config.asset_name
            )

    async def _save(self) -> None:
        """Store what was emitted; if that fails, a later call does.

        The first one stores the floor, from which on forms are taken.
        """
        try:
            await self._check_claim()
            for key, entry in self.tracker.prepare_save(self.feed.time()):
                if key == WATERMARK:
                    days = sorted(self._emitted_by_day.items())[-DAYS:]
                    entry = {**entry, "reset": self._reset, "days": dict(days)}
                await self._store.aset(self._prefix + key, entry)
        except Exception:
            logger.exception(
                "The watermark of the asset '%s' could not be stored yet", self.config.asset_name
            )
            self._save_at = LONG_AGO
            await asyncio.sleep(CHECK_EVERY)
            return
        self.tracker.finish_save()
        self._save_at = self._clock() + self.config.reconcile_every()
        if not self._has_begun:
            self._begin()

    def _begin(self) -> None:
        """Take forms from now on, and ask for those since the floor."""
        self._has_begun = True
        self.feed.catch_up_now(self)


def prefix_for(service: str) -> str:
    """Return the beginning of the keys under which an asset's state of a service is stored."""
    return f"fsm_forms/{digest_for(service, 12)}/"
