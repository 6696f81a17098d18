"""The watcher of one asset in a triggerer: a member of the feed that emits new forms, and stores which."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from uuid import uuid4

from fsm_provider.api.errors import FsmError
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling.feed import Feed
from fsm_provider.polling.polls import Form, Query, Time, time_of
from fsm_provider.polling.tracker import CHUNKS, RECENT, WATERMARK, NewForms
from fsm_provider.polling.watch import Watch, bases_of, first_floor, is_wanted, places_of, reconcile_every
from fsm_provider.state.assets import AssetStore
from fsm_provider.state.task import digest_for

logger: logging.Logger = logging.getLogger(__name__)

OWNER = "fsm_forms/owner"
"""Key of who watches the asset: an identifier, and a number that grows while it does."""
RESET = "reset"
"""Key of the last request of ``watermark set``: an identifier and a time."""
SETTLES = 2.0
"""Seconds after Airflow confirms an event until it counts as stored.

Airflow silently drops an event of a watcher that no asset has any more, confirms it, and then cancels the
watcher: one that is still running has its event in the database.
"""
EVENT_INTERVAL = 15.0
"""Seconds between two events while more forms are pending, in which Airflow starts a run for each.

A DAG run takes the events up to the first for which the scheduler had not made a run yet.
"""
CHECK_EVERY = 15.0
"""Seconds between two looks at the configuration, and at who watches the asset."""
LOG_EVERY = 600.0
"""Seconds between two errors in the log while polls fail."""


class ReplacedError(Exception):
    """What the watcher began with is not so any more: it begins anew from what is stored."""


class SupersededError(Exception):
    """Another triggerer watches the asset."""


class Claim:
    """Of this process on an asset: the last one to claim it watches it.

    :param beats: show that this one is alive, each time that it is checked.
    """

    def __init__(self, store: AssetStore, *, beats: bool) -> None:
        self._store, self._beats = store, beats
        self._owner, self._number = uuid4().hex, 0

    async def take(self) -> None:
        await self._store.aset(OWNER, [self._owner, self._number])

    async def check(self) -> None:
        """Make sure that this process owns the asset.

        :raises SupersededError: if it does not.
        """
        if not (owner := await self._store.aget(OWNER)) or owner[0] != self._owner:
            raise SupersededError
        if self._beats:
            self._number += 1
            await self.take()

    async def until_free(self, silence: float) -> None:
        """Wait until the owner has been silent for some seconds, or does not beat at all."""
        clock = asyncio.get_running_loop().time
        seen, since = None, clock()
        while clock() - since < silence:
            with suppress(Exception):  # away, so that its age is not known
                if (owner := await self._store.aget(OWNER)) != seen:
                    seen, since = owner, clock()
            await asyncio.sleep(CHECK_EVERY)


class Watcher:
    """Emits the new forms of one asset of one service.

    :param service: base URL and account; what is stored is stored for it.
    :param claim: on the asset.
    :param check: raises :class:`ReplacedError` once the configuration is another one.
    :param settles: seconds from :meth:`confirm` until an event counts as stored.
    """

    follows = True

    def __init__(
        self,
        watch: Watch,
        service: str,
        store: AssetStore,
        claim: Claim,
        check: Callable[[], Awaitable[None]],
        settles: float = SETTLES,
    ) -> None:
        self.watch, self._store, self._claim, self._check_configuration = watch, store, claim, check
        self._settles = settles
        self._prefix = prefix_for(service)
        self._bases, self.places = bases_of(watch), places_of(watch)
        self.tracker = NewForms(partial(is_wanted, watch), watch["late_by"])
        self.feed: Feed
        self.due, self.asked = 0.0, 0.0
        self.failing_since: float | None = None
        self._clock = asyncio.get_running_loop().time
        self._polled_at, self._logged_at, self._failures = self._clock(), float("-inf"), 0
        self._reconciled_at = self._saved_at = float("-inf")
        self._answered: dict[Query, Time] = {}
        self._has_begun, self._has_moved = False, False
        self._reset: str | None = None
        self._wake, self._confirmed, self._is_stored = asyncio.Event(), asyncio.Event(), True
        self._metrics = AirflowMetrics(connection=watch["fsm_conn_id"], asset=watch["asset_name"])

    # --- as a member of the feed ---

    def questions(self) -> list[Query]:
        self._answered = {}
        if not self._has_begun:
            return [Query(one.property_id, one.job_id, updated_since=self.feed.time()) for one in self._bases]
        is_due = self._clock() - self._reconciled_at >= reconcile_every(self.watch)
        return self.tracker.questions(self._bases, reconciles=is_due)

    def check_after(self, now: Time) -> float:
        if self.tracker.has_gap:
            return 0.0
        return max(self._reconciled_at + reconcile_every(self.watch) - self._clock(), 0.0)

    def ingest(self, forms: Iterable[Form], *, is_own: bool = False) -> None:
        """Take forms; before the floor is stored none are looked at, a catch-up brings them."""
        if self._has_begun:
            self.tracker.ingest(forms, self.feed.time(), is_own=is_own)

    def polled(self, query: Query, started: Time) -> None:
        """Note a complete poll. The service's time of the first one is the floor of ``now``."""
        self._polled_at = self._clock()
        if self._failures and self.failing_since is None:
            logger.info("Polling for the asset '%s' succeeds again", self.watch["asset_name"])
            self._failures, self._logged_at = 0, float("-inf")
        self._metrics.incr("watcher.polls", result="complete")
        self._wake.set()
        if not self._has_begun:
            if self.tracker.floor is None:
                self.tracker.begin(started)
            return
        self._answered[query] = started
        bound = {"created_since": query.created_since, "updated_since": query.updated_since}
        is_common = query.property_id is None and query.job_id is None
        asked = [Query(one.property_id, one.job_id, **bound) for one in self._bases]
        if not is_common and not all(one in self._answered for one in asked):
            return
        if query.created_since is None:
            earliest = started if is_common else min(self._answered[one] for one in asked)
            self.tracker.polled(query.updated_since, earliest)
        if (query.created_since or 0.0) <= self.tracker.oldest and not query.updated_since:
            self._reconciled_at = self._clock()

    def moved(self, service: str) -> None:
        self._has_moved = True
        self._wake.set()

    def fail(self, error: FsmError, since: float) -> None:
        """Log a failure: at once, and every ten minutes."""
        self._failures += 1
        self._metrics.incr("watcher.polls", result="failed")
        now, name = self._clock(), self.watch["asset_name"]
        if now - self._logged_at < LOG_EVERY:
            return
        is_first, self._logged_at = self._logged_at == float("-inf"), now
        if is_first:
            level = logging.ERROR if error.permanent else logging.WARNING
            logger.log(level, "Polling for the asset '%s' failed, and goes on: %s", name, error)
            return
        failing = timedelta(seconds=round(now - since))
        if not self.tracker.has_gap and self._polled_at >= self.asked:
            logger.error(
                "Late forms of the asset '%s' are not found: polls that go back %s have failed for %s: %s",
                *(name, timedelta(seconds=self.watch["late_by"]), failing, error),
            )
            return
        logger.error(
            "Forms of the asset '%s' may be missing, as polls have failed for %s: %s. They are asked for "
            "again from %s; `python -m fsm_provider watermark set %s` makes it begin later",
            *(name, failing, error, time_of(self.tracker.watermark), name),
        )

    # --- as a trigger ---

    async def restore(self) -> None:
        """Own the asset, and read what is stored.

        For an inactive asset of Airflow 3.3 a read returns None as if nothing were stored, but a write fails:
        so the claim is written first, and read last.
        """
        await self._claim.take()
        self._reset = reset_id(reset := await self._store.aget(self._prefix + RESET))
        stored = await self._store.aget(self._prefix + WATERMARK)
        entries = {}
        if stored is not None:
            for key in (RECENT, *CHUNKS):
                if (entry := await self._store.aget(self._prefix + key)) is not None:
                    entries[key] = entry
        await self._claim.check()
        if reset is not None and (stored is None or stored["reset"] != self._reset):
            self.tracker.begin(reset["time"], entries)
        elif stored is not None:
            self.tracker.restore(stored, entries)
            self._has_begun = True
        elif (floor := first_floor(self.watch)) is not None:
            self.tracker.begin(floor)
        if self.tracker.floor is not None and not self._has_begun:
            await self._write()

    async def events(self) -> AsyncGenerator[list[Form]]:
        """Yield the forms of each event, the next after :meth:`confirm`.

        :raises ReplacedError: if what it began with has changed; what is pending is found again.
        :raises SupersededError: if another triggerer watches the asset.
        """
        check_at = self._clock() + CHECK_EVERY
        while True:
            if self._clock() >= check_at:
                await self._check()
                check_at = self._clock() + CHECK_EVERY
            if self._has_moved:
                raise ReplacedError
            if self.tracker.floor is not None and not self._has_begun:
                await self._save()
            elif forms := self.tracker.next_event(self.watch["max_forms_per_event"]):
                self._confirmed.clear()
                yield forms
                await self._confirmed.wait()
                await asyncio.sleep(self._settles)
                await self._note(len(forms))
                await self._until(EVENT_INTERVAL - self._settles if self.tracker.pending else 0.0)
            elif self._has_begun and self._clock() - self._saved_at >= reconcile_every(self.watch):
                await self._save()
            else:
                await self._until(check_at - self._clock())

    def confirm(self, *, is_stored: bool = True) -> None:
        self._is_stored = is_stored
        self._confirmed.set()

    async def _note(self, number: int) -> None:
        if not self._is_stored:
            logger.warning(
                "%s new forms of the asset '%s' could not be stored; they are emitted again",
                *(number, self.watch["asset_name"]),
            )
            return
        self.tracker.confirm(self.feed.time())
        self._metrics.incr("watcher.forms", number)
        await self._save()

    async def _until(self, seconds: float) -> None:
        """Wait, but while nothing is pending only until the next poll."""
        if self.tracker.pending:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    async def _check(self) -> None:
        """Measure, and make sure that the watcher is to go on."""
        self._metrics.gauge("watcher.poll_age", self._clock() - self._polled_at)
        self._metrics.gauge("watcher.poll_interval", self.watch["poll_interval"])
        self._metrics.gauge("watcher.failures", self._failures)
        self._metrics.gauge("watcher.backlog", len(self.tracker.pending))
        try:
            await self._check_configuration()
            await self._claim.check()
            reset = await self._store.aget(self._prefix + RESET)
        except (ReplacedError, SupersededError):
            raise
        except Exception:
            logger.exception("The state of the asset '%s' could not be read", self.watch["asset_name"])
        else:
            if reset is not None and reset_id(reset) != self._reset:
                raise ReplacedError

    async def _save(self) -> None:
        """Store what was emitted; if that fails, a later call does.

        :raises SupersededError: if another triggerer watches the asset.
        """
        try:
            await self._claim.check()
            await self._write()
        except SupersededError:
            raise
        except Exception:
            logger.exception(
                "The watermark of the asset '%s' could not be stored; it is tried again. Until then a killed "
                "triggerer would emit its last forms twice",
                self.watch["asset_name"],
            )
            self._saved_at = float("-inf")
            await asyncio.sleep(CHECK_EVERY)

    async def _write(self) -> None:
        now = self.feed.time() if hasattr(self, "feed") else self.tracker.floor or 0.0
        for key, entry in self.tracker.to_store(now):
            value = {**entry, "reset": self._reset} if key == WATERMARK else entry
            await self._store.aset(self._prefix + key, value)
        self.tracker.stored()
        self._saved_at = self._clock()
        if not self._has_begun:
            self._has_begun, self.due = True, self._clock()


def prefix_for(service: str) -> str:
    return f"fsm_forms/{digest_for(service, 12)}/"


def reset_id(reset: dict[str, str] | None) -> str | None:
    return None if reset is None else reset["id"]
