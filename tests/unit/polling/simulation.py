"""Days of a service and an Airflow in virtual time, on the package's own feed, waits and watchers.

All that is drawn comes from one generator of random numbers, in one order: a seed is a day.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter, defaultdict
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
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

HOUR = 3600.0
DAY = 86_400.0
BASE = 1_000 * DAY
"""The service's time when the event loop begins."""
LENGTH = 20 * HOUR
NAMES = ["Gas", "Boiler", "Service", "Risk"]
JOBS = 12
PROPERTIES = 6
FIRST_URL = "https://one"
SECOND_URL = "https://two"
OTHERS_FROM = 100_000
"""The forms of the second service have higher identifiers."""
NEVER = float("inf")
ERRORS = {
    "400": errors.FsmBadRequestError,
    "403": errors.FsmForbiddenError,
    "429": errors.FsmRateLimitedError,
    "500": errors.FsmServerError,
}
MODES = [
    "plain",
    "plain",
    "lag",
    "nulls",
    "refused",
    "blips",
    "poison",
    "live",
    "totals",
    "host",
    "clock",
    "slow",
    "two",
    "all-refused",
    "strict",
    "filter",
    "filter",
    "store",
]
process = ContextVar("process", default=None)
"""The triggerer that a task belongs to."""


def selection_from(query, form_names=()):
    """Return what matches the forms of these names that a query asks for."""
    return FormSelection(
        property_ids=[] if query.property_id is None else [query.property_id],
        job_ids=[] if query.job_id is None else [query.job_id],
        form_names=form_names,
        created_since=query.created_since,
        updated_since=query.updated_since,
    )


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


def loop_time():
    return asyncio.get_running_loop().time()


def error(kind):
    status = kind[:3]
    return ERRORS[status](int(status), "GET", "/forms", kind)


def is_of_account(query):
    return query.property_id is None and query.job_id is None


# --- the service ---


class Visible:
    """The forms that one database of a service shows, as time goes on.

    :param log: when something is visible, of what id, and the form, None once it is gone.
    """

    def __init__(self, log):
        self.log = log
        self.played = 0  # entries of the log
        self.by_id = {}
        self.in_order = None

    def at(self, time):
        """Return the forms in the order of their times; time never goes back."""
        while self.played < len(self.log) and self.log[self.played][0] <= time:
            _, identifier, form = self.log[self.played]
            self.played += 1
            self.in_order = None
            if form is None:
                self.by_id.pop(identifier, None)
            else:
                self.by_id[identifier] = form
        if self.in_order is None:
            self.in_order = sorted(self.by_id.values(), key=by_age)
        return self.in_order


def by_age(form):
    return form.time or 0.0, form.id


@dataclass
class Refusal:
    """When listings of the whole account are refused, and how; ``429``: all listings."""

    begins: float
    ends: float
    kind: str

    def concerns(self, query, now, has_read_a_page):
        if not self.begins <= now < self.ends:
            return False
        if self.kind == "429":
            return True
        if not is_of_account(query):
            return False
        return has_read_a_page or self.kind != "500 later"


@dataclass
class Poison:
    """A form that cannot be listed, and when."""

    form_id: int
    begins: float
    ends: float

    def concerns(self, page, now):
        is_now = self.begins <= now < self.ends
        return is_now and any(form.id == self.form_id for form in page)


class Service:
    """Forms that appear, change, move and go.

    :ivar log: that of its forms, as :class:`Visible` has it.
    :ivar others: that of another service, where the connection leads from ``moves_at`` on.
    :ivar lag: seconds that its replica is late, which answers every second listing.
    :ivar is_live: a listing that is read shows what happens meanwhile.
    """

    def __init__(self, rng, page):
        self.rng = rng
        self.page = page
        self.log = []
        self.others = []
        self.latency = 0.05
        self.lag = 0.0
        self.interval = 120.0
        self.clock_error = 0.0
        self.leaves_nulls_out = False
        self.has_wrong_totals = False
        self.is_live = False
        self.refusals = []
        self.poison = None
        self.moves_at = NEVER
        self.slow_until = -NEVER

    @property
    def url(self):
        return FIRST_URL if self.now() < self.moves_at else SECOND_URL

    def now(self):
        return BASE + loop_time()

    def ready(self):
        self._databases = {}
        for url, log in ((FIRST_URL, self.log), (SECOND_URL, self.others)):
            log.sort(key=lambda entry: entry[0])
            for name in ("main", "replica"):
                self._databases[url, name] = Visible(log)

    def forms_at(self, at, database="main", url=None):
        return self._databases[url or self.url, database].at(at)

    def shows(self, query, form):
        """Return whether it lists a form for a query."""
        is_by_update = query.updated_since > BEGINNING
        if self.leaves_nulls_out and is_by_update and form.updated is None:
            return False
        return selection_from(query).matches(form)

    async def list_forms(self, query):
        is_replica = self.lag and self.rng.random() < 0.5
        url = self.url
        forms = []
        started = None
        rows = None
        while True:
            await self._answer_slowly()
            now = self.now()
            for refusal in self.refusals:
                if refusal.concerns(query, now, has_read_a_page=bool(forms)):
                    raise error(refusal.kind)
            if started is None:
                started = now
            if rows is None or self.is_live:
                if is_replica:
                    shown = self.forms_at(now - self.lag, "replica", url)
                else:
                    shown = self.forms_at(now, "main", url)
                rows = [form for form in shown if self.shows(query, form)]
            page = rows[len(forms) : len(forms) + self.page]
            if self.poison is not None and self.poison.concerns(page, now):
                raise error("500")
            forms += page
            if len(forms) >= len(rows) or not page:
                total = len(rows)
                if self.has_wrong_totals:
                    total += 3
                return ListingResult(forms, started, total, url)

    async def _answer_slowly(self):
        slow = 20.0 if self.now() < self.slow_until else 1.0
        await asyncio.sleep(self.latency * slow * self.rng.uniform(0.5, 1.5))


# --- Airflow ---


class Store:
    """What is stored with an asset, slowly.

    What is begun as the triggerer is killed may be written or not.

    :ivar fails: when reads and writes fail.
    :ivar floors: the first floor that was stored, of each service.
    """

    def __init__(self, rng, events):
        self.rng = rng
        self.events = events
        self.rows = {}
        self.fails = []
        self.floors = {}
        self.reads = 0
        self.max_reads = 0
        self.in_save = 0
        self.max_in_save = 0

    async def aget(self, key):
        await self._pause()
        self.reads += 1
        if key == watcher.OWNER:
            self.in_save = 0
        return json.loads(self.rows[key]) if key in self.rows else None

    async def aset(self, key, value):
        await self._pause()
        self.rows[key] = json.dumps(value)
        self.in_save += 1
        if key.endswith("/" + WATERMARK):
            prefix = key.removesuffix(WATERMARK)
            self.floors.setdefault(prefix, value["floor"])
            self._note_recorded_events(prefix)
            self.max_in_save = max(self.max_in_save, self.in_save)
        await asyncio.sleep(0.001)

    def _note_recorded_events(self, prefix):
        keys = [key for key in self.rows if key.startswith(prefix)]
        entries = [json.loads(self.rows[key]) for key in keys]
        for event in self.events:
            is_open = event.is_acked and event.recorded_at == NEVER
            if is_open and all(is_recorded(form, entries) for form in event.forms):
                event.recorded_at = loop_time()

    async def _pause(self):
        await asyncio.sleep(self.rng.uniform(0.005, 0.06))
        now = loop_time()
        if any(begins <= now < ends for begins, ends in self.fails):
            raise OSError("the store is away")


def is_recorded(form, entries):
    """Return whether one of the stored entries has this version of a form."""
    for entry in entries:
        versions = dict(entry.get(str(form.id), []))
        if form.version in versions:
            return True
    return False


class Event:
    """What a watcher has emitted.

    :ivar is_acked: Airflow has told the watcher that it is stored.
    :ivar recorded_at: when the watcher had stored that.
    """

    def __init__(self, forms, at):
        self.forms = forms
        self.at = at
        self.is_acked = False
        self.recorded_at = NEVER


class Asset:
    """A watcher's definition, its store and its events."""

    def __init__(self, rng, name, **settings):
        self.config = WatcherConfig(
            asset_name=name,
            fsm_conn_id="fsm",
            poll_interval=120.0,
            late_by=7 * DAY,
        )
        self.config = replace(self.config, **settings)
        self.rng = rng
        self.events = []
        self.store = Store(rng, self.events)
        self.ack_lost = 0.0
        self.emitting = asyncio.Event()

    def wants(self, form):
        return self.config.selection().matches(form)

    def watermark(self, url):
        row = self.store.rows.get(watcher.prefix_for(url) + WATERMARK)
        return json.loads(row) if row else None

    def first_possible(self):
        """Return the earliest time of a form that it may emit."""
        floor = self.config.first_floor()
        return BASE if floor is None else floor

    async def announce(self):
        watching = AssetEvents(self.config.asset_name, self.store)
        await watching.configure(asdict(self.config))

    async def run(self):
        announcing = asyncio.create_task(self.announce())
        while True:
            watching = AssetEvents(self.config.asset_name, self.store)
            async with contextlib.aclosing(watching.events()) as payloads:
                await self._take_events(watching, payloads)
            await announcing

    async def _take_events(self, watching, payloads):
        """Store the events, until one is not acknowledged."""
        async for payload in payloads:
            self.emitting.set()
            await asyncio.sleep(self.rng.uniform(0.2, 1.5))
            forms = [FormVersion(*reference["form"]) for reference in payload["forms"]]
            event = Event(forms, loop_time())
            self.events.append(event)
            if self.rng.random() < self.ack_lost:
                await asyncio.sleep(30)
                return
            event.is_acked = True
            watching.watcher.confirm()


@dataclass
class Trigger:
    """A deferred sensor that Airflow has in its database.

    :ivar done: done once the trigger has fired.
    """

    query: Query
    criteria: Criteria
    state: WaitState
    ends: float
    done: asyncio.Future

    async def run(self, interval):
        began = loop_time()
        wait = Wait(
            selection_from(self.query, self.criteria.form_names),
            self.criteria,
            tolerance=1e9,
            names_by_id=dict(self.state.known or ()),
        )
        source = Source("fsm", self.state.service, "{}", "{}", interval)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self.ends):
                with subscribe(source, wait, self.state.covered_since):
                    await wait.woken
                rests_until = began + self.state.pause(interval)
                await asyncio.sleep(rests_until - loop_time())
        if not self.done.done():
            self.done.set_result(None)


class Triggerer:
    """A process: what it runs ends with it."""

    def __init__(self, world):
        self.interval = world.service.interval
        self.tasks = []
        self.feeds = {}
        for asset in world.assets:
            self._create_task(asset.run())
        for trigger in list(world.triggers.values()):
            self.start(trigger)

    def start(self, trigger):
        self._create_task(trigger.run(self.interval))

    def kill(self):
        for task in self.tasks:
            task.cancel()
        for polling in self.feeds.values():
            polling._task.cancel()
        self.feeds = {}

    def _create_task(self, coroutine):
        token = process.set(self)
        self.tasks.append(asyncio.create_task(coroutine))
        process.reset(token)


@dataclass
class Ended:
    """How a sensor has ended; ``names_by_id``: None if it has timed out."""

    query: Query
    criteria: Criteria
    began: float
    at: float
    names_by_id: dict | None
    wakes: int


class World:
    """One Airflow and one service.

    :ivar triggers: the deferred sensors, by the trigger's ID.
    :ivar ends: how sensors have ended.
    :ivar downs: when no triggerer ran.
    """

    def __init__(self, service):
        self.service = service
        self.assets = []
        self.triggers = {}
        self.triggerer = None
        self.ends = []
        self.downs = []
        self._last_id = 0

    async def sensor(self, query, criteria, timeout, rng):
        """Wait as a deferred sensor does, and note when it ended, and with what."""
        began = loop_time()
        ends = began + timeout
        state = WaitState(FIRST_URL, began, ends)
        wakes = 0
        while True:
            is_last = loop_time() >= ends
            await asyncio.sleep(rng.uniform(1, 6))  # a worker starts
            try:
                listing = await self.service.list_forms(query)
            except errors.FsmError:
                await asyncio.sleep(self.service.interval)
                continue
            counted = {form.id: form.name for form in listing.forms if criteria.counts(form.name)}
            has_enough = criteria.are_met(counted)
            if has_enough or is_last:
                break
            state = state.after_poll(listing.service, counted, listing.started)
            wakes += 1
            await self._defer(query, criteria, state, ends)
        names_by_id = counted if has_enough else None
        self.ends.append(Ended(query, criteria, began, loop_time(), names_by_id, wakes))

    async def _defer(self, query, criteria, state, ends):
        done = asyncio.get_running_loop().create_future()
        trigger = Trigger(query, criteria, state, ends, done)
        self._last_id += 1
        trigger_id = self._last_id
        self.triggers[trigger_id] = trigger
        if self.triggerer:
            self.triggerer.start(trigger)
        await done
        del self.triggers[trigger_id]


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
    clock = SimpleNamespace(time=lambda: service.now() + service.clock_error)
    restore = watcher.Watcher.restore

    async def read_settings(fsm_conn_id):
        return SimpleNamespace(service=service.url)

    async def counting_reads(self):
        before = self._store.reads
        await restore(self)
        reads = self._store.reads - before + 1  # that of the configuration
        self._store.max_reads = max(self._store.max_reads, reads)

    patch.setattr(feed, "Lister", lambda source: lister)
    patch.setattr(feed, "_feeds", Feeds())
    patch.setattr(feed, "time", clock)
    patch.setattr(watcher, "read_settings", read_settings)
    patch.setattr(watcher.Watcher, "restore", counting_reads)
    patch.setattr(watcher, "CHECK_EVERY", 60.0)  # which costs a third of a day
    yield


def with_reference(form):
    """Return a form whose reference is all else of it."""
    return form._replace(reference={"form": tuple(form)[:7]})


def listing_with_references(service):
    async def list_forms(query):
        listing = await service.list_forms(query)
        forms = [with_reference(form) for form in listing.forms]
        return ListingResult(forms, listing.started, listing.total, listing.service)

    return list_forms


# --- a day ---


async def drawn_day(seed, patch, mode=None):
    """Let a drawn day pass; return what was wrong, and counts."""
    rng = random.Random(seed)
    mode = mode or rng.choice(MODES)
    service = Service(rng, page=rng.choice([5, 20, 100]))
    service.is_live = mode in ("live", "totals") or rng.random() < 0.3
    special = draw_all_forms(rng, mode, service)
    service.ready()
    world = World(service)
    with patched(patch, service):
        world.assets = draw_assets(rng, mode)
        crowd = rng.choice([12, 12, 60])
        await let_it_pass(rng, mode, world, crowd)
        wrong, counts = check(world, mode, special, crowd)
    return [f"seed {seed} {mode}: {text}" for text in wrong], counts


async def let_it_pass(rng, mode, world, crowd):
    sensors = []
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


def draw_all_forms(rng, mode, service):
    """Draw the forms, and what is wrong with the service; return what no look-back sees."""
    ids = []
    has_nulls = mode == "nulls" or rng.random() < 0.1
    is_strict = mode == "strict"
    special = set()
    before = (-6 * DAY, -HOUR, 80)
    meanwhile = (-HOUR, LENGTH - 4 * HOUR, 160)
    for begins, ends, count in (before, meanwhile):
        special |= draw_forms(
            rng, service.log, begins, ends, count, ids, has_nulls=has_nulls, is_strict=is_strict
        )
    prepare(rng, mode, service, ids)
    return special


def draw_forms(rng, log, begins, ends, count, ids, *, has_nulls=False, is_strict=False):
    """Fill a log; return the forms that a look-back of an hour cannot see."""
    special = set()
    for _ in range(count):
        identifier = len(ids) + 1
        ids.append(identifier)
        at = BASE + rng.uniform(begins, ends)
        job_id = str(rng.randrange(JOBS))
        property_id = str(rng.randrange(PROPERTIES))
        is_late = rng.random() < 0.15 and not is_strict
        visible = at + draw_delay(rng, is_late)
        is_stamped = rng.random() < 0.5  # with the time when it is synchronised
        updated = visible if is_late and is_stamped else at
        if has_nulls and rng.random() < 0.7:
            updated = None
        if updated is not None and is_strict and rng.random() < 0.1:
            updated += rng.uniform(1, 9) * HOUR
        name = rng.choice(NAMES)
        form = FormVersion(identifier, name, property_id, job_id, at, updated, f"#{identifier}.0")
        log.append((visible, identifier, form))
        if (is_late and not is_stamped) or updated is None:
            special.add(identifier)
        draw_changes(rng, log, form, visible)
    return special


def draw_delay(rng, is_late):
    """Return the seconds until the service has what was completed on a phone."""
    if is_late:
        return rng.choice([0.5, 3, 20, 46]) * HOUR * rng.random()
    return rng.uniform(0, 20)


def draw_changes(rng, log, form, visible):
    """Let a form change, move to another job, and go."""
    last = visible
    for version in range(rng.choice([0, 0, 0, 1, 1, 2, 4])):
        last += rng.expovariate(1 / (5 * HOUR)) + 1
        job_id = str(rng.randrange(JOBS)) if rng.random() < 0.2 else form.job_id
        digest = f"#{form.id}.{version + 1}"
        form = form._replace(updated=last, digest=digest, job_id=job_id)
        last += rng.uniform(0, 5)
        log.append((last, form.id, form))
    if rng.random() < 0.06:
        log.append((last + rng.uniform(0, 3 * HOUR), form.id, None))


def iso(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def prepare(rng, mode, service, ids):
    """Draw what is wrong with the service on that day."""
    service.leaves_nulls_out = mode == "nulls"
    service.has_wrong_totals = mode == "totals"
    if mode == "lag":
        service.lag = rng.uniform(10, 1500)
    if mode == "clock":
        service.clock_error = rng.choice([-30, 30, 300]) * HOUR
    else:
        service.clock_error = rng.uniform(-60, 60)
    if mode in ("refused", "all-refused", "blips"):
        service.refusals = draw_refusals(rng, mode)
    if mode == "poison":
        begins = BASE + rng.uniform(-1, 5) * HOUR
        ends = BASE + rng.uniform(6, 15) * HOUR
        service.poison = Poison(rng.choice(ids[60:]), begins, ends)
    if mode == "host":
        service.moves_at = BASE + rng.uniform(3, 10) * HOUR
        others = list(range(OTHERS_FROM))
        draw_forms(rng, service.others, -6 * DAY, LENGTH - 4 * HOUR, 160, others)
    if mode == "slow":
        service.slow_until = BASE + HOUR


def draw_refusals(rng, mode):
    if mode == "refused":
        ends = BASE + rng.uniform(3, 14) * HOUR
        kind = rng.choice(["403", "400", "500"])
        return [Refusal(BASE + 2 * HOUR, ends, kind)]
    if mode == "all-refused":
        return [Refusal(BASE - DAY, BASE + DAY, rng.choice(["403", "500"]))]
    refusals = []
    for _ in range(40):
        at = BASE + rng.uniform(0, 15 * HOUR)
        kind = rng.choice(["500", "500 later", "429", "403"])
        refusals.append(Refusal(at, at + rng.uniform(1, 900), kind))
    return refusals


def draw_assets(rng, mode):
    start = rng.choice(["now", "beginning", iso(BASE - rng.uniform(0, 4) * DAY)])
    late_by = HOUR if mode == "strict" else 7 * DAY
    whole_account = Asset(
        rng,
        "0",
        start_from=start,
        max_forms_per_event=rng.choice([3, 10, 100]),
        late_by=late_by,
    )
    some_properties = Asset(
        rng,
        "1",
        property_ids=rng.choice([["1"], ["1", "2"]]),
        late_by=late_by,
    )
    two_names = Asset(
        rng,
        "2",
        form_names=rng.sample(NAMES, 2),
        start_from=iso(BASE - DAY),
        max_forms_per_event=10,
        late_by=late_by,
    )
    assets = [whole_account, some_properties, two_names]
    for asset in assets:
        asset.ack_lost = rng.choice([0.0, 0.05])
        if mode == "store":
            times = [rng.uniform(0, 14 * HOUR) for _ in range(20)]
            asset.store.fails = [(at, at + rng.uniform(1, 1200)) for at in times]
    return assets


async def draw_waits(rng, world, crowd, sensors):
    for _ in range(crowd):
        await asyncio.sleep(rng.expovariate(crowd / (10 * HOUR)))
        bound = world.service.now() - rng.choice([0.1, 1, 5, 48]) * HOUR
        is_by_creation = rng.random() < 0.8
        bounds = {"created_since": bound} if is_by_creation else {"updated_since": bound}
        place = rng.choice(
            [
                {"job_id": str(rng.randrange(JOBS))},
                {"property_id": str(rng.randrange(PROPERTIES))},
                {},
            ]
        )
        minimum = rng.choice([1, 1, 2, 4])
        names = rng.sample(NAMES, rng.choice([0, 1, 2]))
        timeout = rng.uniform(1, 9) * HOUR
        sensor = world.sensor(
            Query(**place, **bounds), Criteria(minimum, tuple(names)), timeout, rng
        )
        sensors.append(asyncio.create_task(sensor))


async def draw_kills(rng, world, mode):
    """Kill triggerers, most of them as an asset has emitted an event."""
    last_kill = LENGTH - 5 * HOUR
    while loop_time() < last_kill:
        await asyncio.sleep(rng.expovariate(1 / HOUR))
        is_aimed = rng.random() < 0.7 or mode == "strict"
        if is_aimed:
            asset = rng.choice(world.assets)
            asset.emitting.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asset.emitting.wait(), HOUR)
            await asyncio.sleep(rng.uniform(0, 4))
        if loop_time() > last_kill:
            return
        if mode == "two":
            await replace_triggerer(rng, world)
        else:
            await restart_triggerer(rng, world, mode)


async def replace_triggerer(rng, world):
    """Let a second triggerer run beside the first one, which is killed then."""
    second = Triggerer(world)
    await asyncio.sleep(rng.uniform(5, 900))
    world.triggerer.kill()
    world.triggerer = second
    for trigger in list(world.triggers.values()):
        second.start(trigger)


async def restart_triggerer(rng, world, mode):
    world.triggerer.kill()
    world.triggerer = None
    began = loop_time()
    # What an outage that is longer than the look-back loses, only a strict day does not find
    # again.
    outages = [1, 31, 35, 4000]
    if mode == "strict":
        outages += [3 * HOUR] * 4
    await asyncio.sleep(rng.choice(outages))
    world.downs.append((began, loop_time()))
    world.triggerer = Triggerer(world)


async def change_filters(rng, world):
    asset = world.assets[2]
    for _ in range(4):
        await asyncio.sleep(rng.expovariate(1 / (3 * HOUR)))
        if loop_time() > LENGTH - 5 * HOUR:
            return
        names = rng.sample(NAMES, 2)
        late_by = rng.choice([3, 7, 30]) * DAY
        asset.config = replace(asset.config, form_names=names, late_by=late_by)
        with contextlib.suppress(asyncio.CancelledError):
            await asset.announce()


# --- what is right ---


def check(world, mode, special, crowd):
    """Return what is wrong with what was emitted, and with how the waits ended."""
    wrong = []
    counts = Counter({"days": 1, f"days {mode}": 1})
    for number, asset in enumerate(world.assets):
        texts = CheckOfAsset(world, mode, asset, FIRST_URL, counts).run()
        if mode == "host":
            texts += CheckOfAsset(world, mode, asset, SECOND_URL, counts).run()
        texts += check_store(asset.store, mode)
        wrong += [f"asset {number}: {text}" for text in texts]
    wrong += check_waits(world, mode, special, crowd, counts)
    return wrong, counts


def check_store(store, mode):
    rows = len(store.rows)
    is_shared = mode == "two"  # each of two triggerers counts what the other does
    is_wrong = store.max_in_save > 3 or store.max_reads > 11
    if rows > 100 or (is_wrong and not is_shared):
        return [f"{store.max_in_save} writes, {store.max_reads} reads, {rows} rows"]
    return []


class CheckOfAsset:
    """Compares what an asset has emitted of one service with what it should have."""

    def __init__(self, world, mode, asset, url, counts):
        self.world = world
        self.service = world.service
        self.mode = mode
        self.asset = asset
        self.url = url
        self.log = self.service.log if url == FIRST_URL else self.service.others
        self.counts = counts
        self.wrong = []
        self.seen = {}  # the last event of each version
        self.newest = {}  # the latest time of each form that was emitted

    def run(self):
        if self.asset.watermark(self.url) is None:
            return [] if self._is_refused() else [f"never began at {self.url}"]
        for event in self.asset.events:
            for form in event.forms:
                if self._is_of_service(form):
                    self._check_emitted(event, form)
        self._check_lost()
        return self.wrong

    def _is_refused(self):
        return self.mode == "all-refused" and not self.asset.config.property_ids

    def _is_of_service(self, form):
        return (form.id > OTHERS_FROM) == (self.url == SECOND_URL)

    def _check_emitted(self, event, form):
        self.counts["emitted"] += 1
        key = (form.id, form.version)
        updated = form.updated or 0.0
        if key in self.seen:
            self.counts["twice"] += 1
            recorded_at = self.seen[key].recorded_at
            if recorded_at < event.at - 2 and self.mode != "two":
                self.wrong.append(f"form {key} again at {event.at:.0f}, recorded {recorded_at:.0f}")
        elif form.updated is not None and updated < self.newest.get(form.id, 0.0):
            self.counts["backwards"] += 1
            if self.mode not in ("strict", "two") and not self._is_repeated(event, form):
                self.wrong.append(f"form {key} after a newer version")
        self.seen[key] = event
        if form.time is not None and form.time < self.asset.first_possible():
            self.wrong.append(f"form {key} before the floor")
        self.newest[form.id] = max(self.newest.get(form.id, 0.0), updated)

    def _is_repeated(self, event, form):
        """Return whether another event of the form was not recorded when this one was emitted."""
        for other in self.asset.events:
            is_open = other is not event and other.recorded_at > event.at
            if is_open and any(emitted.id == form.id for emitted in other.forms):
                return True
        return False

    def _check_lost(self):
        floor = self.asset.store.floors[watcher.prefix_for(self.url)]
        ahead = self._times_ahead()
        for form in self._due_forms(floor):
            if self.mode == "strict" and ahead[form.id] > form.time:
                self.counts["older time, not counted"] += 1
                continue
            self.counts["expected"] += 1
            if (form.id, form.version) not in self.seen:
                self.counts["lost"] += 1
                since = form.time - BASE
                of_form = f"form {form.id} of {since:.0f} s (floor {floor - BASE:.0f} s)"
                self.wrong.append(f"{of_form} never emitted")

    def _due_forms(self, floor):
        """Return the forms that should have been emitted by the end of the day."""
        until = self.service.now()
        if self.url == FIRST_URL:
            until = min(until, self.service.moves_at)
        if self._is_refused() or self._was_down_before_the_move(until):
            return []
        visible_at = {identifier: at for at, identifier, _ in self.log if at <= until}
        poison = self.service.poison
        poisoned = 0 if poison is None else poison.form_id
        oldest = until - self.asset.config.reconcile_every() - 1.2 * HOUR
        due = []
        for form in self.service.forms_at(until, url=self.url):
            is_wanted = self.asset.wants(form) and form.time >= floor
            if is_wanted and visible_at[form.id] < oldest and form.id != poisoned:
                due.append(form)
        return due

    def _was_down_before_the_move(self, until):
        """Return whether nobody polled before the connection led elsewhere."""
        if self.url != FIRST_URL or self.mode != "host":
            return False
        return any(ends > until - BASE - 2 * HOUR for _, ends in self.world.downs)

    def _times_ahead(self):
        """Return the latest time of each form."""
        latest = defaultdict(float)
        for _, identifier, form in self.log:
            if form is not None and form.updated is not None:
                latest[identifier] = max(latest[identifier], form.updated)
        return latest


def check_waits(world, mode, special, crowd, counts):
    wrong = []
    for end in world.ends:
        counts["waits"] += 1
        counts["wakes"] += end.wakes
        if mode == "host":
            continue
        what = f"{end.query} {end.criteria}"
        has_ended_with_forms = end.names_by_id is not None
        if has_ended_with_forms and mode != "lag" and not end.criteria.are_met(end.names_by_id):
            wrong.append("a wait ended with too little")
        if end.wakes > (60 if mode == "nulls" else 12):
            wrong.append(f"{end.wakes} wakes in {end.at - end.began:.0f} s: {what}")
        enough, is_slow = enough_at(world.service, end, special)
        if enough is None:
            continue
        late = end.at - max(enough, end.began)
        allowed = allowed_delay(world, mode, end, enough, crowd, is_slow)
        if late > max(allowed, 0):
            counts["late waits"] += 1
            wrong.append(f"a wait ended {late:.0f} s late (allowed {allowed:.0f}): {what}")
    return wrong


def enough_at(service, end, special):
    """Return when there were enough forms, and whether the look-back cannot see the last.

    None: there were not enough.
    """
    names_by_id = {}
    enough = None
    is_slow = False
    for at, identifier, form in service.log:
        if at > BASE + end.at - 6.2:
            break
        is_shown = form is not None and service.shows(end.query, form)
        if is_shown and end.criteria.counts(form.name):
            if identifier in names_by_id:
                continue
            names_by_id[identifier] = form.name
            if enough is None and end.criteria.are_met(names_by_id):
                enough = at - BASE
                is_slow = identifier in special
        elif identifier in names_by_id:
            del names_by_id[identifier]
            if not end.criteria.are_met(names_by_id):
                enough = None
    return enough, is_slow


def allowed_delay(world, mode, end, enough, crowd, is_slow):
    """Return the seconds after there were enough forms by which a wait has to end."""
    service = world.service
    interval = service.interval
    allowed = 2 * interval + 30
    for begins, ends in world.downs:
        if ends > enough and begins < end.at:
            overlap = min(end.at, ends) - max(begins, enough)
            allowed += max(0.0, overlap) + 2 * interval
    if mode in ("refused", "all-refused", "poison", "blips"):
        if is_of_account(end.query) or is_poisoned(service, end.query):
            return NEVER
        rounds = (crowd + 3) // 20 + 1
        allowed += rounds * interval
    if mode == "blips":
        allowed += 1000
    if is_slow or mode in ("lag", "slow", "live", "totals", "poison", "nulls"):
        bounds = [end.query.created_since, end.query.updated_since]
        bound = min(bound for bound in bounds if bound > BEGINNING)
        age = BASE + enough - bound
        allowed += max(900, age / 20) + 3 * interval + service.lag
    if mode == "slow":
        allowed += HOUR
    if end.wakes > 1:
        allowed += 900
    return allowed


def is_poisoned(service, query):
    """Return whether a query lists the form that cannot be listed."""
    if service.poison is None:
        return False
    selection = selection_from(query)
    for _, identifier, form in service.log:
        is_it = identifier == service.poison.form_id and form is not None
        if is_it and selection.matches(form):
            return True
    return False
