"""One feed of forms for all sensors and watchers that ask one service alike, at one interval."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from heapq import nsmallest
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from fsm_provider.api.errors import (
    FsmConnectionError,
    FsmError,
    FsmRateLimitedError,
    FsmUnauthorisedError,
)
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling.polls import (
    Form,
    Lister,
    Place,
    Query,
    Source,
    Time,
    list_completely,
    time_of,
)
from fsm_provider.polling.tracker import LOOK_BACK
from fsm_provider.polling.waits import Wait

if TYPE_CHECKING:
    from fsm_provider.polling.watcher import Watcher

    Member: TypeAlias = Wait | Watcher

logger: logging.Logger = logging.getLogger(__name__)

MAX_OWN = 20
"""Members that are asked for one by one in an interval; for more there is one listing."""
GIVE_UP_AFTER = 900.0
"""Seconds until an unreadable listing of changes is left to the catch-ups, or a catch-up is
repeated.

A feed pauses no longer than this when the service asks it to wait.
"""
SLICE = 2_000
"""Forms that are handed out before the loop gets its turn."""

_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Source, Feed]] = WeakKeyDictionary()


@contextmanager
def joined(source: Source, member: Member, covered_since: Time | None = None) -> Iterator[Feed]:
    """Have the feed of a source poll for a member, too; it knows the forms of its own poll at that
    time.
    """
    feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
    feed = feeds.get(source) or feeds.setdefault(source, Feed(source))
    source = feed._source  # one for all members
    feed.join(member, covered_since)
    try:
        yield feed
    finally:
        feed.leave(member)
        if not feed._members:
            feeds.pop(source, None)
            feed._task.cancel()
            feed._measure()


class Feed:
    """Polls the service for its members, while it has any."""

    def __init__(self, source: Source) -> None:
        self._source, self._lister = source, Lister(source)
        self._members: dict[Member, None] = {}
        self._by_place: dict[Place, dict[Member, None]] = defaultdict(dict)
        self._start: Time | None = None
        self._offset: float | None = None
        self._failing_since = 0.0
        self._is_refused, self._one_by_one_until = False, float("-inf")
        self._asks_by_creation = False
        self._failures, self._polled_at, self._pause_until = 0, _now(), 0.0
        # An empty context, or its log would be that of the first member's task.
        self._task = asyncio.create_task(self._run(), name="fsm feed", context=Context())

    def join(self, member: Member, covered_since: Time | None) -> None:
        self._members[member] = None
        for place in member.places:
            self._by_place[place][member] = None
        start = self.time() if self._start is None else self._start
        goes_on = covered_since is not None and covered_since >= start - LOOK_BACK / 2
        member.due = _now() + (member.check_after(self.time()) if goes_on else 0.0)

    def leave(self, member: Member) -> None:
        del self._members[member]
        for place in member.places:
            self._by_place[place].pop(member, None)
            if not self._by_place[place]:
                del self._by_place[place]

    def time(self) -> Time:
        """Return the service's time; ours before it has answered."""
        return time.time() if self._offset is None else _now() + self._offset

    async def _run(self) -> None:
        try:
            await asyncio.gather(*map(self._every_interval, (self._poll_changes, self._catch_up)))
        finally:
            self._lister.close()

    async def _every_interval(self, poll: Callable[[], Awaitable[None]]) -> None:
        while True:
            next_at = _now() + self._source.interval
            try:
                await poll()
            except Exception:
                logger.exception("A poll failed unexpectedly; the next follows")
            await asyncio.sleep(max(next_at - _now(), self._pause_until - _now(), 0.005))

    async def _poll_changes(self) -> None:
        began, members = self.time(), list(self._members)  # who joins later may miss some of it
        since = (began if self._start is None else self._start) - LOOK_BACK
        queries = [Query(updated_since=since)]
        if self._asks_by_creation:
            queries.append(Query(created_since=since))
        try:
            started, is_complete = await self._ask(queries)
        except FsmError as error:
            await self._changes_failed(error, began)
            return
        if not is_complete:
            logger.warning(
                "The listing of changes kept shifting while it was read; it is read again"
            )
            return
        for member in members:
            if member in self._members:
                member.polled(since, started)
        self._start, self._polled_at = started, _now()
        self._is_refused, self._failures = False, 0
        self._measure("complete")

    async def _changes_failed(self, error: FsmError, began: Time) -> None:
        now = _now()
        if not self._failures:
            logger.warning("Polling for forms failed, and goes on: %s", error)
            self._failing_since = now
        self._failures += 1
        self._measure("failed")
        self._is_refused = not _concerns_service(error)
        if not self._is_refused:
            for member in list(self._members):
                if member in self._members:
                    member.fail(error, self._failing_since)
                await asyncio.sleep(0)
        elif now - self._failing_since >= GIVE_UP_AFTER and self._offset is not None:
            text = "Changes since %s could not be read; going on from %s"
            logger.error(text, time_of(self._start), time_of(began))
            self._failing_since, self._start = (
                now,
                began + LOOK_BACK,
            )  # the next listing is from there
            for member in self._members:
                member.due = min(member.due, now)

    def _measure(self, result: str | None = None) -> None:
        """Count a poll, and measure the waits of its connection: the worst of its feeds."""
        fsm_conn_id, waits = self._source.fsm_conn_id, dict[Feed, int]()
        for feed in _feeds.get(asyncio.get_running_loop(), {}).values():
            count = sum(isinstance(member, Wait) for member in feed._members)
            if count and feed._source.fsm_conn_id == fsm_conn_id:
                waits[feed] = count
        metrics = AirflowMetrics({"connection": fsm_conn_id})
        if result:
            if self not in waits:
                return
            metrics.incr("waits.polls", result=result)
        metrics.gauge("waits", sum(waits.values()))
        metrics.gauge("waits.failures", max((feed._failures for feed in waits), default=0))
        metrics.gauge(
            "waits.poll_age", max((_now() - feed._polled_at for feed in waits), default=0.0)
        )
        metrics.gauge(
            "waits.poll_interval", max((feed._source.interval for feed in waits), default=0.0)
        )

    async def _catch_up(self) -> None:
        now = _now()
        due = [member for member in self._members if self._is_refused or member.due <= now]
        is_common = len(due) > MAX_OWN and now >= self._one_by_one_until and not self._is_refused
        waited_longest = nsmallest(MAX_OWN, due, key=lambda member: member.asked)
        for group in [due] if is_common else [[member] for member in waited_longest]:
            try:
                if present := [member for member in group if member in self._members]:
                    await self._catch_up_of(present, is_common)
            except FsmError as error:
                if _concerns_service(error):
                    return
                if is_common:
                    logger.warning("A catch-up of all failed, and goes on one by one: %s", error)
                    self._one_by_one_until = _now() + GIVE_UP_AFTER
                    return
                (member,) = group
                member.due = _now() + GIVE_UP_AFTER
                if member.failing_since is None:
                    member.failing_since = _now()
                member.fail(error, member.failing_since)

    async def _catch_up_of(self, members: list[Member], is_common: bool) -> None:
        """List what the members ask for; if that is common, all since the earliest of their bounds."""
        queries = [query for member in members for query in member.questions()]
        if is_common:
            created = [one.created_since for one in queries if one.created_since is not None]
            updated = [one.updated_since or 0.0 for one in queries if one.created_since is None]
            queries = [Query(created_since=min(created))] if created else []
            if updated:
                queries.append(Query(updated_since=min(updated) or None))
        for member in members:
            member.asked = _now()
        started, is_complete = await self._ask(queries, None if is_common else members)
        for member in members:
            await asyncio.sleep(0)
            if member in self._members:
                if is_complete:
                    member.caught_up(started)
                member.failing_since = None
                member.due = _now() + member.check_after(self.time())

    async def _ask(
        self, queries: Iterable[Query], members: Collection[Member] | None = None
    ) -> tuple[Time, bool]:
        """List, and hand out the forms; return when it started, and whether the listings are
        complete.
        """
        answers = []
        for query in queries:
            try:
                listing = await list_completely(self._lister.list_forms, query)
            except FsmError as error:
                asked = min(getattr(error, "retry_after", None) or 0.0, GIVE_UP_AFTER)
                self._pause_until = max(self._pause_until, _now() + asked)
                raise
            if listing.service != self._source.service:
                for member in self._members:
                    member.moved()
                raise FsmConnectionError(f"the connection leads to {listing.service} now")
            self._offset = listing.started - _now()
            if query.created_since is not None and not self._asks_by_creation:
                self._asks_by_creation = any(form.updated is None for form in listing.forms)
            await self._hand_out(listing.forms, members)
            answers.append(listing)
        return min(one.started for one in answers), all(one.is_complete for one in answers)

    async def _hand_out(self, forms: list[Form], members: Collection[Member] | None) -> None:
        kinds = ("job", "property", "name", "any")
        for first in range(0, len(forms), SLICE):
            by_place: dict[Place, list[Form]] = defaultdict(list)
            for form in forms[first : first + SLICE]:
                for place in zip(
                    kinds, (form.job_id, form.property_id, form.name, ""), strict=True
                ):
                    if place in self._by_place:
                        by_place[place].append(form)
            for place, some in by_place.items():
                for member in list(self._by_place.get(place, ())):
                    if member in self._members and (members is None or member in members):
                        member.ingest(some)
                        await asyncio.sleep(0)
            await asyncio.sleep(0)


def _concerns_service(error: FsmError) -> bool:
    """Return whether no other question would be answered: not reached, 401 or 429."""
    return isinstance(error, FsmConnectionError | FsmUnauthorisedError | FsmRateLimitedError)


def _now() -> float:
    return asyncio.get_running_loop().time()
