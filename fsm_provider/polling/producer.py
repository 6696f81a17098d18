"""The event producer behind the watcher of an asset of completed forms."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from fsm_provider.api.form_filter import FormReference
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling.configurations import CONFIGURATIONS, INTERVAL, Configuration, until_stored
from fsm_provider.polling.new_forms import WATERMARK
from fsm_provider.polling.poller import PollFailure
from fsm_provider.polling.replays import Replay, requested_replay
from fsm_provider.polling.shared_polls import PollMember, shared_polls
from fsm_provider.polling.stored_trackers import prefix_for, restore, tracker_for
from fsm_provider.polling.watch import event_for, filter_from
from fsm_provider.state.assets import AssetClaimedError, AssetStore
from fsm_provider.state.digest import digest_for

if TYPE_CHECKING or AIRFLOW_V_3_3_PLUS:
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
else:
    SharedStreamProducer = object

if TYPE_CHECKING:
    from fsm_provider.polling.old_polls import PollQuery, PollResult
    from fsm_provider.polling.watch import FormWatch

logger: logging.Logger = logging.getLogger(__name__)

EVENT_INTERVAL = 15.0
"""Seconds between two events while more forms are pending.

A DAG run takes the events up to the first for which the scheduler had not created a run yet; later events
wait for the next one. The interval gives the scheduler time to create a run for each.
"""
CONFIRMATION_DELAY = 2.0
"""Seconds after Airflow confirms an event until it counts as stored.

Airflow silently drops an event of a watcher that no asset has any more, and cancels the watcher with the
same message, or with the one a second later: a watcher that is still running has its event in the database.
"""
CHECK_INTERVAL = 15.0
"""Seconds, at least, between two checks for another configuration; also during a pause between two polls."""
DEFAULT_INTERVAL, WAIT_FOR_INTERVAL = 60.0, 10
"""Seconds: the interval if two DAGs disagree about it, and how long to wait for one before assuming that."""
ERROR_INTERVAL = 600.0
"""Seconds between two errors in the log while polls fail, or the configuration cannot be read."""
BEGAN = "fsm_forms/began"
"""Key of the time when the asset was first watched."""
SAVE_INTERVAL = 60.0
"""Seconds, at least, between two writes of a watermark that moved without new forms."""


class _ReplacedError(Exception):
    """The asset has another configuration than the one in use, or another replay is requested."""


class FormEventProducer(SharedStreamProducer):
    """Polls for new forms, and emits one event at a time: the next after the one before is stored.

    Polls go on while events are emitted.

    It ends only if another triggerer claims the asset. After any other error it retries, and reads the
    connection again if a changed one can help. Killed or cancelled at any time and restarted, it still emits
    every form, and a second time the forms of an event that was stored just before.

    :param asset_name: the asset whose store holds the configuration and the watermark.
    :param store: that store.
    :param confirmation_delay: seconds after :meth:`advance` until an event counts as stored.
    """

    def __init__(
        self,
        asset_name: str,
        store: AssetStore,
        *,
        confirmation_delay: float = CONFIRMATION_DELAY,
    ) -> None:
        self._asset_name = asset_name
        self._until_stored = partial(until_stored, store, asset_name)
        self._store = store
        self._confirmation_delay = confirmation_delay
        self._began = 0.0
        self._check_at = 0.0
        self._unreadable_shown_at = -math.inf
        self._interval = DEFAULT_INTERVAL
        self._polled = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._is_stored = True

    async def open_stream(self) -> AsyncGenerator[tuple[dict[str, Any], None], None]:
        """Yield events: new forms, at most ``max_forms_per_event``, and their question."""
        self._opened_at = datetime.now(UTC)
        self._failing_since: float | None = None
        self._error_shown_at = 0.0
        self._failures, self._polled_at = 0, asyncio.get_running_loop().time()
        while True:
            watch = await self._next_configuration()
            await self._until_stored("The beginning", partial(self._note_beginning, watch))
            self._configure(watch)
            await self._until_stored("The watermark", self._restore)
            try:
                async with self._polling(), aclosing(self._events()) as events:
                    async for references in events:
                        yield event_for(self._watch, references), None
            except _ReplacedError:
                logger.info(
                    "The asset '%s' has another configuration, or a replay is requested: its watermark is "
                    "read again",
                    self._asset_name,
                )
                self._opened_at = datetime.now(UTC)

    async def _note_beginning(self, watch: FormWatch) -> None:
        """Note when the asset's first poll of a connection was due."""
        key = f"{BEGAN}/{digest_for(watch['fsm_conn_id'], 12)}"
        if (began := await self._store.aget(key)) is None:
            await self._store.aset(key, began := self._opened_at.isoformat())
        since = datetime.now(UTC) - datetime.fromisoformat(began)
        self._began = asyncio.get_running_loop().time() - since.total_seconds()

    def _configure(self, watch: FormWatch) -> None:
        self._watch = watch
        self._prefix = prefix_for(watch)
        self._saved_at: float | None = None
        self._metrics = AirflowMetrics(connection=watch["fsm_conn_id"], asset=self._asset_name)
        self._tracker = tracker_for(watch, self._began)

    async def _next_configuration(self) -> FormWatch:
        """Wait for what :func:`announce` stores, and briefly for what :func:`announce_interval` stores."""
        waited = 0
        while True:
            if found := await self._read_configuration():
                watch, interval, _ = found
                if watch and (interval or waited >= WAIT_FOR_INTERVAL):
                    self._interval = interval or DEFAULT_INTERVAL
                    return watch
            if found and waited % 60 == 59:
                logger.error(
                    "The asset '%s' has no configuration yet, so no form is emitted. If two DAGs define it "
                    "with different filters, Airflow alternates between them: import the asset from one "
                    "module, or give one of them another name",
                    self._asset_name,
                )
            waited += 1
            await asyncio.sleep(1.0)

    async def _check_configuration(self) -> None:
        """Check for another configuration or a replay, at most once in :data:`CHECK_INTERVAL`.

        :raises _ReplacedError: if there is one.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._check_at:
            self._check_at = now + CHECK_INTERVAL
            if found := await self._read_configuration():
                watch, interval, replay = found
                current = watch or self._watch, interval or self._interval, replay or self._replay
                if current != (self._watch, self._interval, self._replay):
                    raise _ReplacedError

    async def _read_configuration(self) -> tuple[FormWatch | None, float | None, Replay | None] | None:
        """Return the configuration, interval and replay that are stored; None if they cannot be read."""
        try:
            known: list[Configuration] = await self._store.aget(CONFIGURATIONS) or []
            interval: float | None = await self._store.aget(INTERVAL)
            watch = known[-1]["watch"] if known else None
            return watch, interval, watch and await requested_replay(watch, self._store)
        except Exception:
            now = asyncio.get_running_loop().time()
            if now - self._unreadable_shown_at >= ERROR_INTERVAL:
                self._unreadable_shown_at = now
                logger.exception(
                    "The configuration of the asset '%s' could not be read; the watcher tries again",
                    self._asset_name,
                )
            return None

    def _polling(self) -> AbstractAsyncContextManager[None]:
        """Poll while the body runs, in a task that assets share."""
        member = PollMember(
            next_query=lambda now: self._tracker.next_query(now, datetime.now(UTC)),
            ingest=self._ingest,
            fail=self._note_failure,
        )
        return shared_polls(
            member,
            fsm_conn_id=self._watch["fsm_conn_id"],
            query_params=self._watch["query_params"],
            wanted=filter_from(self._watch),
            interval=self._interval,
        )

    def _ingest(self, query: PollQuery, result: PollResult, now: float) -> None:
        if self._failing_since is not None:
            logger.info("Polling for the asset '%s' succeeds again", self._asset_name)
            self._failing_since = None
        self._failures, self._polled_at = 0, now
        self._metrics.incr("watcher.polls", result="complete")
        self._tracker.ingest(query, result, now)
        self._polled.set()

    def _note_failure(self, failure: PollFailure) -> None:
        now, error = asyncio.get_running_loop().time(), failure.error
        if not failure.reminder:
            self._failures += 1
            self._metrics.incr("watcher.polls", result="failed")
        if self._failing_since is None:
            self._failing_since = self._error_shown_at = now
            level = logging.ERROR if error.permanent else logging.WARNING
            logger.log(level, "Polling for the asset '%s' failed, and goes on: %s", self._asset_name, error)
        elif now - self._error_shown_at >= ERROR_INTERVAL:
            self._error_shown_at = now
            failing = timedelta(seconds=round(now - self._failing_since))
            logger.error(
                "No form of the asset '%s' is emitted, as polls have failed for %s: %s",
                *(self._asset_name, failing, error),
            )

    def _measure(self) -> None:
        self._metrics.gauge("watcher.poll_age", asyncio.get_running_loop().time() - self._polled_at)
        self._metrics.gauge("watcher.poll_interval", self._interval)
        self._metrics.gauge("watcher.failures", self._failures)
        self._metrics.gauge("watcher.backlog", self._tracker.pending)

    async def _events(self) -> AsyncGenerator[list[FormReference], None]:
        """Yield the forms of each event, and record each event that Airflow has stored.

        :raises _ReplacedError: once there is another configuration; what is pending is found again.
        """
        self._check_at = asyncio.get_running_loop().time() + CHECK_INTERVAL
        while True:
            await self._check_configuration()
            self._measure()
            if self._polled.is_set():
                self._polled.clear()
                await self._save(throttled=True)
            if not (references := self._tracker.next_event(self._watch["max_forms_per_event"])):
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_INTERVAL):
                        await self._polled.wait()
                continue
            self._confirmed.clear()
            yield references
            await self._confirmed.wait()
            await asyncio.sleep(self._confirmation_delay)
            if self._is_stored:
                self._tracker.record()
                self._metrics.incr("watcher.forms", len(references))
                await self._save()
            else:
                logger.warning(
                    "%s new forms of the asset '%s' could not be stored; they are emitted again",
                    len(references),
                    self._asset_name,
                )
            if self._tracker.pending:
                await asyncio.sleep(EVENT_INTERVAL - self._confirmation_delay)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Note whether Airflow has stored the pending event."""
        self._is_stored = all(outcome.is_clean for _, outcome in batch)
        self._confirmed.set()

    async def _restore(self) -> None:
        self._replay = await restore(self._tracker, self._watch, self._store)

    async def _save(self, *, throttled: bool = False) -> None:
        """Store what was emitted; if that fails, or is throttled after a recent write, the next call does.

        :raises AssetClaimedError: if another triggerer watches the asset meanwhile.
        """
        now = asyncio.get_running_loop().time()
        if throttled and self._saved_at is not None and now - self._saved_at < SAVE_INTERVAL:
            return
        watermark, changed, gone = self._tracker.to_store()
        try:
            for name, seen in changed.items():
                await self._store.aset(self._prefix + name, seen)
            await self._store.aset(self._prefix + WATERMARK, watermark)
            for name in gone:
                await self._store.adelete(self._prefix + name)
        except AssetClaimedError:
            raise
        except Exception:
            logger.exception(
                "Could not store the watermark of the asset '%s'; the next attempt is after the next poll. "
                "Until then a killed triggerer would emit its last forms twice",
                self._asset_name,
            )
            self._saved_at = None
        else:
            self._tracker.stored()
            self._saved_at = now
