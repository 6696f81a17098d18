"""One feed of forms for all sensors and watchers that ask one service alike, at one interval."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from heapq import nsmallest
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from fsm_provider.api.errors import FsmConnectionError, FsmError
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling.polls import (
    Form,
    Lister,
    ListForms,
    Listing,
    Query,
    Reader,
    Source,
    Time,
    concerns_service,
)

logger: logging.Logger = logging.getLogger(__name__)

Place = tuple[str, str]
"""What a member filters by: ``job``, ``property`` or ``name`` and its value; ``any``."""
MAX_OWN = 20
"""Members that are asked for one by one in an interval; for more there is one listing."""
GIVE_UP_AFTER = 900.0
"""Seconds after which an unreadable listing of changes is left to the catch-ups, and after which a common
catch-up that failed is tried again."""
LOOK_BACK = 3600.0
"""Seconds that a listing of changes goes back behind the start of the one before."""
LOG_EVERY = 600.0
"""Seconds between two lines of the log about the same failure."""
SLICE = 2_000
"""Forms that are handed out at once, to all members that they concern."""
TURN = 0.005
"""Seconds after which the loop gets its turn."""

_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Source, Feed]] = WeakKeyDictionary()


class Member(Protocol):
    """A wait or a watcher.

    :ivar due: the loop's time of its next catch-up.
    :ivar asked: that of its last.
    :ivar failing_since: that of the first failure of its own questions in a row.
    """

    due: float
    asked: float
    failing_since: float | None

    @property
    def follows(self) -> bool:
        """Whether it is told of every poll, not only of its forms."""

    @property
    def places(self) -> Sequence[Place]:
        """Where its forms are."""

    def questions(self) -> list[Query]:
        """Return what its catch-up asks."""

    def check_after(self, now: Time) -> float:
        """Return the seconds until its next catch-up."""

    def ingest(self, forms: Iterable[Form], *, is_own: bool = False) -> None:
        """Take forms that may concern it; ``is_own``: of a catch-up."""

    def polled(self, query: Query, started: Time) -> None:
        """Note a complete poll, if it follows them."""

    def moved(self, service: str) -> None:
        """End: the connection leads to another service, and this feed is over."""

    def fail(self, error: FsmError, since: float) -> None:
        """Note a failure that is its own, or of the service; ``since`` by the loop's clock."""


@asynccontextmanager
async def joined(source: Source, member: Member, covered_since: Time | None = None) -> AsyncIterator[Feed]:
    """Have a member take part in the feed of its source, which polls while it has members."""
    feed = feed_of(source)
    feed.join(member, covered_since)
    try:
        yield feed
    finally:
        feed.leave(member)


def feed_of(source: Source) -> Feed:
    """Return the feed of a source; the caller joins it at once."""
    feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
    feed = feeds.get(source)
    if feed is None:
        lister = Lister(source)
        feed = feeds[source] = Feed(lister.list_forms, source.interval, time.time, source=source)
        # An empty context, or its log would be that of the first member's task.
        task = asyncio.create_task(feed.run(), name="fsm feed", context=Context())
        task.add_done_callback(lambda _: lister.close())
        feed.stop = task.cancel
    return feed


class Feed:
    """Polls the service for its members.

    :param list_forms: lists; raises ``FsmError``.
    :param interval: seconds between two polls of changes.
    :param clock: our time, before the service has told its own.
    :param source: what is listed; None: any service is right.
    :ivar waits: the number of its members that are deferred sensors.
    """

    def __init__(
        self,
        list_forms: ListForms,
        interval: float,
        clock: Callable[[], Time],
        look_back: float = LOOK_BACK,
        source: Source | None = None,
    ) -> None:
        self._reader = Reader(list_forms)
        self._interval, self._clock, self._look_back = interval, clock, look_back
        self._source = source
        self._members: dict[Member, None] = {}
        self._by_place: dict[Place, dict[Member, None]] = defaultdict(dict)
        self._start: Time | None = None
        self._not_before = float("-inf")
        self._offset: float | None = None
        self._failing_since: float | None = None
        self._is_refused, self._one_by_one_until = False, float("-inf")
        self._asks_by_creation = False
        self._logged_at = float("-inf")
        self.failures, self.polled_at, self.waits = 0, _now(), 0
        self.stop: Callable[[], object] = lambda: None
        self.service = None if source is None else source.service

    # --- members ---

    @property
    def size(self) -> int:
        return len(self._members)

    def join(self, member: Member, covered_since: Time | None = None) -> None:
        """Add a member.

        :param covered_since: the service's time of the member's last own poll, whose forms it knows: it needs
            no catch-up if the polls of changes go on from there.
        """
        self._members[member] = None
        self.waits += not member.follows
        for place in member.places:
            self._by_place[place][member] = None
        start = self.time() if self._start is None else self._start
        goes_on = covered_since is not None and covered_since >= start - self._look_back / 2
        member.due = _now() + (member.check_after(self.time()) if goes_on else 0.0)

    def leave(self, member: Member) -> None:
        """Remove a member, if it is there; the last one ends the feed."""
        if self._members.pop(member, False) is None:
            self.waits -= not member.follows
            for place in member.places:
                self._by_place[place].pop(member, None)
                if not self._by_place[place]:
                    del self._by_place[place]
        feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
        if not self._members and self._source is not None and feeds.get(self._source) is self:
            del feeds[self._source]
            self.stop()
            self.measure()

    def time(self) -> Time:
        """Return the service's time; ours before it has answered."""
        return self._clock() if self._offset is None else _now() + self._offset

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._every_interval(self._poll_changes), context=Context())
            tasks.create_task(self._every_interval(self._catch_up), context=Context())

    async def _every_interval(self, poll: Callable[[], Awaitable[None]]) -> None:
        while True:
            began = _now()
            try:
                await poll()
            except Exception:
                logger.exception("A poll failed unexpectedly; the next follows")
            await asyncio.sleep(max(self._interval - (_now() - began), TURN))

    # --- changes ---

    async def _poll_changes(self) -> None:
        began = self.time()
        since = max((began if self._start is None else self._start) - self._look_back, self._not_before)
        queries = [Query(updated_since=since)]
        if self._asks_by_creation:
            queries.append(Query(created_since=since))
        started = []
        try:
            for query in queries:
                listing = await self._list(query)
                if listing is None:
                    return
                started.append(listing.started)
                await self._hand_out(listing, query, self._members)
                if not listing.is_complete:
                    logger.warning("The listing of changes kept shifting while it was read; it is read again")
                    return
        except FsmError as error:
            await self._changes_failed(error, began)
            return
        if self.failures:
            logger.info("Polling for forms works again after %s failures", self.failures)
        self._start = started[0]
        self._failing_since, self._is_refused, self.failures = None, False, 0
        self.polled_at, self._logged_at = _now(), float("-inf")
        self.measure("complete")

    async def _changes_failed(self, error: FsmError, began: Time) -> None:
        self.failures += 1
        self.measure("failed")
        if _now() - self._logged_at >= LOG_EVERY:
            self._logged_at = _now()
            logger.warning("Polling for forms failed (%s in a row), and goes on: %s", self.failures, error)
        if self._failing_since is None:
            self._failing_since = _now()
        self._is_refused = not concerns_service(error)
        if concerns_service(error):
            await self._fail_all(error)
        elif _now() - self._failing_since >= GIVE_UP_AFTER and self._offset is not None:
            self._failing_since = _now()
            logger.error("Changes since %s could not be read; going on from %s", self._start, began)
            self._start = self._not_before = began
            for member in self._members:
                member.due = min(member.due, _now())

    def measure(self, result: str | None = None) -> None:
        """Set the gauges of the waits of its connection, the worst of its feeds; count a poll."""
        if self._source is None:
            return
        connection = self._source.fsm_conn_id
        metrics = AirflowMetrics(connection=connection)
        feeds = _feeds.get(asyncio.get_running_loop(), {}).items()
        alike = [(source, feed) for source, feed in feeds if source.fsm_conn_id == connection and feed.waits]
        if result and self.waits:
            metrics.incr("waits.polls", result=result)
        elif result:
            return
        metrics.gauge("waits", sum(feed.waits for _, feed in alike))
        metrics.gauge("waits.failures", max((feed.failures for _, feed in alike), default=0))
        metrics.gauge("waits.poll_age", max((_now() - feed.polled_at for _, feed in alike), default=0.0))
        metrics.gauge("waits.poll_interval", max((source.interval for source, _ in alike), default=0.0))

    # --- catch-up ---

    async def _catch_up(self) -> None:
        now = _now()
        due = [member for member in self._members if self._is_refused or member.due <= now]
        if len(due) > MAX_OWN and now >= self._one_by_one_until and not self._is_refused:
            try:
                await self._catch_up_all(due)
                return
            except FsmError as error:
                logger.warning("A catch-up of %s members failed; going on one by one: %s", len(due), error)
                if concerns_service(error):
                    return
                self._one_by_one_until = _now() + GIVE_UP_AFTER
        for member in nsmallest(MAX_OWN, due, key=lambda member: member.asked):
            if member in self._members and not await self._catch_up_one(member):
                return

    async def _catch_up_one(self, member: Member) -> bool:
        """Ask a member's own questions; return whether others are worth asking."""
        member.asked = _now()
        try:
            for query in member.questions():
                listing = await self._list(query)
                if listing is None:
                    return False
                await self._hand_out(listing, query, [member], is_own=True)
        except FsmError as error:
            if concerns_service(error):
                return False
            if member.failing_since is None:
                member.failing_since = _now()
            with suppress(Exception):
                member.fail(error, member.failing_since)
            member.due = _now() + GIVE_UP_AFTER
            return True
        member.failing_since = None
        member.due = _now() + member.check_after(self.time())
        return True

    async def _catch_up_all(self, due: list[Member]) -> None:
        """List once for all: what was created, and what was updated, since the earliest bounds."""
        asked = [query for member in due for query in member.questions()]
        created = [query.created_since for query in asked if query.created_since is not None]
        updated = [query.updated_since for query in asked if query.created_since is None]
        queries = [Query(created_since=min(created))] if created else []
        if updated:
            bounds = [bound for bound in updated if bound is not None]
            queries.append(Query(updated_since=min(bounds) if len(bounds) == len(updated) else None))
        for query in queries:
            listing = await self._list(query)
            if listing is None:
                return
            await self._hand_out(listing, query, list(self._members), is_own=True)
        turn = _Turn()
        for member in list(self._members):
            await turn.end()
            if all(any(_covers(query, own) for query in queries) for own in member.questions()):
                member.failing_since, member.asked = None, _now()
                member.due = _now() + member.check_after(self.time())

    # --- listings ---

    async def _list(self, query: Query) -> Listing | None:
        """List, and return None if the service is another than before: then this feed is over."""
        listing = await self._reader.read(query)
        if self.service not in (None, listing.service):
            logger.warning(
                "The connection leads to %s now: what is known of %s is dropped",
                *(listing.service, self.service),
            )
            for member in list(self._members):
                member.moved(listing.service)
            return None
        self.service = listing.service
        self._offset = listing.started - _now()
        if query.created_since is not None and not self._asks_by_creation:
            self._asks_by_creation = any(form.updated is None for form in listing.forms)
        return listing

    async def _hand_out(
        self, listing: Listing, query: Query, members: Iterable[Member], *, is_own: bool = False
    ) -> None:
        """Hand forms to the members that they concern, in slices; then tell those that follow every poll."""
        chosen = None if members is self._members else set(members)
        turn = _Turn()
        for first in range(0, len(listing.forms), SLICE):
            by_place: dict[Place, list[Form]] = defaultdict(list)
            for form in listing.forms[first : first + SLICE]:
                for place in (
                    ("job", form.job_id),
                    ("property", form.property_id),
                    ("name", form.name),
                    ("any", ""),
                ):
                    if place in self._by_place:
                        by_place[place].append(form)
            await turn.end()
            for place, forms in by_place.items():
                for member in list(self._by_place.get(place, ())):
                    if member in self._members and (chosen is None or member in chosen):
                        try:
                            member.ingest(forms, is_own=is_own)
                        except Exception as error:
                            logger.exception("Forms could not be handed out")
                            member.fail(FsmConnectionError(f"unexpected: {type(error).__name__}"), _now())
                        await turn.end()
        if listing.is_complete:
            for member in list(self._members if chosen is None else chosen):
                if member.follows and member in self._members:
                    member.polled(query, listing.started)

    async def _fail_all(self, error: FsmError) -> None:
        turn, since = _Turn(), self._failing_since or _now()
        for member in list(self._members):
            if member in self._members:
                with suppress(Exception):
                    member.fail(error, since)
            await turn.end()


class _Turn:
    def __init__(self) -> None:
        self._ends = perf_counter() + TURN

    async def end(self) -> None:
        """Pause if it is time."""
        if perf_counter() >= self._ends:
            await asyncio.sleep(0)
            self._ends = perf_counter() + TURN


def _covers(query: Query, own: Query) -> bool:
    if own.created_since is not None:
        return query.created_since is not None and query.created_since <= own.created_since
    if query.created_since is not None:
        return False
    return query.updated_since is None or (
        own.updated_since is not None and query.updated_since <= own.updated_since
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
