"""A watcher of an asset, on the shared streams of Airflow's triggerer, with a fake state store."""

import asyncio
from contextlib import asynccontextmanager

from tests.capabilities import SHARED_STREAMS

SHARED_STREAMS.require()

from airflow.triggers import shared_stream  # noqa: E402

from fsm_provider.assets.forms import completed_forms  # noqa: E402
from tests.unit.supervisor import MemorySupervisor  # noqa: E402

NAME = "records"


class Supervisor(MemorySupervisor):
    """The triggerer's other end."""

    @property
    def watermark(self):
        """The stored watermark, None if there is none."""
        stored = [
            value["moment"] for (_, key), value in self.asset_state.items() if key.endswith("/watermark")
        ]
        return max(filter(None, stored), default=None)

    @property
    def watermarks(self):
        """How many watermarks are stored."""
        return sum(key.endswith("/watermark") for _, key in self.asset_state)


class Watching:
    """A triggerer with one watcher. Its events are in the database once ``store`` is called.

    :ivar events: the identifiers of the forms in each event, as they come.
    """

    def __init__(self, settings, stored_at_once, name):
        self.manager = shared_stream.SharedStreamManager(ack_timeout=60.0)
        self.events, self.seqs, self.stored_at_once = [], [], stored_at_once
        asset = completed_forms(name, **{"poll_interval": 1, **settings})
        triggers = [watcher.trigger for watcher in asset.watchers]
        self.trigger, *others = [type(one)(**one.serialize()[1]) for one in triggers]
        self.task = asyncio.create_task(self._run())
        self.others = [asyncio.create_task(anext(one.run())) for one in others]

    async def _run(self):
        key = self.trigger.shared_stream_key()
        stream = self.manager.subscribe(trigger_id=1, trigger=self.trigger, key=key)
        async for event in self.trigger.filter_shared_stream(stream):
            self.seqs.append(self.manager.bind_pending_event(trigger_id=1, key=key))
            self.events.append([form["id"] for form in event.payload["forms"]])
            if self.stored_at_once:
                self.store()

    @property
    def forms(self):
        return [form for event in self.events for form in event]

    def store(self):
        self.manager.confirm_persisted(self.seqs)
        self.seqs.clear()

    async def until(self, predicate, seconds=2000.0):
        async with asyncio.timeout(seconds):
            while not predicate():
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.1)

    async def kill(self):
        self.task.cancel()
        for other in self.others:
            other.cancel()
        await asyncio.gather(self.task, *self.others, return_exceptions=True)
        await self.manager.stop_all()


@asynccontextmanager
async def watching(stored_at_once=True, name=NAME, **settings):
    running = Watching(settings, stored_at_once, name)
    try:
        yield running
    finally:
        await running.kill()
