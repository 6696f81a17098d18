"""The producer of an asset's events without a triggerer, on any store; each event is stored at once."""

import asyncio
import json
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from itertools import count

from fsm_provider.assets.forms import completed_forms
from fsm_provider.polling.configurations import CONFIGURATIONS, INTERVAL
from fsm_provider.polling.new_forms import WATERMARK
from fsm_provider.polling.producer import FormEventProducer
from fsm_provider.polling.replays import REPLAY, Replay
from fsm_provider.polling.stored_trackers import prefix_for
from tests.unit.clocks import run_hurried

NAME = "records"
HURRY = 200.0


class Killed(BaseException):
    """The process is killed."""


class MemoryStore:
    """Keeps JSON values.

    :ivar values: each as text, by its key.
    :ivar writes: how many there were.
    :ivar kill_at: the process is killed before this one.
    """

    def __init__(self):
        self.values, self.writes, self.kill_at = {}, 0, None

    async def aget(self, key):
        return json.loads(self.values[key]) if key in self.values else None

    async def aset(self, key, value):
        self._write()
        self.values[key] = json.dumps(value)

    async def adelete(self, key):
        self._write()
        self.values.pop(key, None)

    def _write(self):
        self.writes += 1
        if self.writes == self.kill_at:
            raise Killed


async def configure(store, **settings):
    """Make this configuration the current one."""
    asset = completed_forms(NAME, **settings)
    watch = json.loads(asset.watchers[1].trigger.serialize()[1]["watch"])
    known = [one for one in await store.aget(CONFIGURATIONS) or [] if one["watch"] != watch]
    await store.aset(CONFIGURATIONS, [*known, {"watch": watch, "at": datetime.now(UTC).isoformat()}])
    await store.aset(INTERVAL, 10.0)


def request(store, since, until=None, conn_id="fsm_default"):
    """Store a request; return its identifier."""
    replay = Replay(f"{since} {until}", conn_id, since, until)
    store.values[REPLAY] = json.dumps(replay.as_dict())
    return replay.id


async def is_recorded(store, forms, replayed):
    """Return whether all events are recorded, these forms, and a replay if given."""
    prefix = prefix_for((await store.aget(CONFIGURATIONS))[-1]["watch"])
    if (watermark := await store.aget(prefix + WATERMARK)) is None or "polled" in watermark:
        return False
    chunks = [await store.aget(prefix + key) or {} for key in watermark["pieces"]]
    recorded = {int(form) for chunk in chunks for form in chunk}
    return forms <= recorded and replayed in (None, watermark.get("replayed"))


def emit(store, expected, *, replayed=None, kill_after=None, **settings):
    """Run a watcher until these forms were emitted, and all is recorded; return the forms of all events.

    :param replayed: the replay that has to be recorded, too.
    :param kill_after: the process is killed after so many events, before the last is recorded.
    :raises Killed: with the forms of all events, if the process is killed.
    """
    forms, expected = [], set(expected)

    async def produce():
        producer = FormEventProducer(NAME, store, confirmation_delay=0.0)
        async with aclosing(producer.open_stream()) as events:
            for number in count(1):
                event, _ = await anext(events)
                forms.extend(form["id"] for form in event["forms"])
                if number == kill_after:
                    raise Killed
                await producer.advance([])

    async def run():
        if settings:
            await configure(store, **settings)
        producing = asyncio.create_task(produce())
        try:
            async with asyncio.timeout(5000):
                while not (expected <= set(forms) and await is_recorded(store, expected, replayed)):
                    if producing.done():
                        producing.result()
                    await asyncio.sleep(0.5)
        finally:
            producing.cancel()
            with suppress(asyncio.CancelledError, Killed):
                await producing

    try:
        run_hurried(run(), HURRY)
    except Killed:
        raise Killed(forms) from None
    return forms
