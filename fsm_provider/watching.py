"""What stands behind the watcher of an asset of completed forms. Needs Airflow 3.3."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Unpack

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from fsm_provider.api.forms import FormFilter, Reference
from fsm_provider.api.news import WATERMARK, FormNews
from fsm_provider.compat import asset_state_store
from fsm_provider.digest import digest_of
from fsm_provider.polling import FormPoller, Outage, follow

if TYPE_CHECKING:
    from fsm_provider.triggers.forms import FormWatch

logger: logging.Logger = logging.getLogger(__name__)

MOST_FORMS = 100
"""References in one event."""
BETWEEN_EVENTS = 15.0
"""Seconds between two events of one sweep.

A DAG run takes the events up to the first that the scheduler had not made a run of yet; those after it
wait for the next event. So the scheduler is given the time to make a run of each.
"""
SAVE_EVERY = 60.0
"""Seconds, at least, between two writes of a watermark that moved without news."""
LONGEST_PAUSE = 30.0
"""Seconds, at most, between two attempts to read the state store."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one event tells of.

    :param last: no other event of its sweep follows.
    """

    references: list[Reference]
    last: bool


class FormEventProducer(SharedStreamProducer):
    """Sweeps for new forms, one event at a time: the next is sent once the one before it is stored.

    No error ends it: it tries again, and reads the connection again after one that a change of the
    connection can mend. Killed at any moment and started again it tells of every form; of those in an
    event that was stored just before, a second time. The parameters are those of
    :class:`~fsm_provider.triggers.forms.FsmFormEventTrigger`.
    """

    def __init__(self, **watch: Unpack[FormWatch]) -> None:
        self._interval = watch["poll_interval"]
        self._poller = FormPoller(watch["fsm_conn_id"], watch["query_params"])
        self._news = FormNews(
            FormFilter(**watch["filters"]),
            form_names=watch["form_names"],
            start_from=watch["start_from"],
            look_back=timedelta(seconds=watch["look_back"]),
            reconcile_back=timedelta(seconds=watch["reconcile_back"]),
            reconcile_every=watch["reconcile_every"],
        )
        self._store = asset_state_store(watch["asset_name"])
        # Another question is another watermark; another pace is not.
        question = [watch["fsm_conn_id"], watch["filters"], watch["form_names"], watch["query_params"]]
        self._prefix = f"fsm_forms/{digest_of(question, 12)}/"
        self._asset_name = watch["asset_name"]
        self._saved_at: float | None = None
        self._answered = asyncio.Event()
        self._accepted = True

    async def open_stream(self) -> AsyncGenerator[tuple[list[Reference], Told], None]:
        """Yield the new forms of each sweep, in events of at most :data:`MOST_FORMS`."""
        await self._restore()
        sweeps = follow(
            self._poller,
            next_sweep=lambda now: self._news.next_sweep(now, datetime.now(UTC)),
            take=self._news.take,
            interval=self._interval,
            first_after=0.0,
        )
        async with aclosing(sweeps):
            async for new in sweeps:
                if isinstance(new, Outage):
                    continue
                if not new:
                    self._news.close()
                    await self._save(in_a_hurry=False)
                for start in range(0, len(new), MOST_FORMS):
                    if start:
                        await asyncio.sleep(BETWEEN_EVENTS)
                    told = Told(new[start : start + MOST_FORMS], last=start + MOST_FORMS >= len(new))
                    self._answered.clear()
                    yield told.references, told
                    await self._answered.wait()
                    if not self._accepted:
                        logger.warning(
                            "%s new forms of the asset '%s' could not be stored and are told again",
                            len(new) - start,
                            self._asset_name,
                        )
                        break

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Note that events are in Airflow's database, or that they are not."""
        for told, outcome in batch:
            self._accepted = outcome.is_clean
            if outcome.is_clean:
                self._news.accept(told.references)
                if told.last:
                    self._news.close()
        if self._accepted:
            await self._save()
        self._answered.set()

    async def aclose(self) -> None:
        """Close the connections."""
        self._poller.close()

    async def _restore(self) -> None:
        pause = 1.0
        while True:
            try:
                # Of an asset that is not active reading gives nothing, as where nothing was stored.
                await self._store.aset(f"{self._prefix}opened", datetime.now(UTC).isoformat())
                watermark = await self._store.aget(self._prefix + WATERMARK)
                if watermark is not None:
                    names = watermark["pieces"]
                    pieces = {name: await self._store.aget(self._prefix + name) or {} for name in names}
                    self._news.restore(watermark, pieces)
            except Exception:
                logger.exception(
                    "The watermark of the asset '%s' could not be read; trying again in %g s",
                    self._asset_name,
                    pause,
                )
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _save(self, *, in_a_hurry: bool = True) -> None:
        """Store what is known; what could not be stored is stored the next time."""
        now = asyncio.get_running_loop().time()
        if not in_a_hurry and self._saved_at is not None and now - self._saved_at < SAVE_EVERY:
            return
        watermark, changed, gone = self._news.to_store()
        try:
            for name, seen in changed.items():
                await self._store.aset(self._prefix + name, seen)
            await self._store.aset(self._prefix + WATERMARK, watermark)
            for name in gone:
                await self._store.adelete(self._prefix + name)
        except Exception:
            logger.exception(
                "The watermark of the asset '%s' could not be stored; that is tried again after the next "
                "sweep, and until then a killed triggerer would tell of its last forms twice",
                self._asset_name,
            )
            self._saved_at = None
        else:
            self._news.stored()
            self._saved_at = now
