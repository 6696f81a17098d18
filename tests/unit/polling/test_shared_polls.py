"""One listing for several members, whose errors, contexts and far-reaching queries are their own."""

import asyncio
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace

import pytest

from fsm_provider.api.form_filter import FormFilter
from fsm_provider.polling.old_polls import PollQuery
from fsm_provider.polling.shared_polls import ALONE_SECONDS, MAX_SHARED_RANGE, PollMember, shared_polls
from fsm_provider.testing import faults
from tests.unit.clocks import run_hurried

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
owner = ContextVar("owner", default="nobody")


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


class Member:
    """Asks for forms of one property or job, and notes what it is given.

    :ivar listings: the filter and the number of forms of each listing.
    """

    def __init__(self, back=HOUR, property_id=None, job_id=None, **sharing):
        self.back, self.property_id, self.job_id = back, property_id, job_id
        self.sharing = {"interval": 5.0, "query_params": None, "wanted": FormFilter(), **sharing}
        self.listings, self.failures, self.owners = [], [], set()
        self.broken = False

    def next_query(self, now):
        since = None if self.back is None else datetime.now(UTC) - self.back
        place = {"property_id": self.property_id, "job_id": self.job_id}
        return PollQuery(wanted=replace(self.sharing["wanted"], updated_since=since, **place))

    def ingest(self, query, result, now):
        self.owners.add(owner.get())
        if self.broken:
            raise RuntimeError("broken member")
        self.listings.append((query.wanted, len(result.references)))

    def polling(self):
        member = PollMember(self.next_query, self.ingest, self.failures.append)
        return shared_polls(member, fsm_conn_id="fsm_default", **self.sharing)

    async def until(self, listings, seconds=3600.0):
        async with asyncio.timeout(seconds):
            while len(self.listings) < listings:
                await asyncio.sleep(0.05)


async def together(stack, *members):
    for member in members:
        await stack.enter_async_context(member.polling())


def test_members_share_each_listing_from_the_oldest_bound_and_without_a_property(service):
    service.add_form(property_id=1)
    service.add_form(property_id=2, created=datetime.now(UTC) - 3 * DAY)
    members = [Member(property_id=1), Member(back=7 * DAY, property_id=2), Member()]

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *members)
            await members[0].until(3)

    run_hurried(run())

    assert len(service.requests) == 3
    for member in members:
        assert [count for _, count in member.listings] == [2, 2, 2]
    for request in service.requests:
        ((name, since),) = request.query
        assert name == "lastUpdatedOnDateTime[gte]"
        assert datetime.now(UTC) - datetime.fromisoformat(since) > 6 * DAY


@pytest.mark.parametrize(
    ("places", "shared"),
    [
        ([(1, 21), (1, 22)], {"propertyID": "1"}),
        ([(1, 21), (2, 21)], {"jobID": "21"}),
        ([(1, None), (1, 21)], {"propertyID": "1"}),
        ([(1, 21), (1, 21)], {"propertyID": "1", "jobID": "21"}),
        ([(1, None), (None, 21)], {}),
    ],
)
def test_a_listing_asks_for_the_property_and_the_job_that_all_of_its_members_ask_for(service, places, shared):
    members = [Member(property_id=place, job_id=job) for place, job in places]

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *members)
            await members[0].until(1)

    run_hurried(run())

    query = dict(service.requests[0].query)
    del query["lastUpdatedOnDateTime[gte]"]
    assert query == shared


def test_alone_a_member_asks_for_its_property(service):
    first, second = Member(property_id=1), Member(property_id=2)

    async def run():
        async with first.polling():
            await first.until(1)
            async with second.polling():
                await second.until(1)
            polled = len(first.listings)
            await first.until(polled + 1)

    run_hurried(run())

    assert first.listings[0][0].property_id == first.listings[-1][0].property_id == 1
    assert second.listings[0][0].property_id is None


@pytest.mark.parametrize(
    "other",
    [
        {"interval": 6.0},
        {"query_params": {"includeDrafts": "true"}},
        {"wanted": FormFilter(form_category="Gas")},
        {"wanted": FormFilter(created_by_id="7")},
    ],
)
def test_members_that_a_listing_cannot_serve_together_have_their_own(service, other):
    members = [Member(), Member(**other)]

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *members)
            await asyncio.gather(*(member.until(1) for member in members))

    run_hurried(run())

    assert len(service.requests) == 2


def test_a_member_that_joins_does_not_wait_for_the_interval(service):
    first, second = Member(interval=3600.0), Member(interval=3600.0)

    async def run():
        async with first.polling():
            await first.until(1)
            async with second.polling():
                await second.until(1, seconds=30)

    run_hurried(run())


def test_a_member_whose_query_goes_back_far_does_not_delay_the_others(service):
    service.seed_forms(20)
    far, near = Member(back=None), Member()
    service.fail("GET", "/forms", faults.Delay(2.0), calls=[1])

    async def run():
        async with far.polling():
            while not service.requests:
                await asyncio.sleep(0.05)
            async with near.polling():
                await near.until(2)
                assert far.listings == []
                await far.until(1)
                far.back = HOUR
                await far.until(2)

    run_hurried(run())

    assert all(wanted.as_dict().keys() == {"updated_since"} for wanted, _ in near.listings)
    assert [wanted.as_dict().keys() for wanted, _ in far.listings] == [set(), {"updated_since"}]


def test_members_whose_queries_go_back_equally_far_share_their_listing(service):
    far = MAX_SHARED_RANGE + DAY
    members = [Member(back=far), Member(back=far + DAY), Member(back=None), Member(back=None), Member()]

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *members)
            await asyncio.gather(*(member.until(1) for member in members))

    run_hurried(run())

    assert len(service.requests) == 3


@pytest.fixture
def narrow(service):
    """Members on a property each."""
    service.settings.page_size = 5
    members = [Member(property_id=number, interval=60.0) for number in (1, 2)]
    for number in (1, 2):
        service.add_form(property_id=number)
    return members


def run_until(members, listings):
    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *members)
            await asyncio.gather(*(member.until(listings) for member in members))

    run_hurried(run(), hurry=300.0)


def test_a_listing_that_costs_more_than_one_for_each_is_abandoned(service, narrow):
    add_others(service)

    run_until(narrow, 10)

    assert len(service.requests) <= 2 + 2 * (10 + 1)
    assert len({request.connection for request in service.requests}) <= 3
    assert all(wanted.property_id == one.property_id for one in narrow for wanted, _ in one.listings)
    assert {count for one in narrow for _, count in one.listings} == {1}


def test_only_queries_as_far_back_as_the_abandoned_one_are_alone(service, narrow):
    add_others(service, created=datetime.now(UTC) - 3 * DAY)
    for member in narrow:
        member.back = 7 * DAY

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *narrow)
            await asyncio.gather(*(member.until(1) for member in narrow))
            for member in narrow:
                member.back = HOUR
            await asyncio.gather(*(member.until(3) for member in narrow))
            before = len(service.requests)
            await narrow[0].until(13)
            return len(service.requests) - before

    assert run_hurried(run(), hurry=300.0) <= 11


def test_members_that_are_better_alone_go_together_again_once_little_is_new(service, narrow):
    add_others(service)

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *narrow)
            await asyncio.gather(*(member.until(2) for member in narrow))
            service.settings.page_size = 100
            await asyncio.sleep(ALONE_SECONDS + 120)
            before = len(service.requests)
            await narrow[0].until(len(narrow[0].listings) + 10)
            return len(service.requests) - before

    assert run_hurried(run(), hurry=300.0) <= 11


def test_an_abandoned_listing_delays_nobody(service, narrow):
    add_others(service)

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *narrow)
            await asyncio.gather(*(member.until(1, seconds=50) for member in narrow))

    run_hurried(run())


def test_a_bound_in_the_future_is_no_reason_to_try_again_at_once(service, narrow):
    """As if the service's clock is ahead of ours."""
    add_others(service, created=datetime.now(UTC) + HOUR)
    for member in narrow:
        member.back = -timedelta(minutes=2)

    run_until(narrow, 5)

    assert len(service.requests) <= 2 + 2 * (5 + 1)


def test_an_abandoned_listing_that_took_long_is_abandoned_all_the_same(service, narrow):
    add_others(service)
    service.fail("GET", "/forms", faults.Delay(0.5), every=True)  # 50 min

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *narrow)
            await asyncio.gather(*(member.until(1, seconds=40_000) for member in narrow))

    run_hurried(run(), hurry=6000.0)

    assert len(service.requests) <= 2 + 2 * 2


def test_members_of_one_property_share_where_others_are_better_alone(service, narrow):
    add_others(service)
    members = [*narrow, *(Member(property_id=1, interval=60.0) for _ in range(3))]

    run_until(members, 10)

    assert len(service.requests) <= 2 + 2 * (10 + 1)


def test_long_intervals_cost_little_more_than_alone(service, narrow):
    add_others(service)
    for member in narrow:
        member.sharing["interval"] = 3600.0

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *narrow)
            await asyncio.sleep(20 * 3600.0 + 60)

    run_hurried(run(), hurry=20_000.0)

    assert 2 * 15 <= len(service.requests) <= 2 * 20 * 1.4


@pytest.mark.parametrize("back", [HOUR, None])
def test_a_query_that_cannot_be_made_apart_takes_no_part(service, narrow, back, caplog):
    add_others(service)
    broken, other = narrow
    for member in narrow:
        member.back = back
    calls = []

    def next_query(now):
        calls.append(now)
        if len(calls) == 3:
            raise RuntimeError("no query")
        return Member.next_query(broken, now)

    broken.next_query = next_query

    run_until(narrow, 4)

    assert "could not be handled" in caplog.text
    assert "never retrieved" not in caplog.text
    assert {wanted.property_id for wanted, _ in broken.listings} == {broken.property_id}
    assert {wanted.property_id for wanted, _ in other.listings} == {other.property_id}


def test_a_far_listing_is_given_to_those_who_asked_for_it(service, narrow):
    """The second one knows no query as the listing begins; the first one's is not restricted for it."""
    first, second = narrow
    first.back = second.back = None
    calls = []

    def next_query(now):
        calls.append(now)
        if len(calls) == 2:
            raise RuntimeError("no query")
        return Member.next_query(second, now)

    second.next_query = next_query

    run_until(narrow, 1)

    assert all(wanted.property_id in (None, 2) for wanted, _ in second.listings)


def test_members_that_list_all_share_beside_those_that_are_better_alone(service, narrow):
    add_others(service)
    others = [Member(interval=60.0, back=2 * HOUR) for _ in range(2)]

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *narrow)
            await asyncio.gather(*(member.until(1) for member in narrow))
            before = len(service.requests)
            await together(stack, *others)
            await asyncio.gather(*(member.until(1) for member in others))
            return [dict(request.query) for request in service.requests[before:]]

    queries = run_hurried(run(), hurry=60.0)

    assert len([query for query in queries if "propertyID" not in query and "cursor" not in query]) == 1


def test_one_property_is_not_listed_alone_beside_a_member_that_lists_all(service, narrow):
    add_others(service)
    everything = Member(interval=60.0)

    run_until([*narrow, everything], 5)

    assert all(wanted.property_id is None for one in narrow for wanted, _ in one.listings)


def test_a_far_listing_that_costs_more_than_one_for_each_is_abandoned(service, narrow):
    add_others(service)
    for member in narrow:
        member.back = None

    run_until(narrow, 3)

    assert len(service.requests) <= 2 + 2 * (3 + 1)
    assert {count for one in narrow for _, count in one.listings} == {1}


def add_others(service, **fields):
    for _ in range(30):
        service.add_form(property_id=99, **fields)


def test_a_members_exception_is_its_own(service, caplog):
    broken, other = Member(), Member()
    broken.broken = True

    async def run():
        async with broken.polling(), other.polling():
            await other.until(3)
            broken.broken = False
            await broken.until(1)

    run_hurried(run())

    assert "RuntimeError: broken member" in caplog.text
    assert other.failures == []


def test_a_member_whose_query_could_not_be_made_is_asked_again(service, caplog):
    member = Member()
    member.back = "broken"

    async def run():
        async with member.polling():
            while "could not be handled" not in caplog.text:
                await asyncio.sleep(0.05)
            member.back = HOUR
            await member.until(1)

    run_hurried(run())


@pytest.mark.parametrize(
    "broken", [None, SimpleNamespace(updated_since=datetime.now(UTC), property_id=[], job_id=None)]
)
def test_an_unexpected_error_is_logged_and_the_polls_go_on_after_a_pause(service, caplog, broken):
    """Of a filter that is none, or that cannot be combined with another."""
    one, other = Member(interval=60.0), Member(interval=60.0)
    make_query, times = one.next_query, []

    def next_query(now):
        times.append(now)
        return PollQuery(wanted=broken) if len(times) <= 2 else make_query(now)

    one.next_query = next_query

    async def run():
        async with one.polling(), other.polling():
            await one.until(2)
            await other.until(2)

    run_hurried(run(), hurry=60.0)

    assert caplog.text.count("The polls for forms of 'fsm_default' start again") == 2
    assert [later - earlier >= 55.0 for earlier, later in pairwise(times)][:2] == [True, True]
    for member in (one, other):
        assert len(member.failures) == 2
        assert not any(failure.error.permanent for failure in member.failures)


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_member_that_leaves_does_not_disturb_the_others(service, leaver):
    members = [Member(), Member()]

    async def run():
        stacks = [AsyncExitStack(), AsyncExitStack()]
        for stack, member in zip(stacks, members, strict=True):
            await together(stack, member)
        await members[0].until(1)
        await stacks[leaver].aclose()
        seen = len(members[leaver].listings)
        await members[1 - leaver].until(4)
        assert len(members[leaver].listings) == seen
        await stacks[1 - leaver].aclose()

    run_hurried(run())


def test_the_last_member_ends_the_polls(service):
    near, far = Member(), Member(back=None)
    service.fail("GET", "/forms", faults.Delay(2.0), calls=range(3, 1000))

    async def run():
        async with near.polling(), far.polling():
            await near.until(1)
            while len(service.requests) < 3:
                await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with near.polling():
            service.clear_faults()
            polled = len(near.listings)
            await near.until(polled + 1)

    run_hurried(run())


def test_each_member_is_notified_of_a_failure_and_the_pause_grows(service):
    members = [Member(), Member()]
    service.fail("GET", "/forms", faults.Status(503), every=True)

    async def run():
        async with AsyncExitStack() as stack:
            await together(stack, *members)
            while len(members[1].failures) < 4:
                await asyncio.sleep(0.05)
            service.clear_faults()
            await members[0].until(1)

    run_hurried(run())

    assert members[0].failures == members[1].failures
    assert {failure.error.status for failure in members[0].failures} == {503}


def test_the_logs_of_a_poll_are_no_members_and_a_members_are_its_own(service, caplog):
    first, second = Member(), Member()
    service.fail("GET", "/forms", faults.Status(503), calls=[1])
    logged = []

    def note(record):
        if "failed" in record.getMessage():
            logged.append(owner.get())
        return True

    async def enter(stack, member, name):
        owner.set(name)
        await stack.enter_async_context(member.polling())

    async def run():
        caplog.handler.addFilter(note)
        async with AsyncExitStack() as stack:
            await enter(stack, first, "first")
            await enter(stack, second, "second")
            await first.until(1)
            await second.until(1)
        caplog.handler.removeFilter(note)

    run_hurried(run())

    assert logged == ["nobody"]
    assert (first.owners, second.owners) == ({"first"}, {"second"})
