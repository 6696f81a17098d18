"""A triggerer with the triggers of one asset, as Airflow 3.3 runs them, and as 3.0 to 3.2 do."""

import asyncio
from contextlib import asynccontextmanager

from fsm_provider.api import Settings
from fsm_provider.assets.forms import completed_forms
from fsm_provider.polling.tracker import CHUNKS, RECENT
from fsm_provider.polling.watcher import prefix_for
from fsm_provider.triggers import forms as triggers

NAME = "records"


def prefix_of(service):
    """Return the beginning of the keys under which an asset's state of a fake service is stored."""
    settings = Settings.parse({"base_url": service.base_url, "token": "x"})
    return prefix_for(settings.service)


def rebuilt(trigger):
    """A trigger as the triggerer makes it of what is in Airflow's database."""
    _, kwargs = trigger.serialize()
    return type(trigger)(**kwargs)


class Watching:
    """A triggerer. Its events are in Airflow's database at once, or once ``store`` is called.

    :ivar events: the forms in each event, as they come.
    """

    def __init__(self, polls, recorded, settings, stored_at_once, name, trigger_id):
        self.polls = polls
        self.recorded = recorded
        self.events = []
        self.stored = asyncio.Event()
        self.trigger_id = trigger_id
        self.stored_at_once = stored_at_once
        asset = completed_forms(name, **{"poll_interval": 1, **settings})
        watcher, configuration_watcher = asset.watchers
        self.trigger = rebuilt(watcher.trigger)
        configuration = rebuilt(configuration_watcher.trigger)
        self.tasks = [
            asyncio.create_task(self._run()),
            asyncio.create_task(anext(configuration.run())),
        ]

    @property
    def forms(self):
        return [form for event in self.events for form in event]

    def configure(self, **settings):
        """Edit the asset."""
        _, configuration = completed_forms(NAME, **{"poll_interval": 1, **settings}).watchers
        self.tasks[1].cancel()
        self.tasks.append(asyncio.create_task(anext(configuration.trigger.run())))

    async def polled(self, times=3):
        """Wait until the service has been asked so often more."""
        seen = self.polls()
        await self.until(lambda: self.polls() >= seen + times)

    async def until(self, predicate, seconds=2000.0):
        async with asyncio.timeout(seconds):
            while not predicate():
                assert not self.tasks[0].done(), self.tasks[0].exception()
                await asyncio.sleep(0.1)

    async def settle(self):
        """Wait until the forms of all events are recorded, and some seconds for the watermark."""
        while not {*self.forms} <= await self.recorded():
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)

    async def kill(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _take(self, event):
        self.events.append([form["id"] for form in event.payload["forms"]])


class Acknowledging(Watching):
    """Airflow 3.3: a shared stream, which is told once an event is in the database."""

    def __init__(self, *arguments):
        from airflow.triggers import shared_stream

        self.manager = shared_stream.SharedStreamManager(ack_timeout=60.0)
        self.seqs = []
        super().__init__(*arguments)

    async def _run(self):
        key = self.trigger.shared_stream_key()
        stream = self.manager.subscribe(trigger_id=self.trigger_id, trigger=self.trigger, key=key)
        async for event in self.trigger.filter_shared_stream(stream):
            self.seqs.append(self.manager.bind_pending_event(trigger_id=self.trigger_id, key=key))
            self._take(event)
            if self.stored_at_once:
                self.store()

    def store(self):
        self.manager.confirm_persisted(self.seqs)
        self.seqs.clear()

    async def kill(self):
        await super().kill()
        await self.manager.stop_all()


class Restarting(Watching):
    """Airflow 3.0 to 3.2: a trigger ends with its event, and starts again once that is stored."""

    async def _run(self):
        while True:
            trigger = rebuilt(self.trigger)
            trigger.trigger_id = self.trigger_id
            async for event in trigger.run():
                self._take(event)
            if not self.stored_at_once:
                await self.stored.wait()
                self.stored.clear()

    def store(self):
        self.stored.set()

    async def kill(self):
        await super().kill()
        for key in list(triggers._ended):
            trigger_id, _ = key
            if trigger_id == self.trigger_id:
                ended = triggers._ended.pop(key)
                ended.closing.cancel()
                await ended.events.aclose()


KINDS = {"acknowledged": Acknowledging, "restarted": Restarting}


class Triggerers:
    """Runs watchers; what they store is that of the asset.

    :ivar kind: ``acknowledged`` or ``restarted``.
    """

    def __init__(self, kind, service):
        self.kind = kind
        self.service = service

    def polls(self):
        """Count what the service has answered."""
        return len([request for request in self.service.requests if request.status == 200])

    async def recorded(self):
        """Return the forms of the service that are stored as emitted."""
        prefix = prefix_of(self.service)
        forms = set()
        for key in (RECENT, *CHUNKS):
            entry = await self.store().aget(prefix + key) or {}
            forms.update(int(name) for name in entry if name.isdecimal())
        return forms

    @asynccontextmanager
    async def watching(self, stored_at_once=True, name=NAME, trigger_id=1, polls=3, **settings):
        """Watch an asset: it has begun, and polled so often."""
        running = KINDS[self.kind](
            self.polls, self.recorded, settings, stored_at_once, name, trigger_id
        )
        try:
            await running.polled(polls)
            yield running
        finally:
            await running.kill()

    def store(self):
        return triggers._asset_events(NAME, "fsm_default")._store
