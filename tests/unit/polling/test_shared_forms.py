"""Which listings waits need, and which forms each finds: without a service, by a clock of the tests."""

import random
from datetime import datetime, timedelta

import pytest

from fsm_provider.api.form_filter import FormFilter, parse_reference_time
from fsm_provider.polling.criteria import FormCriteria
from fsm_provider.polling.form_waits import FormWait
from fsm_provider.polling.old_polls import PollQuery, PollResult
from fsm_provider.polling.shared_forms import CHECK_INTERVAL, ESTIMATE_AGE, MIN_CHECKS, SharedForms
from tests.seeds import SEED
from tests.unit.polling.references import DAY, NOON, reference

HOUR = timedelta(hours=1)
INTERVAL = 60.0


class Service:
    """Answers queries as the service does, and counts the requests."""

    def __init__(self, page_size=100):
        self.page_size = page_size
        self.forms = {}
        self.now = NOON
        self.requests = 0
        self.queries = []

    def put(self, *references):
        self.forms |= {one["id"]: one for one in references}

    def answer(self, query: PollQuery):
        self.queries.append(query)
        matching = query.wanted.matches_reference
        found = [one for one in self.forms.values() if matching(one)]
        pages = max(1, -(-len(found) // self.page_size))
        complete = query.max_pages is None or pages <= query.max_pages
        read = found if complete else found[: query.max_pages * self.page_size]
        read_pages = pages if complete else query.max_pages
        self.requests += read_pages
        return PollResult(
            references=read,
            started=self.now,
            pages=read_pages,
            longest_page=min(len(read), self.page_size),
            complete=complete,
        )


class Stream:
    """Polls of a :class:`Service` for waits on it."""

    def __init__(self, service, **filters):
        self.service = service
        self.seconds = 0.0
        wanted = FormFilter(**(filters or {"created_since": DAY}))
        self.forms = SharedForms(wanted, INTERVAL)

    def join(self, made=None, **wanted):
        made = made or wait(**wanted)
        self.forms.join(made)
        return made

    def poll(self, after=INTERVAL, *, skip=False):
        """Poll once, ``after`` seconds; return the queries, single waits' last, and who is concerned."""
        self.seconds += after
        self.service.now += timedelta(seconds=after)
        queries, concerned = [], []
        goes_on, alone = True, []
        while goes_on:
            if not self.forms.has_listing:
                alone += self.forms.plan(self.seconds, self.service.now)
            if skip and self.forms.lists_since_bound:
                self.forms.skip(self.seconds, permanent=True)
            if self.forms.has_listing:
                queries.append(self.forms.next_query())
                concerned += self.forms.ingest(self.service.answer(queries[-1]), self.seconds)
            goes_on = self.forms.has_more
        for waiting in alone:
            queries.append(PollQuery(wanted=waiting.wanted))
            self.forms.checked(waiting, self.service.answer(queries[-1]).references, self.seconds)
            concerned.append(waiting)
        return queries, concerned


def wait(*, minimum_forms=1, form_names=(), created_since=DAY, **wanted):
    criteria = FormCriteria(minimum_forms=minimum_forms, form_names=tuple(form_names))
    return FormWait(FormFilter(created_since=created_since, **wanted), criteria)


def ids(waiting):
    forms = waiting.forms()
    return None if forms is None else [form["id"] for form in forms]


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def stream(service):
    """A stream of which three waits make a shared listing cheaper than one for each."""
    made = Stream(service)
    for job in range(901, 904):
        made.join(job_id=job)
    return made


def filters(queries):
    return [query.wanted.as_dict() for query in queries]


def lists_changes(query):
    return query.since is not None


def bounds_in(queries):
    """The bounds of the listings since a bound."""
    return [one.get("created_since") for one in filters(queries) if "updated_since" not in one]


def test_a_single_wait_lists_its_own_forms_at_each_poll(service):
    stream = Stream(service)
    stream.join(job_id=21)

    for _ in range(3):
        assert filters(stream.poll()[0]) == [{"job_id": "21", "created_since": DAY.isoformat()}]


def test_many_waits_have_one_listing_at_first_and_then_one_of_what_changed(stream):
    assert filters(stream.poll()[0]) == [{"created_since": DAY.isoformat()}]
    assert filters(stream.poll()[0]) == [{"updated_since": (NOON + timedelta(seconds=60) - HOUR).isoformat()}]


def test_a_listing_starts_at_the_oldest_bound(service):
    stream = Stream(service)
    for days in range(3):
        stream.join(job_id=days, created_since=DAY - timedelta(days=days, hours=3))

    assert filters(stream.poll()[0]) == [{"created_since": (DAY - timedelta(days=2, hours=3)).isoformat()}]


def test_waits_by_the_time_of_the_update_share_as_well(service):
    stream = Stream(service, updated_since=DAY)
    waits = [stream.join(FormWait(FormFilter(updated_since=DAY, job_id=n), FormCriteria())) for n in range(3)]
    assert filters(stream.poll()[0]) == [{"updated_since": DAY.isoformat()}]
    service.put(reference(1, job=2, created=DAY - 9 * HOUR, updated=service.now))

    queries, concerned = stream.poll()

    assert len(queries) == 1
    assert concerned == [waits[2]]
    assert ids(waits[2]) == [1]


def test_waits_without_a_bound_list_everything(service):
    stream = Stream(service, updated_since=DAY)
    for number in range(3):
        stream.join(FormWait(FormFilter(job_id=number), FormCriteria()))

    assert filters(stream.poll()[0]) == [{}]


def test_only_the_waits_that_a_form_concerns_are_called(service, stream):
    by_job, by_property = stream.join(job_id=21), stream.join(property_id=7)
    both, anywhere = stream.join(job_id=21, property_id=8), stream.join()
    stream.poll()
    service.put(reference(1, updated=service.now))

    _, concerned = stream.poll()

    assert set(concerned) == {by_job, by_property, anywhere}
    assert [ids(one) for one in (by_job, by_property, anywhere)] == [[1], [1], [1]]
    assert ids(both) is None
    assert stream.poll()[1] == [], "an unchanged form"


def test_a_wait_that_joins_late_is_given_what_is_known(service, stream):
    service.put(reference(1))
    stream.poll()
    requests = service.requests

    assert ids(stream.join(job_id=21)) == [1]
    assert service.requests == requests
    service.put(reference(2, job=22, updated=service.now))
    stream.poll()
    assert ids(stream.join(job_id=22)) == [2]


def test_a_wait_that_goes_back_further_than_what_is_known_lists_its_own_forms(service, stream):
    old = DAY - timedelta(days=9)
    service.put(reference(1, created=old + HOUR))
    stream.poll()
    late = stream.join(job_id=21, created_since=old)
    assert ids(late) is None

    queries, _ = stream.poll()

    assert filters(queries)[1:] == [{"job_id": "21", "created_since": old.isoformat()}]
    assert ids(late) == [1]
    assert len(stream.poll()[0]) == 1


def test_a_form_with_old_times_is_found_when_its_wait_is_checked(service, stream):
    late = stream.join(job_id=21)
    stream.poll()
    service.put(reference(1, created=DAY + HOUR))
    for _ in range(14):
        stream.poll()
        assert ids(late) is None

    stream.poll()

    assert ids(late) == [1]


def test_a_form_that_is_gone_no_longer_counts(service, stream):
    waiting = stream.join(job_id=21, minimum_forms=2)
    service.put(reference(1))
    stream.poll()
    del service.forms[1]
    service.put(reference(2, updated=NOON + timedelta(seconds=90)))

    stream.poll(after=CHECK_INTERVAL)
    assert ids(waiting) is None
    service.put(reference(3, updated=service.now))
    stream.poll()

    assert ids(waiting) == [2, 3]


@pytest.mark.parametrize("shared", [True, False])
def test_a_form_that_moves_counts_there_and_no_longer_here(service, shared):
    """Also where no listing is for all: what a wait has found is known with its place."""
    service.page_size = 100 if shared else 1
    stream = Stream(service)
    for number in range(3):
        service.put(reference(800 + number, job=800 + number, created=DAY + HOUR))
    here, there = stream.join(job_id=21, minimum_forms=2), stream.join(job_id=22, minimum_forms=2)
    service.put(reference(1), reference(2, job=22))
    stream.join(job_id=901)
    stream.poll()
    stream.poll()

    service.put(reference(1, job=22, updated=service.now))
    stream.poll()

    assert ids(here) is None
    assert ids(there) == [2, 1]
    service.put(reference(3, updated=service.now))
    stream.poll()
    assert ids(here) is None


def test_a_form_that_is_renamed_no_longer_counts(service, stream):
    waiting = stream.join(job_id=21, minimum_forms=2, form_names=["Gas"])
    service.put(reference(1))
    stream.poll()
    service.put(reference(1, name="Photo", updated=service.now), reference(2, updated=service.now))

    stream.poll()

    assert ids(waiting) is None


def test_each_name_needs_a_form(service, stream):
    waiting = stream.join(job_id=21, form_names=["Gas", "Sign-off"])
    service.put(reference(1), reference(2, name="Photo"))
    stream.poll()
    assert ids(waiting) is None

    service.put(reference(3, name="Sign-off", updated=service.now))
    stream.poll()

    assert ids(waiting) == [1, 3]


def test_a_wait_that_has_left_is_neither_called_nor_listed(service, stream):
    gone = stream.join(job_id=21, created_since=DAY - timedelta(days=300))
    stream.poll()
    stream.forms.leave(gone)
    service.put(reference(1, updated=service.now))

    assert stream.poll()[1] == []
    stream.poll(after=CHECK_INTERVAL)
    queries, _ = stream.poll(after=CHECK_INTERVAL)
    assert filters(queries)[1] == {"created_since": DAY.isoformat()}


def test_a_wait_that_is_being_listed_is_not_listed_again(service, stream):
    stream.poll()
    late = stream.join(job_id=21, created_since=DAY - timedelta(days=9))

    assert stream.forms.plan(60.0, service.now) == [late]
    assert stream.forms.plan(120.0, service.now) == []
    stream.forms.checked(late, [], 60.0)
    assert late.checked_at == 60.0


@pytest.mark.parametrize(("before", "now", "found"), [(21, 22, None), (22, 21, [1])])
def test_a_listing_for_all_is_newer_than_what_a_wait_listed_meanwhile(service, stream, before, now, found):
    """The form moves between two jobs while the wait lists the first one's forms."""
    stream.poll()
    late = stream.join(job_id=21, created_since=DAY - timedelta(days=9))
    assert stream.forms.plan(60.0, service.now) == [late]
    listed = [form for form in [reference(1, job=before)] if before == 21]
    moved = reference(1, job=now, updated=service.now)

    list(stream.forms.ingest(PollResult(references=[moved], started=service.now), 60.0))
    stream.forms.checked(late, listed, 60.0)

    assert ids(late) == found


def test_a_form_that_moves_while_it_is_listed_is_where_it_was_seen_last(service, stream):
    before, after = stream.join(job_id=21), stream.join(job_id=22)
    stream.poll()
    stream.forms.plan(60.0, service.now)
    pages = [reference(1, job=21), reference(2, job=99), reference(1, job=22, updated=service.now)]

    concerned = list(stream.forms.ingest(PollResult(references=pages, started=service.now), 60.0))

    assert concerned == [after]
    assert (ids(before), ids(after)) == (None, [1])


@pytest.mark.parametrize("days", [90, None])
def test_one_wait_that_goes_back_far_does_not_hold_up_the_listing_of_changes(service, days):
    fill(service, per_day=200, during=30)
    stream = Stream(service)
    narrow = [stream.join(job_id=number) for number in range(3)]
    stream.poll()
    wide = stream.join(created_since=None if days is None else DAY - timedelta(days=days), form_names=["X"])

    queries, _ = stream.poll(after=CHECK_INTERVAL)

    bounds = bounds_in(queries)
    assert bounds[0] == narrow[0].since.isoformat()
    assert bounds[1:] == [None if days is None else wide.since.isoformat()]
    assert wide.checked_at is not None


def test_waits_that_go_back_far_together_share_a_listing(service):
    fill(service, per_day=200, during=30)
    stream = Stream(service)
    far = DAY - timedelta(days=90)
    for number in range(3):
        stream.join(job_id=number)
    stream.poll()
    for name in ("X", "Y"):
        stream.join(created_since=far, form_names=[name])

    queries, _ = stream.poll(after=CHECK_INTERVAL)

    assert bounds_in(queries) == [far.isoformat()]


@pytest.mark.parametrize("permanent", [True, False])
def test_a_listing_since_a_bound_that_fails_is_skipped_and_its_waits_are_listed_alone(
    service, stream, permanent
):
    assert stream.forms.plan(0.0, service.now) == []
    assert not lists_changes(stream.forms.next_query())
    if not permanent:
        assert not stream.forms.skip(0.0, permanent=False), "the service may be down"
        changes = stream.forms.next_query()
        assert lists_changes(changes)
        list(stream.forms.ingest(service.answer(changes), 0.0))

    assert stream.forms.skip(0.0, permanent=permanent)
    assert not stream.forms.has_more
    queries, _ = stream.poll()
    assert [one.get("job_id") for one in filters(queries)] == [None, "901", "902", "903"]
    stream.poll()
    assert "created_since" in filters(stream.poll(after=CHECK_INTERVAL)[0])[1], "it is tried again later"


def test_a_failed_listing_of_changes_is_not_skipped(service, stream):
    stream.poll()
    stream.forms.plan(60.0, service.now)

    assert not stream.forms.lists_since_bound


def test_changes_that_are_too_many_pages_are_not_read_to_the_end(service):
    stream = Stream(service)
    for number in range(3):
        stream.join(job_id=number)
    stream.poll()
    fill(service, per_day=24 * 4_000, during=1)
    before = service.requests

    queries, _ = stream.poll()

    assert [one.get("job_id") for one in filters(queries)] == [None, "0", "1", "2"]
    assert service.requests - before == 6
    assert [one["job_id"] for one in filters(stream.poll()[0])] == ["0", "1", "2"]


def test_the_watermark_moves_only_with_a_listing_that_was_read(service, stream):
    stream.poll()
    stream.forms.plan(120.0, service.now)
    before = stream.forms.next_query()

    assert stream.forms.next_query() == before


def test_a_wait_that_joins_late_does_not_get_a_form_that_has_moved(service):
    """Also where those have left whose bound was as old as the form."""
    stream, old = Stream(service), NOON - timedelta(days=60)
    leaving = [stream.join(job_id=number, created_since=old) for number in range(3)]
    for number in range(3):
        stream.join(job_id=900 + number)
    service.put(reference(1, job=50, created=NOON - timedelta(days=30)))
    stream.poll()
    for waiting in leaving:
        stream.forms.leave(waiting)
    service.put(reference(1, job=51, created=NOON - timedelta(days=30), updated=service.now))
    stream.poll()

    assert ids(stream.join(job_id=50, created_since=old)) is None
    assert ids(stream.join(job_id=51, created_since=old)) == [1]


# What it costs


def days(number):
    return NOON - timedelta(days=number)


def fill(service, *, per_day, during):
    """Put forms of other jobs, evenly over the last days."""
    for number in range(per_day * during):
        created = service.now - timedelta(days=during * number / (per_day * during))
        service.put(reference(10_000 + number, job=10_000 + number, place="99", created=created))


def requests_an_hour(service, stream, *, interval, hours=10):
    for _ in range(2):
        stream.poll()
    before = service.requests
    for _ in range(round(hours * 3600 / interval)):
        stream.poll(after=interval)
    return (service.requests - before) / hours


def test_old_waits_do_not_make_all_list_their_history():
    """One sensor a day for two weeks, 200 forms a day, pages of 20, a poll every 300 s."""
    service = Service(page_size=20)
    fill(service, per_day=200, during=14)
    stream = Stream(service)
    stream.forms = SharedForms(FormFilter(created_since=DAY), interval=300.0)
    for number in range(14):
        stream.join(job_id=number, created_since=days(number))

    cost = requests_an_hour(service, stream, interval=300.0)

    # 12 polls, and 14 checks each 3000 s; alone they would be 168, and with one stream a day 1,736.
    assert cost <= 12 + 14 * 1.2 + 2


def test_a_listing_for_all_is_abandoned_once_it_costs_more_than_one_for_each():
    service = Service(page_size=20)
    service.now -= timedelta(minutes=10)  # nothing was completed in the last hour
    stream = Stream(service)
    for number in range(5):
        stream.join(job_id=number, created_since=days(14))
    for number in range(2_800):
        service.put(reference(number, job=10_000, created=days(14) + timedelta(minutes=7 * number) - HOUR))

    stream.poll()
    stream.poll()

    assert service.requests <= 5 + 5 + 2
    stream.poll(after=CHECK_INTERVAL)
    assert service.requests <= 5 + 5 + 2 + 1 + 5, "the length is known now"


def few_waits(service):
    """Three waits of a busy account, after two polls."""
    fill(service, per_day=24 * 500, during=1)
    stream = Stream(service)
    for number in range(3):
        stream.join(job_id=number)
    stream.poll()
    stream.poll()
    return stream


def test_few_waits_poll_alone_where_all_that_changed_is_many_pages(service):
    stream = few_waits(service)

    queries, _ = stream.poll()

    assert [one["job_id"] for one in filters(queries)] == ["0", "1", "2"]
    for number in range(3, 9):
        stream.join(job_id=number)
    assert "job_id" not in filters(stream.poll()[0])[0]


def test_waits_that_poll_alone_measure_anew_what_a_shared_poll_costs(service):
    stream = few_waits(service)
    service.forms.clear()
    assert "job_id" in filters(stream.poll()[0])[0]

    stream.poll(after=ESTIMATE_AGE)

    assert len(stream.poll()[0]) == 1


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_known_is_forgotten_once_no_listing_keeps_it_up_to_date(service, alone):
    """The form is gone; the others poll for themselves, or are listed by themselves when they are checked."""
    stream = Stream(service)
    waits = [stream.join(job_id=number) for number in range(12)]
    service.put(reference(1, job=50))
    stream.poll()
    stream.poll()
    service.forms.clear()
    if alone:
        fill(service, per_day=24 * 1_500, during=1)
        stream.poll()
    else:
        service.page_size = 1
        service.put(*[reference(number, job=99, created=DAY + HOUR) for number in range(20)])
        for waiting in waits[2:]:
            stream.forms.leave(waiting)
        stream.poll(after=CHECK_INTERVAL)
    stream.poll()

    assert ids(stream.join(job_id=50)) is None


def test_a_single_wait_on_the_entire_account_lists_what_changed(service):
    stream = Stream(service)
    stream.join()
    stream.poll()

    assert "updated_since" in filters(stream.poll()[0])[0]


HOURS = 6


@pytest.mark.parametrize("interval", [60, 300, 900, 3600])
@pytest.mark.parametrize(("waits", "pages_an_hour"), [(2, 12), (3, 60)])
def test_sharing_on_a_busy_account_costs_little_more_than_not_sharing(waits, pages_an_hour, interval):
    """More by a listing of changes that is abandoned after as many pages as there are waits, once an hour."""
    service = Service(page_size=1)
    fill(service, per_day=6 * pages_an_hour, during=1)
    stream = Stream(service)
    stream.forms = SharedForms(FormFilter(created_since=DAY), interval)
    for number in range(waits):
        stream.join(job_id=number, created_since=NOON - HOUR)
    for number in range(HOURS * 3600 // interval):
        service.put(reference(number, job=-1, created=service.now, updated=service.now))
        for one in range(pages_an_hour * interval // 3600):
            service.put(reference(10**6 * (one + 1) + number, job=-1, created=service.now))
        stream.poll(after=interval)

    alone = waits * HOURS * 3600 / interval
    assert service.requests <= alone + waits * (HOURS * 3600 / max(3600, 10 * interval) + 4)


def test_a_wait_on_the_entire_account_is_listed_with_the_others(service):
    fill(service, per_day=1_000, during=3)
    stream = Stream(service)
    anywhere = stream.join(form_names=["None"], created_since=days(3))
    narrow = stream.join(job_id=1, created_since=days(1))

    queries, _ = stream.poll()

    assert filters(queries) == [{"created_since": days(3).isoformat()}]
    assert anywhere.checked_at == narrow.checked_at == stream.seconds


def test_many_checks_are_spread_over_polls(service):
    fill(service, per_day=4, during=400)
    service.page_size = 1
    stream = Stream(service)
    stream.join(job_id=-1)
    stream.join(job_id=-2)
    stream.poll()
    stream.poll()
    waits = [stream.join(job_id=n, created_since=days(100 + n)) for n in range(3 * MIN_CHECKS)]

    lengths = [len(stream.poll()[0]) for _ in range(4)]

    assert max(lengths) <= MIN_CHECKS + 1
    assert all(waiting.checked_at is not None for waiting in waits)


# The same forms as by asking for each wait


@pytest.mark.parametrize("number", range(40))
def test_every_wait_finds_what_a_listing_of_its_own_would(number):
    """Drawn forms, moves, names, joins and failures; times are right, so that no check is needed."""
    print(f"FSM_KILLS_SEED={SEED}")
    chance = random.Random(SEED + number)
    service = Service(page_size=chance.choice([1, 3, 100]))
    stream = Stream(service)
    waits, names_by_wait = [], {}

    def draw_form():
        identifier = chance.randrange(30)
        known = service.forms.get(identifier)
        created = service.now if known is None else parse_reference_time(known["createdOnDateTime"])
        assert isinstance(created, datetime)
        service.put(
            reference(
                identifier,
                job=chance.randrange(4),
                place=str(chance.randrange(3)),
                name=chance.choice(["Gas", "Photo"]),
                created=created,
                updated=service.now,
            )
        )

    def draw_wait():
        wanted = chance.choice([{"job_id": chance.randrange(4)}, {"property_id": chance.randrange(3)}, {}])
        names = chance.choice([(), ("Gas",)])
        made = wait(created_since=service.now - HOUR * chance.randrange(60), form_names=names, **wanted)
        names_by_wait[made] = names or ("Gas", "Photo")
        waits.append(stream.join(made))

    for _ in range(60):
        for _ in range(chance.randrange(4)):
            draw_form()
        if chance.random() < 0.2 or not waits:
            draw_wait()
        if len(waits) > 1 and chance.random() < 0.1:
            stream.forms.leave(waits.pop(chance.randrange(len(waits))))
        after = chance.choice([INTERVAL, INTERVAL, 2 * HOUR.total_seconds()])
        stream.poll(after, skip=chance.random() < 0.2)
        for waiting in waits:
            if waiting.checked_at is None:
                continue  # its turn comes with a later poll
            expected = {
                one["id"]
                for one in service.forms.values()
                if waiting.wanted.matches_reference(one) and one["formName"] in names_by_wait[waiting]
            }
            assert waiting.found.keys() == expected
