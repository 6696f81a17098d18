"""Days of a service and an Airflow in virtual time, on the package's own feed, waits, tracker and
watcher.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter, defaultdict
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from weakref import WeakKeyDictionary

from fsm_provider.api import errors
from fsm_provider.polling import feed, watcher
from fsm_provider.polling.feed import subscribe
from fsm_provider.polling.lister import Source
from fsm_provider.polling.polls import (
    BEGINNING,
    Criteria,
    FormSelection,
    FormVersion,
    ListingResult,
    Query,
)
from fsm_provider.polling.tracker import WATERMARK
from fsm_provider.polling.waits import Wait, WaitState
from fsm_provider.polling.watcher import AssetEvents
from fsm_provider.polling.watcher_config import WatcherConfig

HOUR, DAY = 3600.0, 86_400.0
BASE = 1_000 * DAY
NAMES = ["Gas", "Boiler", "Service", "Risk"]
ONE, TWO = "https://one", "https://two"
ERRORS = {
    "400": errors.FsmBadRequestError,
    "403": errors.FsmForbiddenError,
    "429": errors.FsmRateLimitedError,
    "500": errors.FsmServerError,
}
process = ContextVar("process", default=None)
"""The triggerer that a task belongs to."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer."""

    def __init__(self):
        super().__init__()
        self._at = 0.0
        self._selector.select = self._select

    def time(self):
        return self._at

    def _select(self, timeout=None):
        assert timeout is not None, "nothing is left to wait for"
        self._at += max(timeout, 0.0)
        return []


def error(kind):
    return ERRORS[kind[:3]](int(kind[:3]), "GET", "/forms", kind)


def matches(query, form):
    """Return whether a service lists a form for a query."""
    return FormSelection(
        property_ids=[query.property_id] if query.property_id else [],
        job_ids=[query.job_id] if query.job_id else [],
        created_since=query.created_since,
        updated_since=query.updated_since,
    ).matches(form)


class Service:
    """Forms that appear, change, move and go.

    :ivar log: when something is visible, of what id, and the form, None once it is gone.
    :ivar refuses: of listings of the whole account, when, and how.
    :ivar poison: a form that cannot be listed, and when.
    :ivar others: the log of another service, where the connection leads from ``moves_at`` on.
    """

    def __init__(self, rng, **options):
        self.rng, self.log, self.others = rng, [], []
        self.latency, self.page, self.lag = 0.05, 100, 0.0
        self.leaves_nulls_out = self.wrong_totals = self.is_live = False
        self.refuses, self.poison, self.moves_at = [], None, float("inf")
        self.slow_until = float("-inf")
        self.listings, self.interval, self.clock_error = 0, 120.0, 0.0
        vars(self).update(options)

    @property
    def url(self):
        return ONE if self.now() < self.moves_at else TWO

    def now(self):
        return BASE + asyncio.get_running_loop().time()

    def ready(self):
        self._cursors = {
            (url, which): [0, {}, None] for url in (ONE, TWO) for which in ("main", "replica")
        }
        for log in (self.log, self.others):
            log.sort(key=lambda one: one[0])

    def state(self, at, which="main", url=None):
        url = url or self.url
        log, cursor = (self.log if url == ONE else self.others), self._cursors[url, which]
        while cursor[0] < len(log) and log[cursor[0]][0] <= at:
            _, identifier, form = log[cursor[0]]
            cursor[0] += 1
            cursor[2] = None
            if form is None:
                cursor[1].pop(identifier, None)
            else:
                cursor[1][identifier] = form
        if cursor[2] is None:
            cursor[2] = sorted(cursor[1].values(), key=lambda form: (form.time or 0.0, form.id))
        return cursor[2]

    def shows(self, query, form):
        is_by_update = query.updated_since > BEGINNING
        hidden = self.leaves_nulls_out and is_by_update and form.updated is None
        return matches(query, form) and not hidden

    async def list_forms(self, query):
        self.listings += 1
        which = "replica" if self.lag and self.rng.random() < 0.5 else "main"
        forms, started, rows, url = [], None, None, self.url
        while True:
            slow = 20.0 if self.now() < self.slow_until else 1.0
            await asyncio.sleep(self.latency * slow * self.rng.uniform(0.5, 1.5))
            now = self.now()
            for begins, ends, kind in self.refuses:
                is_common = query.property_id is None and query.job_id is None
                if begins <= now < ends and (
                    kind == "429" or (is_common and (kind != "500 later" or forms))
                ):
                    raise error(kind)
            started = now if started is None else started
            if rows is None or self.is_live:
                lag = self.lag if which == "replica" else 0.0
                rows = [
                    form for form in self.state(now - lag, which, url) if self.shows(query, form)
                ]
            page = rows[len(forms) : len(forms) + self.page]
            is_poisoned = self.poison and self.poison[1] <= now < self.poison[2]
            if is_poisoned and any(form.id == self.poison[0] for form in page):
                raise error("500")
            forms += page
            if len(forms) >= len(rows) or not page:
                return ListingResult(forms, started, len(rows) + 3 * self.wrong_totals, url)


class Store:
    """What is stored with an asset: slow; what is begun as the triggerer is killed may be written
    or not.

    :ivar fails: when reads and writes fail.
    """

    def __init__(self, rng, events):
        self.rows, self.rng, self.events, self.fails = {}, rng, events, []
        self.reads = self.writes = self.max_in_save = self.in_save = 0
        self.floors, self.max_reads = {}, 0

    async def aget(self, key):
        await self._pause()
        self.reads += 1
        if key == watcher.OWNER:
            self.in_save = 0
        return json.loads(self.rows[key]) if key in self.rows else None

    async def aset(self, key, value):
        await self._pause()
        self.rows[key] = json.dumps(value)
        self.writes += 1
        self.in_save += 1
        if key.endswith("/" + WATERMARK):
            prefix = key.removesuffix(WATERMARK)
            self.floors.setdefault(prefix, value["floor"])
            stored = [json.loads(row) for one, row in self.rows.items() if one.startswith(prefix)]
            for event in self.events:
                if event.is_acked and event.recorded_at == float("inf"):
                    keys = [(str(form.id), form.version) for form in event.forms]
                    if all(
                        any(version in dict(row.get(one, [])) for row in stored)
                        for one, version in keys
                    ):
                        event.recorded_at = asyncio.get_running_loop().time()
            self.max_in_save = max(self.max_in_save, self.in_save)
        await asyncio.sleep(0.001)

    async def _pause(self):
        await asyncio.sleep(self.rng.uniform(0.005, 0.06))
        now = asyncio.get_running_loop().time()
        if any(begins <= now < ends for begins, ends in self.fails):
            raise OSError("the store is away")


class Event:
    def __init__(self, forms, at):
        self.forms, self.at, self.is_acked, self.recorded_at = forms, at, False, float("inf")


class Asset:
    """A watcher's definition, its store and its events."""

    def __init__(self, rng, name="asset", *, ack_lost=0.0, **watch):
        self.config = WatcherConfig(
            asset_name=name,
            fsm_conn_id="fsm",
            filters={},
            property_ids=[],
            job_ids=[],
            form_names=[],
            query_params=None,
            poll_interval=120.0,
            max_forms_per_event=100,
            start_from="now",
            late_by=7 * DAY,
        )
        self.config = replace(self.config, **watch)
        self.events = []
        self.rng, self.store, self.ack_lost = rng, Store(rng, self.events), ack_lost
        self.emitting = asyncio.Event()

    def wants(self, form):
        return self.config.selection().matches(form)

    def stored(self, url, key=WATERMARK):
        row = self.store.rows.get(watcher.prefix_for(url) + key)
        return json.loads(row) if row else None

    def watching(self):
        return AssetEvents(self.config.asset_name, self.store)

    async def announce(self):
        await self.watching().configure(self.config.as_json())

    async def run(self):
        announcing = asyncio.create_task(self.announce())
        while True:
            running = self.watching()
            async with contextlib.aclosing(running.events()) as events:
                async for given in events:
                    self.emitting.set()
                    await asyncio.sleep(self.rng.uniform(0.2, 1.5))
                    event = Event(
                        [one["form"] for one in given["forms"]], asyncio.get_running_loop().time()
                    )
                    event.forms = [FormVersion(*one) for one in event.forms]
                    self.events.append(event)
                    if self.rng.random() < self.ack_lost:
                        await asyncio.sleep(30)
                        break
                    event.is_acked = True
                    running.watcher.confirm()
            await announcing


class Triggerer:
    """A process: what it runs ends with it."""

    def __init__(self, world):
        self.world, self.tasks, self.feeds = world, [], {}
        token = process.set(self)
        self.tasks += [asyncio.create_task(asset.run()) for asset in world.assets]
        process.reset(token)
        for trigger in list(world.triggers.values()):
            self.start(*trigger)

    def start(self, query, criteria, deferral, ends, done):
        async def run():
            loop = asyncio.get_running_loop()
            wait = Wait(selection_from(query, criteria), criteria, 1e9, dict(deferral.known or ()))
            source = Source("fsm", deferral.service, "{}", "{}", self.world.service.interval)
            began = loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    with subscribe(source, wait, deferral.covered_since):
                        await wait.woken
                    await asyncio.sleep(began + deferral.rest(source.interval) - loop.time())
            if not done.done():
                done.set_result(None)

        token = process.set(self)
        self.tasks.append(asyncio.create_task(run()))
        process.reset(token)

    def kill(self):
        for task in self.tasks:
            task.cancel()
        for one in self.feeds.values():
            one._task.cancel()
        self.feeds = {}


def selection_from(query, criteria):
    return FormSelection(
        property_ids=[query.property_id] if query.property_id else [],
        job_ids=[query.job_id] if query.job_id else [],
        form_names=criteria.form_names,
        created_since=query.created_since,
        updated_since=query.updated_since,
    )


class World:
    """One Airflow and one service."""

    def __init__(self, service):
        self.service, self.assets, self.triggers, self.ends, self.downs = service, [], {}, [], []
        self.triggerer = None
        self._ids = 0

    async def sensor(self, query, criteria, timeout, rng):
        """Wait as a deferred sensor does, and note when it ended, and with what."""
        loop, wakes = asyncio.get_running_loop(), 0
        joined_at, ends = loop.time(), loop.time() + timeout
        deferral = WaitState(ONE, joined_at, ends)
        while True:
            is_last = loop.time() >= ends
            await asyncio.sleep(rng.uniform(1, 6))  # a worker starts
            try:
                listing = await self.service.list_forms(query)
            except errors.FsmError:
                await asyncio.sleep(self.service.interval)
                continue
            found = {form.id: form.name for form in listing.forms if criteria.counts(form.name)}
            if criteria.are_met(found) or is_last:
                break
            deferral = deferral.after_poll(listing.service, found, listing.started)
            wakes, done = wakes + 1, loop.create_future()
            self._ids += 1
            mine = self._ids
            self.triggers[mine] = query, criteria, deferral, ends, done
            if self.triggerer:
                self.triggerer.start(*self.triggers[mine])
            await done
            del self.triggers[mine]
        counted = found if criteria.are_met(found) else None
        self.ends.append((query, criteria, joined_at, loop.time(), counted, wakes))


class Feeds(WeakKeyDictionary):
    """The feeds of the running triggerer."""

    def setdefault(self, loop, default=None):
        return process.get().feeds

    def get(self, loop, default=None):
        return default


@contextlib.contextmanager
def patched(patch, service):
    """Let the package ask the simulated service, and see its time."""
    lister = SimpleNamespace(list_forms=listing_with_references(service), close=lambda: None)
    patch.setattr(feed, "Lister", lambda source: lister)
    patch.setattr(feed, "_feeds", Feeds())
    patch.setattr(feed, "time", SimpleNamespace(time=lambda: service.now() + service.clock_error))

    async def settings(fsm_conn_id):
        return SimpleNamespace(service=service.url)

    restore = watcher.Watcher.restore

    async def counted(self):
        before = self._store.reads
        await restore(self)
        self._store.max_reads = max(self._store.max_reads, self._store.reads - before + 1)

    patch.setattr(watcher, "read_settings", settings)
    patch.setattr(watcher.Watcher, "restore", counted)
    patch.setattr(watcher, "CHECK_EVERY", 60.0)  # which costs a third of a day
    yield


def listing_with_references(service):
    async def list_forms(query):
        listing = await service.list_forms(query)
        forms = [form._replace(reference={"form": tuple(form)[:7]}) for form in listing.forms]
        return ListingResult(forms, listing.started, listing.total, listing.service)

    return list_forms


def draw_forms(rng, log, begins, ends, count, ids, *, nulls=False, strict=False):
    """Fill a log; return the forms that a look-back of an hour cannot see."""
    special = set()
    for _ in range(count):
        identifier = len(ids) + 1
        ids.append(identifier)
        at = BASE + rng.uniform(begins, ends)
        job, place = str(rng.randrange(12)), str(rng.randrange(6))
        is_late = rng.random() < 0.15 and not strict
        late = rng.choice([0.5, 3, 20, 46]) * HOUR * rng.random() if is_late else rng.uniform(0, 20)
        visible, is_stamped = at + late, rng.random() < 0.5
        updated = (
            None if nulls and rng.random() < 0.7 else (visible if is_late and is_stamped else at)
        )
        if updated is not None and strict and rng.random() < 0.1:
            updated += rng.uniform(1, 9) * HOUR
        form = FormVersion(
            identifier, rng.choice(NAMES), place, job, at, updated, f"#{identifier}.0"
        )
        log.append((visible, identifier, form))
        if (is_late and not is_stamped) or updated is None:
            special.add(identifier)
        last = visible
        for version in range(rng.choice([0, 0, 0, 1, 1, 2, 4])):
            last += rng.expovariate(1 / (5 * HOUR)) + 1
            moved = str(rng.randrange(12)) if rng.random() < 0.2 else form.job_id
            form = form._replace(updated=last, digest=f"#{identifier}.{version + 1}", job_id=moved)
            last += rng.uniform(0, 5)
            log.append((last, identifier, form))
        if rng.random() < 0.06:
            log.append((last + rng.uniform(0, 3 * HOUR), identifier, None))
    return special


MODES = [
    *("plain", "plain", "lag", "nulls", "refused", "blips", "poison", "live", "totals", "host"),
    *("clock", "slow", "two", "all-refused", "strict", "filter", "filter", "store"),
]
LENGTH = 20 * HOUR


async def drawn_day(seed, patch, mode=None):
    """Let a drawn day pass; return what was wrong, and counts."""
    rng = random.Random(seed)
    mode = mode or rng.choice(MODES)
    service = Service(rng, page=rng.choice([5, 20, 100]))
    service.is_live = mode in ("live", "totals") or rng.random() < 0.3
    ids = []
    kinds = {"nulls": mode == "nulls" or rng.random() < 0.1, "strict": mode == "strict"}
    special = draw_forms(rng, service.log, -6 * DAY, -HOUR, 80, ids, **kinds)
    special |= draw_forms(rng, service.log, -HOUR, LENGTH - 4 * HOUR, 160, ids, **kinds)
    prepare(rng, mode, service, ids)
    service.ready()
    world = World(service)
    start = rng.choice(["now", "beginning", iso(BASE - rng.uniform(0, 4) * DAY)])
    late_by = {"late_by": HOUR if mode == "strict" else 7 * DAY}
    with patched(patch, service):
        world.assets = [
            Asset(
                rng, "0", start_from=start, max_forms_per_event=rng.choice([3, 10, 100]), **late_by
            ),
            Asset(rng, "1", property_ids=rng.choice([["1"], ["1", "2"]]), **late_by),
            Asset(
                rng,
                "2",
                form_names=rng.sample(NAMES, 2),
                start_from=iso(BASE - DAY),
                max_forms_per_event=10,
                **late_by,
            ),
        ]
        for asset in world.assets:
            asset.ack_lost = rng.choice([0.0, 0.05])
            if mode == "store":
                times = [rng.uniform(0, 14 * HOUR) for _ in range(20)]
                asset.store.fails = [(at, at + rng.uniform(1, 1200)) for at in times]
        crowd, sensors = rng.choice([12, 12, 60]), []
        world.triggerer = Triggerer(world)
        tasks = [asyncio.create_task(draw_waits(rng, world, crowd, sensors))]
        if rng.random() < 0.8:
            tasks.append(asyncio.create_task(draw_kills(rng, world, mode)))
        if mode == "filter":
            tasks.append(asyncio.create_task(change_filters(rng, world)))
        await asyncio.sleep(LENGTH)
        await asyncio.gather(*sensors)
        world.triggerer.kill()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *world.triggerer.tasks, return_exceptions=True)
        wrong, counts = check(world, mode, special, crowd)
    return [f"seed {seed} {mode}: {text}" for text in wrong], counts


def iso(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def prepare(rng, mode, service, ids):
    """Draw what is wrong with the service on that day."""
    if mode == "lag":
        service.lag = rng.uniform(10, 1500)
    service.leaves_nulls_out = mode == "nulls"
    service.wrong_totals = mode == "totals"
    service.clock_error = (
        rng.choice([-30, 30, 300]) * HOUR if mode == "clock" else rng.uniform(-60, 60)
    )
    if mode == "refused":
        ends = BASE + rng.uniform(3, 14) * HOUR
        service.refuses = [(BASE + 2 * HOUR, ends, rng.choice(["403", "400", "500"]))]
    if mode == "all-refused":
        service.refuses = [(BASE - DAY, BASE + DAY, rng.choice(["403", "500"]))]
    if mode == "blips":
        for _ in range(40):
            at = BASE + rng.uniform(0, 15 * HOUR)
            kind = rng.choice(["500", "500 later", "429", "403"])
            service.refuses.append((at, at + rng.uniform(1, 900), kind))
    if mode == "poison":
        times = BASE + rng.uniform(-1, 5) * HOUR, BASE + rng.uniform(6, 15) * HOUR
        service.poison = rng.choice(ids[60:]), *times
    if mode == "host":
        service.moves_at = BASE + rng.uniform(3, 10) * HOUR
        others = list(range(100_000))
        draw_forms(rng, service.others, -6 * DAY, LENGTH - 4 * HOUR, 160, others)
    if mode == "slow":
        service.slow_until = BASE + HOUR


async def draw_waits(rng, world, crowd, sensors):
    for _ in range(crowd):
        await asyncio.sleep(rng.expovariate(crowd / (10 * HOUR)))
        bound = world.service.now() - rng.choice([0.1, 1, 5, 48]) * HOUR
        bounds = {"created_since": bound} if rng.random() < 0.8 else {"updated_since": bound}
        place = rng.choice(
            [{"job_id": str(rng.randrange(12))}, {"property_id": str(rng.randrange(6))}, {}]
        )
        criteria = Criteria(
            rng.choice([1, 1, 2, 4]), tuple(rng.sample(NAMES, rng.choice([0, 1, 2])))
        )
        timeout = rng.uniform(1, 9) * HOUR
        sensors.append(
            asyncio.create_task(world.sensor(Query(**place, **bounds), criteria, timeout, rng))
        )


async def draw_kills(rng, world, mode):
    """Kill triggerers, most of them as an asset has emitted an event."""
    loop = asyncio.get_running_loop()
    while loop.time() < LENGTH - 5 * HOUR:
        await asyncio.sleep(rng.expovariate(1 / HOUR))
        if rng.random() < 0.7 or mode == "strict":
            asset = rng.choice(world.assets)
            asset.emitting.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asset.emitting.wait(), HOUR)
            await asyncio.sleep(rng.uniform(0, 4))
        if loop.time() > LENGTH - 5 * HOUR:
            return
        second = None
        if mode == "two":
            second = Triggerer(world)
            await asyncio.sleep(rng.uniform(5, 900))
        world.triggerer.kill()
        began, world.triggerer = loop.time(), second
        for trigger in list(world.triggers.values()) if second else []:
            second.start(*trigger)
        if second is None:
            # What an outage that is longer than the look-back loses, only a strict day does not
            # find again.
            await asyncio.sleep(rng.choice([1, 31, 35, 4000, *[3 * HOUR] * 4 * (mode == "strict")]))
            world.downs.append((began, loop.time()))
            world.triggerer = Triggerer(world)


async def change_filters(rng, world):
    for _ in range(4):
        await asyncio.sleep(rng.expovariate(1 / (3 * HOUR)))
        if asyncio.get_running_loop().time() > LENGTH - 5 * HOUR:
            return
        names, asset = rng.sample(NAMES, 2), world.assets[2]
        asset.config = replace(asset.config, form_names=names, late_by=rng.choice([3, 7, 30]) * DAY)
        with contextlib.suppress(asyncio.CancelledError):
            await asset.announce()


def check(world, mode, special, crowd):
    """Return what is wrong with what was emitted, and with how the waits ended."""
    wrong, counts = [], Counter({"days": 1, f"days {mode}": 1})
    for number, asset in enumerate(world.assets):
        for url, log in ((ONE, world.service.log), (TWO, world.service.others)):
            texts = check_asset(world, mode, asset, url, log, counts)
            wrong += [f"asset {number}: {text}" for text in texts]
        in_save = asset.store.max_in_save if mode != "two" else 0
        reads = asset.store.max_reads if mode != "two" else 0  # each reads what the other does
        if in_save > 3 or reads > 10 or len(asset.store.rows) > 100:
            wrong.append(
                f"asset {number}: {in_save} writes, {reads} reads, {len(asset.store.rows)} rows"
            )
    return wrong + check_waits(world, mode, special, crowd, counts), counts


def check_asset(world, mode, asset, url, log, counts):
    service, wrong = world.service, []
    if url == TWO and mode != "host":
        return []
    stored = asset.stored(url)
    if stored is None:
        is_refused = mode == "all-refused" and not asset.config.property_ids
        return [] if is_refused else [f"never began at {url}"]
    floor = asset.store.floors[watcher.prefix_for(url)]
    is_mine = (lambda form: form.id > 100_000) if url == TWO else (lambda form: form.id <= 100_000)
    ahead = defaultdict(float)
    for _, identifier, form in log:
        if form is not None and form.updated is not None and mode == "strict":
            ahead[identifier] = max(ahead[identifier], form.updated)
    seen, newest = {}, {}
    for event in asset.events:
        for form in filter(is_mine, event.forms):
            counts["emitted"] += 1
            key = form.id, form.version
            if key in seen:
                counts["twice"] += 1
                if seen[key].recorded_at < event.at - 2 and mode != "two":
                    wrong.append(
                        f"{key} again at {event.at:.0f}, recorded {seen[key].recorded_at:.0f}"
                    )
            elif form.updated is not None and form.updated < newest.get(form.id, 0.0):
                counts["backwards"] += 1
                repeated = any(
                    one.id == form.id and other.recorded_at > event.at
                    for other in asset.events
                    if other is not event
                    for one in other.forms
                )
                if mode not in ("strict", "two") and not repeated:
                    wrong.append(f"{key} after a newer version")
            seen[key] = event
            if form.time is not None and form.time < first_possible(asset):
                wrong.append(f"{key} before the floor")
            newest[form.id] = max(newest.get(form.id, 0.0), form.updated or 0.0)
    until = min(service.now(), service.moves_at) if url == ONE else service.now()
    shown = {identifier: at for at, identifier, _ in log if at <= until}
    final = service.state(until, url=url)
    poisoned = (service.poison or [0])[0]
    for form in final:
        is_old = shown[form.id] < until - asset.config.reconcile_every() - 1.2 * HOUR
        if not (asset.wants(form) and form.time >= floor and is_old) or form.id == poisoned:
            continue
        if mode == "all-refused" and not asset.config.property_ids:
            continue
        if (
            url == ONE
            and mode == "host"
            and any(ends > until - BASE - 2 * HOUR for _, ends in world.downs)
        ):
            continue  # nobody polled before the connection led elsewhere
        if mode == "strict" and ahead[form.id] > form.time:
            counts["older time, not counted"] += 1
            continue
        counts["expected"] += 1
        if (form.id, form.version) not in seen:
            counts["lost"] += 1
            wrong.append(
                f"{form.id} of {form.time - BASE:.0f} (floor {floor - BASE:.0f}) never emitted"
            )
    return wrong


def first_possible(asset):
    """Return the earliest time of a form that an asset may emit."""
    floor = asset.config.first_floor()
    return BASE if floor is None else floor


def check_waits(world, mode, special, crowd, counts):
    service, wrong = world.service, []
    for query, criteria, began, ended, found, wakes in world.ends:
        counts["waits"] += 1
        counts["wakes"] += wakes
        if mode == "host":
            continue
        if found is not None and mode != "lag" and not criteria.are_met(found):
            wrong.append("a wait ended with too little")
        if wakes > (60 if mode == "nulls" else 12):
            wrong.append(f"{wakes} wakes in {ended - began:.0f} s: {query} {criteria}")
        enough, is_slow = enough_at(service, query, criteria, ended, special)
        if enough is None:
            continue
        late = ended - max(enough, began)
        allowed = allowed_delay(world, mode, query, enough, ended, crowd, is_slow) + (
            900 if wakes > 1 else 0
        )
        if late > max(allowed, 0):
            counts["late waits"] += 1
            wrong.append(
                f"a wait ended {late:.0f} s late (allowed {allowed:.0f}): {query} {criteria}"
            )
    return wrong


def enough_at(service, query, criteria, ended, special):
    """Return when there were enough forms, None if not, and whether the look-back cannot see the
    last.
    """
    held, enough, is_slow = {}, None, False
    for at, identifier, form in service.log:
        if at > BASE + ended - 6.2:
            break
        if form is not None and service.shows(query, form) and criteria.counts(form.name):
            if identifier not in held:
                held[identifier] = form.name
                if enough is None and criteria.are_met(held):
                    enough, is_slow = at - BASE, identifier in special
        elif held.pop(identifier, None) is not None and not criteria.are_met(held):
            enough = None
    return enough, is_slow


def allowed_delay(world, mode, query, enough, ended, crowd, is_slow):
    service, interval = world.service, world.service.interval
    down = sum(
        max(0.0, min(ended, ends) - max(begins, enough)) + 2 * interval
        for begins, ends in world.downs
        if ends > enough and begins < ended
    )
    allowed = 2 * interval + 30 + down
    is_common = query.job_id is None and query.property_id is None
    if mode in ("refused", "all-refused", "poison", "blips"):
        allowed += ((crowd + 3) // 20 + 1) * interval + (1000 if mode == "blips" else 0)
        is_poisoned = service.poison and any(
            identifier == service.poison[0] and form is not None and matches(query, form)
            for _, identifier, form in service.log
        )
        if is_common or is_poisoned:
            return float("inf")
    if is_slow or mode in ("lag", "slow", "live", "totals", "poison", "nulls"):
        bound = min(bound for bound in (query.created_since, query.updated_since) if bound)
        allowed += max(900, (BASE + enough - bound) / 20) + 3 * interval + service.lag
        allowed += HOUR if mode == "slow" else 0
    return allowed
