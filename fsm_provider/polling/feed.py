"""One feed of forms for all sensors and watchers that ask one service alike, at one interval."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from heapq import nsmallest
from weakref import WeakKeyDictionary

from fsm_provider.api.errors import (
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmRateLimitedError,
    FsmUnauthorisedError,
)
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling.limits import pause_after
from fsm_provider.polling.lister import Lister, Source, list_completely
from fsm_provider.polling.polls import (
    ANY_FORM,
    LOOK_BACK,
    FormVersion,
    ListingResult,
    Query,
    RoutingKey,
    Time,
    time_of,
)
from fsm_provider.polling.subscriber import Subscriber

logger: logging.Logger = logging.getLogger(__name__)

MAX_ONE_BY_ONE = 20
"""Subscribers that are asked for one by one in an interval; for more there is one listing."""
GIVE_UP_CHANGES_AFTER = 900.0
"""Seconds until an unreadable listing of changes is left to the catch-ups."""
REPEAT_FAILED_AFTER = 900.0
"""Seconds until a catch-up that failed is repeated: that of a subscriber, or that for many."""
SLICE = 2_000
"""Forms that are handed out before the loop gets its turn."""

_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Source, Feed]] = WeakKeyDictionary()


@dataclass(slots=True)
class Subscription:
    """What a feed keeps of a subscriber; nobody else sees it. Times are those of the event loop.

    :ivar due: when its next catch-up is.
    :ivar asked_at: when its last catch-up began.
    :ivar failing_since: since when its own queries fail; None: they do not.
    """

    due: float
    asked_at: float = 0.0
    failing_since: float | None = None


@contextmanager
def subscribe(
    source: Source, subscriber: Subscriber, covered_since: Time | None = None
) -> Iterator[Feed]:
    """Have the feed of a source poll for a subscriber, too, while the context lasts.

    :param covered_since: the start of a poll of its own, whose forms the subscriber knows.
    """
    feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
    feed = feeds.get(source)
    if feed is None:
        feed = Feed(source)
        feeds[source] = feed
    source = feed.source  # so that the equal one that was passed need not stay in memory
    feed.add(subscriber, covered_since)
    try:
        yield feed
    finally:
        feed.remove(subscriber)
        if not feed._subscriptions:
            feeds.pop(source, None)
            feed.close()


class Feed:
    """Polls the service for its subscribers, while it has any.

    An event loop has one feed for each source. All of it runs in that loop; only the listings run
    in threads, those of its :class:`~.lister.Lister`. :func:`subscribe` makes the feed for its
    first subscriber, which starts its task, and closes it after the last one.

    The task does two things at a time, each once an interval and by one listing after the other.
    It polls for changes: it asks for all that was updated since the last complete poll, hands each
    form to the subscribers that have a routing key of it (``ingest``), and then tells all
    subscribers (``on_poll``). And it catches up: for the subscribers that are due, it asks what
    they say (``begin_catch_up``), hands out the forms, and tells those subscribers
    (``on_catch_up``), whose ``check_after`` says when they are due again.

    Both go on after a listing that fails. Where every other query would fail alike, the poll for
    changes tells all subscribers (``on_failure``). Else, while that of changes fails, all are due,
    and are caught up one by one; a subscriber is told of failures of its own queries only.

    A listing that another service has answered is dropped, and all are told
    (``on_service_changed``).
    """

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self._lister = Lister(source)
        self._metrics = AirflowMetrics({"connection": source.fsm_conn_id})
        self._subscriptions: dict[Subscriber, Subscription] = {}
        # The subscribers to each key, in their order: a dictionary as an ordered set.
        self._by_routing_key: dict[RoutingKey, dict[Subscriber, None]] = defaultdict(dict)
        self._waits = 0  # subscribers that are deferred sensors
        self._changes_since: Time | None = None  # the bound of the next poll; None: there was none
        self._time_offset: float | None = None  # :meth:`time` less that of the loop
        self._asks_by_creation = False
        self._failures = 0  # of polls for changes, in a row
        self._failing_since = _now()  # the first of these failures
        self._outage_since: float | None = None  # since when every query fails; None: some succeed
        self._has_unreadable_changes = False  # the last poll for them failed, others need not
        self._one_by_one_until = float("-inf")  # a listing for many has failed
        self._polled_at = _now()
        self._pause_until = float("-inf")  # as the service has asked
        # An empty context, or its log would be that of the first subscriber's task.
        self._task = asyncio.create_task(self._run(), name="fsm feed", context=Context())

    def add(self, subscriber: Subscriber, covered_since: Time | None) -> None:
        for key in subscriber.routing_keys():
            self._by_routing_key[key][subscriber] = None
        # The next poll goes back to its bound. Half of the look-back is left for forms that are
        # listed later than they were updated.
        reach = self._bound_of_changes(self.time()) + LOOK_BACK / 2
        misses_nothing = covered_since is not None and covered_since >= reach
        due_in = subscriber.check_after(self.time()) if misses_nothing else 0.0
        self._subscriptions[subscriber] = Subscription(due=_now() + due_in)
        self._waits += subscriber.is_wait

    def remove(self, subscriber: Subscriber) -> None:
        del self._subscriptions[subscriber]
        self._waits -= subscriber.is_wait
        if not self._waits:  # no poll measures them any more
            self._measure_waits()
        for key in subscriber.routing_keys():
            self._by_routing_key[key].pop(subscriber, None)
            if not self._by_routing_key[key]:
                del self._by_routing_key[key]

    def close(self) -> None:
        self._task.cancel()

    def catch_up_now(self, subscriber: Subscriber) -> None:
        """Have the next catch-up ask for a subscriber."""
        self._subscriptions[subscriber].due = _now()

    def is_failing(self, subscriber: Subscriber) -> bool:
        """Return whether the last catch-up that asked for a subscriber alone has failed."""
        return self._subscriptions[subscriber].failing_since is not None

    def time(self) -> Time:
        """Return the time by the service's clock or ours, whichever is earlier.

        Before the first listing, it is ours. It is behind by as long as the last listing took: a
        bound that is too early misses no form.
        """
        if self._time_offset is None:
            return time.time()
        return _now() + self._time_offset

    async def _run(self) -> None:
        try:
            await asyncio.gather(
                self._every_interval(self._poll_changes), self._every_interval(self._catch_up)
            )
        finally:
            self._lister.close()

    async def _every_interval(self, poll: Callable[[], Awaitable[None]]) -> None:
        while True:
            next_at = _now() + self.source.interval
            try:
                await poll()
            except Exception:
                logger.exception("A poll failed unexpectedly; the next follows")
            await asyncio.sleep(max(next_at - _now(), 0.005))
            # The other of the two may have been asked to pause meanwhile.
            await asyncio.sleep(self._pause_until - _now())

    # --- changes ---

    def _bound_of_changes(self, now: Time) -> Time:
        if self._changes_since is None:
            return now - LOOK_BACK
        return self._changes_since

    async def _poll_changes(self) -> None:
        asked = self.time()
        since = self._bound_of_changes(asked)
        subscribers = list(self._subscriptions)  # one that comes later may miss some of it
        queries = [Query(updated_since=since)]
        if self._asks_by_creation:
            queries.append(Query(created_since=since))
        try:
            started, is_complete = await self._list_and_hand_out(queries)
        except FsmError as error:
            await self._changes_failed(error, since, asked)
            return
        if not is_complete:
            logger.warning(
                "The listing of changes kept shifting while it was read; it is read again"
            )
            return
        for subscriber in subscribers:
            if subscriber in self._subscriptions:
                _tell(subscriber.on_poll, since, started)
        self._changes_since = started - LOOK_BACK
        self._has_unreadable_changes = False
        self._outage_since = None
        self._failures = 0
        self._polled_at = _now()
        self._count_poll("complete")

    async def _changes_failed(self, error: FsmError, since: Time, asked: Time) -> None:
        if self._failures == 0:
            logger.warning("Polling for forms failed, and goes on: %s", error)
            self._failing_since = _now()
        self._failures += 1
        self._count_poll("failed")
        self._has_unreadable_changes = not _concerns_all_queries(error)
        if self._has_unreadable_changes:
            self._outage_since = None
            self._skip_unreadable_changes(since, asked)
            return
        if self._outage_since is None:
            self._outage_since = _now()
        for subscriber in list(self._subscriptions):
            if subscriber in self._subscriptions:
                _tell(subscriber.on_failure, error, self._outage_since)
            await asyncio.sleep(0)

    def _skip_unreadable_changes(self, since: Time, asked: Time) -> None:
        """Leave changes that stay unreadable to the catch-ups, and go on from the last attempt."""
        is_over = _now() - self._failing_since >= GIVE_UP_CHANGES_AFTER
        if not is_over or self._time_offset is None:  # no listing has succeeded yet
            return
        logger.error(
            "Changes since %s could not be read; going on from %s", time_of(since), time_of(asked)
        )
        self._failing_since = _now()
        self._changes_since = asked
        for subscription in self._subscriptions.values():
            subscription.due = min(subscription.due, _now())

    # --- catch-ups ---

    async def _catch_up(self) -> None:
        now = _now()
        # While changes cannot be read, everybody is due.
        due = [
            subscriber
            for subscriber, subscription in self._subscriptions.items()
            if self._has_unreadable_changes or subscription.due <= now
        ]
        may_ask_together = not self._has_unreadable_changes and now >= self._one_by_one_until
        if may_ask_together and len(due) > MAX_ONE_BY_ONE:
            await self._catch_up_together(due)
        else:
            await self._catch_up_one_by_one(due)

    async def _catch_up_together(self, subscribers: list[Subscriber]) -> None:
        queries = []
        for subscriber in subscribers:
            queries += subscriber.begin_catch_up()
            self._subscriptions[subscriber].asked_at = _now()
        try:
            started, is_complete = await self._list_and_hand_out(_common_queries(queries))
        except FsmError as error:
            if not _concerns_all_queries(error):
                logger.warning("A catch-up of all failed, and goes on one by one: %s", error)
                self._one_by_one_until = _now() + REPEAT_FAILED_AFTER
            return
        for subscriber in subscribers:
            await asyncio.sleep(0)
            self._caught_up(subscriber, started, is_complete)

    async def _catch_up_one_by_one(self, subscribers: list[Subscriber]) -> None:
        longest_unasked = nsmallest(
            MAX_ONE_BY_ONE,
            subscribers,
            key=lambda subscriber: self._subscriptions[subscriber].asked_at,
        )
        for subscriber in longest_unasked:
            subscription = self._subscriptions.get(subscriber)
            if subscription is None:  # it has left meanwhile
                continue
            queries = subscriber.begin_catch_up()
            subscription.asked_at = _now()
            try:
                started, is_complete = await self._list_and_hand_out(queries, subscriber)
            except FsmError as error:
                if _concerns_all_queries(error):
                    return
                subscription.due = _now()
                # Else its query may fail for the same reason, and is asked again soon.
                if not self._has_unreadable_changes:
                    subscription.due += REPEAT_FAILED_AFTER
                if subscription.failing_since is None:
                    subscription.failing_since = _now()
                _tell(subscriber.on_failure, error, subscription.failing_since)
                continue
            self._caught_up(subscriber, started, is_complete)

    def _caught_up(self, subscriber: Subscriber, started: Time, is_complete: bool) -> None:
        subscription = self._subscriptions.get(subscriber)
        if subscription is None:  # it has left meanwhile
            return
        if not is_complete:  # it is asked again
            return
        subscription.failing_since = None
        _tell(subscriber.on_catch_up, started)
        subscription.due = _now() + subscriber.check_after(self.time())

    # --- listings ---

    async def _list_and_hand_out(
        self, queries: Iterable[Query], only: Subscriber | None = None
    ) -> tuple[Time, bool]:
        """List all that queries ask for, and hand it out by routing keys: to all, or to one.

        Return when the first listing started, and whether all are complete.
        """
        starts = []
        is_complete = True
        for query in queries:
            listing = await self._list(query)
            await self._hand_out(listing.forms, only)
            starts.append(listing.started)
            is_complete &= listing.is_complete
        return min(starts), is_complete

    async def _list(self, query: Query) -> ListingResult:
        try:
            listing = await list_completely(self._lister.list_forms, query)
        except FsmError as error:
            self._pause_until = max(self._pause_until, _now() + pause_after(error))
            raise
        if listing.service != self.source.service:
            for subscriber in self._subscriptions:
                _tell(subscriber.on_service_changed)
            raise FsmConnectionError(f"the connection leads to {listing.service} now")
        self._time_offset = listing.started - _now()
        # A service may leave records that were never updated out of its changes.
        if query.is_by_creation and any(form.updated is None for form in listing.forms):
            self._asks_by_creation = True
        return listing

    async def _hand_out(self, forms: list[FormVersion], only: Subscriber | None) -> None:
        for first in range(0, len(forms), SLICE):
            by_key = self._forms_by_key(forms[first : first + SLICE])
            for key, forms_of_key in by_key.items():
                for subscriber in list(self._by_routing_key.get(key, ())):
                    is_addressed = only is None or subscriber is only
                    if is_addressed and subscriber in self._subscriptions:
                        _tell(subscriber.ingest, forms_of_key)
                        await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _forms_by_key(self, forms: Collection[FormVersion]) -> dict[RoutingKey, list[FormVersion]]:
        """Return the forms by those of their routing keys that somebody subscribes to."""
        by_key = defaultdict(list)
        for form in forms:
            keys = (
                ("job", form.job_id),
                ("property", form.property_id),
                ("name", form.name),
                ANY_FORM,
            )
            for key in keys:
                if key in self._by_routing_key:
                    by_key[key].append(form)
        return by_key

    # --- metrics ---

    def _count_poll(self, result: str) -> None:
        if self._waits:
            self._metrics.incr("waits.polls", result=result)
            self._measure_waits()

    def _measure_waits(self) -> None:
        """Measure the waits of the connection: of its feeds that have some, the worst."""
        fsm_conn_id = self.source.fsm_conn_id
        feeds = [
            feed
            for feed in _feeds.get(asyncio.get_running_loop(), {}).values()
            if feed._waits and feed.source.fsm_conn_id == fsm_conn_id
        ]
        metrics = self._metrics
        metrics.gauge("waits", sum(feed._waits for feed in feeds))
        metrics.gauge("waits.failures", max((feed._failures for feed in feeds), default=0))
        poll_ages = [_now() - feed._polled_at for feed in feeds]
        metrics.gauge("waits.poll_age", max(poll_ages, default=0.0))
        intervals = [feed.source.interval for feed in feeds]
        metrics.gauge("waits.poll_interval", max(intervals, default=0.0))


def _tell(call: Callable[..., None], *arguments: object) -> None:
    """Call a subscriber: what it raises is its own, and keeps nothing from the others."""
    try:
        call(*arguments)
    except Exception:
        logger.exception("A subscriber failed; the others get their forms")


def _common_queries(queries: Collection[Query]) -> list[Query]:
    """Return queries for the whole account, from the earliest of all bounds of their kind."""
    created = [query.created_since for query in queries if query.is_by_creation]
    updated = [query.updated_since for query in queries if not query.is_by_creation]
    common = []
    if created:
        common.append(Query(created_since=min(created)))
    if updated:
        common.append(Query(updated_since=min(updated)))
    return common


def _concerns_all_queries(error: FsmError) -> bool:
    """Return whether every other query would fail alike.

    So it is with a connection that cannot be read, a service that is not reached, 401 and 429. Not
    with 5xx, which a service may return to one query for ever, and answer the others.
    """
    return isinstance(
        error, FsmInputError | FsmConnectionError | FsmUnauthorisedError | FsmRateLimitedError
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
