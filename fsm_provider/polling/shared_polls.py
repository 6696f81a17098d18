"""Polls that the assets of a connection share: one listing for all of them, in a task of its own."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fsm_provider.api.errors import FsmError
from fsm_provider.api.form_filter import FormFilter
from fsm_provider.polling.old_polls import PollQuery, PollResult
from fsm_provider.polling.poller import FormPoller, PollFailure, poll_forever
from fsm_provider.polling.unexpected_errors import keep_polling

logger: logging.Logger = logging.getLogger(__name__)

ReturnT = TypeVar("ReturnT")

MAX_SHARED_RANGE = timedelta(days=8)
"""How far the common listing goes back, at most: a reconciliation of a week, and a day without polls.

A query that goes back further has a listing of its own at the same time, so that the others do not wait for
it. Such listings are shared too, by queries of the same moment whose ranges differ by less than a factor of
two.
"""
ALONE_SECONDS, ALONE_INTERVALS = 3600.0, 10
"""Members share a listing again that had more pages than one for each would have after these seconds, or
these intervals if they are longer."""
ALONE_SHARE = 0.5
"""Queries that go back at least this share as far as an abandoned listing are taken to be cheaper alone."""
JOIN_DELAY = 1.0
"""Seconds from an asset's joining to its first poll, so that assets that join together share it."""


@dataclass(frozen=True, slots=True, eq=False)
class PollMember:
    """What takes part in shared polls. Its functions are called in the context that it was made in.

    :param next_query: returns what to ask for, given the time of the loop's clock in seconds.
    :param ingest: handles a listing, given its query, its result, and the time of its start. The listing may
        go back further than the member's query, and is not restricted to its property or job.
    :param fail: is notified of a poll that failed.
    """

    next_query: Callable[[float], PollQuery]
    ingest: Callable[[PollQuery, PollResult, float], object]
    fail: Callable[[PollFailure], object]
    context: Context = field(default_factory=copy_context)


class SharedPolls:
    """The polls of one group of members. They run while it has members.

    A member's exception is logged, and is its own: the others go on, and so does it with the next poll.
    """

    def __init__(self, fsm_conn_id: str, query_params: dict[str, Any] | None, interval: float) -> None:
        self._fsm_conn_id = fsm_conn_id
        self._query_params = query_params
        self._interval = interval
        self._poller = self._new_poller()
        self._members: dict[PollMember, None] = {}
        self._batch: dict[PollMember, PollQuery] = {}
        self._apart: dict[asyncio.Task[None], list[PollMember]] = {}
        self._joined = asyncio.Event()
        self._is_failing = False
        self._alone_from, self._alone_until = timedelta.max, 0.0
        self._task = _start(self._run())

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self._members

    def add(self, member: PollMember) -> None:
        """Let a member take part from the next listing on, which starts soon."""
        self._members[member] = None
        self._joined.set()

    def remove(self, member: PollMember) -> list[asyncio.Task[None]]:
        """Call the member no more.

        :return: the tasks that end, as no member needs them; the last member ends all.
        """
        del self._members[member]
        unneeded = [task for task, members in self._apart.items() if not self._present(members)]
        if self.is_empty:
            unneeded.append(self._task)
        for task in unneeded:
            task.cancel()
        return unneeded

    async def _run(self) -> None:
        try:
            await keep_polling(
                self._poll,
                fsm_conn_id=self._fsm_conn_id,
                interval=self._interval,
                first_after=JOIN_DELAY,
                fail=self._fail,
            )
        finally:
            self._poller.close()

    async def _poll(self, first_after: float) -> None:
        """Read the common listings."""
        polls = poll_forever(
            self._poller,
            next_query=lambda now: _combined(self._batch.values()),
            ingest=lambda *polled: self._ingest(self._batch, *polled),
            interval=self._interval,
            first_after=first_after,
            sleep=self._sleep,
        )
        async with aclosing(polls):
            async for polled in polls:
                self._is_failing = isinstance(polled, PollFailure)
                self._notify(self._batch, polled)

    async def _fail(self, error: FsmError) -> None:
        """Notify the members that take part in common listings of an unexpected error."""
        self._poller.abandon()
        self._is_failing = True
        self._notify(self._free_members(), PollFailure(error))

    async def _poll_apart(self, members: list[PollMember]) -> None:
        """Read one listing for members that are better apart, or listings as long as they are."""
        batch: dict[PollMember, PollQuery] = {}

        def next_query(now: float) -> PollQuery | None:
            nonlocal batch
            batch = self._queries(members, now)
            return _combined(batch.values()) if batch else None

        poller = self._new_poller()
        polls = poll_forever(
            poller,
            next_query=next_query,
            ingest=lambda *polled: self._ingest(batch, *polled),
            interval=self._interval,
            first_after=0.0,
        )
        try:
            async with aclosing(polls):
                async for polled in polls:
                    self._notify(batch, polled)
                    if polled is False:
                        return
        finally:
            poller.close()

    def _ingest(
        self, members: Iterable[PollMember], query: PollQuery, result: PollResult, now: float
    ) -> bool:
        """Give members a listing; return whether the next one like it is to be theirs alone, too."""
        if not result.complete:
            self._abandon(query)
            return False
        for member in self._present(members):
            self._call(member, member.ingest, query, result, now)
        return self._is_cheaper_alone(query)

    def _abandon(self, query: PollQuery) -> None:
        """Let members that ask for one property or job poll alone for a while."""
        now = asyncio.get_running_loop().time()
        alone_before = self._alone_from if now < self._alone_until else timedelta.max
        self._alone_from = min(alone_before, ALONE_SHARE * _age(query))
        self._alone_until = now + max(ALONE_SECONDS, ALONE_INTERVALS * self._interval)
        self._joined.set()

    def _is_cheaper_alone(self, query: PollQuery) -> bool:
        """Whether a query costs less alone than in a listing for several members."""
        is_known = asyncio.get_running_loop().time() < self._alone_until
        return is_known and _is_narrow(query) and _age(query) >= self._alone_from

    def _notify(self, members: Iterable[PollMember], polled: PollFailure | bool) -> None:
        if isinstance(polled, PollFailure):
            for member in self._present(members):
                self._call(member, member.fail, polled)

    async def _sleep(self, seconds: float) -> None:
        """Wait for the next poll; after a success, at most until another member has joined."""
        if self._is_failing:
            await asyncio.sleep(seconds)
        else:
            await self._wait_for_member(seconds)
        while not self._poller.pages_read:
            self._joined.clear()
            if self._choose_batch():
                return
            await self._wait_for_member(self._interval)

    async def _wait_for_member(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._joined.wait()
        if self._joined.is_set():
            await asyncio.sleep(JOIN_DELAY)

    def _choose_batch(self) -> bool:
        """Choose the members of the common listing, and start listings for those that are better apart.

        :return: whether the common listing has members.
        """
        apart: dict[object, list[PollMember]] = {}
        self._batch = {}
        for member, query in self._queries(self._free_members(), asyncio.get_running_loop().time()).items():
            age = _age(query)
            if self._is_cheaper_alone(query):
                apart.setdefault(_place(query), []).append(member)
            elif age <= MAX_SHARED_RANGE:
                self._batch[member] = query
            else:
                apart.setdefault((age // MAX_SHARED_RANGE).bit_length(), []).append(member)
        for members in apart.values():
            task = _start(self._poll_apart(members))
            self._apart[task] = members
            task.add_done_callback(self._apart.pop)
        return bool(self._batch)

    def _free_members(self) -> list[PollMember]:
        busy = {member for members in self._apart.values() for member in members}
        return [member for member in self._members if member not in busy]

    def _queries(self, members: Iterable[PollMember], now: float) -> dict[PollMember, PollQuery]:
        queries = {one: self._call(one, one.next_query, now) for one in self._present(members)}
        return {member: query for member, query in queries.items() if query is not None}

    def _present(self, members: Iterable[PollMember]) -> list[PollMember]:
        return [member for member in members if member in self._members]

    def _call(self, member: PollMember, function: Callable[..., ReturnT], *args: Any) -> ReturnT | None:
        """Call a function of a member in its context; return None if it raises."""

        def run() -> ReturnT | None:
            try:
                return function(*args)
            except Exception:
                logger.exception("A poll for forms of '%s' could not be handled", self._fsm_conn_id)
                return None

        return member.context.run(run)

    def _new_poller(self) -> FormPoller:
        return FormPoller(self._fsm_conn_id, self._query_params)


_groups: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SharedPolls]] = WeakKeyDictionary()


@asynccontextmanager
async def shared_polls(
    member: PollMember,
    *,
    fsm_conn_id: str,
    query_params: dict[str, Any] | None,
    wanted: FormFilter,
    interval: float,
) -> AsyncGenerator[None]:
    """Poll for a member while the body runs, together with the other members of this event loop.

    :param fsm_conn_id: the Airflow connection.
    :param query_params: query parameters that the specification does not document.
    :param wanted: the member's filter. Members share listings if all agree but property, job and times.
    :param interval: seconds from the end of a poll to the next.
    """
    groups = _groups.setdefault(asyncio.get_running_loop(), {})
    common = wanted.for_shared_stream().as_dict()
    key = json.dumps([fsm_conn_id, query_params, common, float(interval)], sort_keys=True, default=str)
    group = groups.get(key)
    if group is None:
        group = groups[key] = SharedPolls(fsm_conn_id, query_params, interval)
    group.add(member)
    try:
        yield
    finally:
        unneeded = group.remove(member)
        if group.is_empty:
            del groups[key]
        if unneeded:
            await asyncio.wait(unneeded)


def _combined(queries: Collection[PollQuery]) -> PollQuery:
    """Return a query that includes the forms of all: for one property or job only if all ask for the same.

    If each asks for one, it is abandoned once it has more pages than a listing for each place would have.
    """
    first, *others = queries
    if not others:
        return first
    places, bounds = set(map(_place, queries)), [query.since for query in queries]
    properties, jobs = map(set, zip(*places, strict=True))
    wanted = replace(
        first.wanted.for_shared_stream(),
        property_id=first.wanted.property_id if len(properties) == 1 else None,
        job_id=first.wanted.job_id if len(jobs) == 1 else None,
        updated_since=None if None in bounds else min(filter(None, bounds)),
    )
    max_pages = len(places) if len(places) > 1 and all(map(_is_narrow, queries)) else None
    return PollQuery(wanted=wanted, max_pages=max_pages)


def _place(query: PollQuery) -> tuple[object, object]:
    """Return the property and the job that it asks for."""
    return query.wanted.property_id, query.wanted.job_id


def _is_narrow(query: PollQuery) -> bool:
    """Whether it asks for the forms of one property or job, which fit on one page."""
    return _place(query) != (None, None)


def _age(query: PollQuery) -> timedelta:
    """Return how far a query goes back; a bound may be in the future, as by the clock of the service."""
    return timedelta.max if query.since is None else max(timedelta(0), datetime.now(UTC) - query.since)


def _start(coroutine: Any) -> asyncio.Task[None]:
    """Run a coroutine with an empty context: its logs belong to no member."""
    return asyncio.get_running_loop().create_task(coroutine, context=Context())
