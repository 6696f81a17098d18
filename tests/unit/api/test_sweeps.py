"""What a stream of sweeps asks for, and what its waits make of the answers."""

from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.api.forms import FormDemand, FormFilter, format_time
from fsm_provider.api.sweeps import FormIndex, FormWait, FormWindow, Snapshot, Sweep, Swept, start_of

DAY = datetime(2026, 1, 31, tzinfo=UTC)
NOON = DAY + timedelta(hours=12)
HOUR = timedelta(hours=1)


def reference(identifier, *, job=21, place="7", name="Gas", created=NOON, updated=None):
    return {
        "id": identifier,
        "formName": name,
        "propertyID": place,
        "jobID": job,
        "createdOnDateTime": format_time(created),
        "lastUpdatedOnDateTime": format_time(updated or created),
    }


def window(*, whole_every=900.0, **bounds):
    wanted = FormFilter(**(bounds or {"created_since": DAY}))
    return FormWindow(wanted, look_back=HOUR, whole_every=whole_every)


def swept(*references, started=NOON):
    return Swept(references=list(references), started=started)


def sweep(following, *references, at=0.0, started=NOON):
    asked = following.next_sweep(at)
    return following.take(asked, swept(*references, started=started), at)


def test_the_first_sweep_asks_for_the_whole_window():
    assert window().next_sweep(0.0) == Sweep(filters={"created_since": DAY.isoformat()}, whole=True)


def test_the_next_asks_for_what_changed_since_the_start_of_the_last_less_the_look_back():
    following = window()
    sweep(following, started=NOON)

    assert following.next_sweep(60.0) == Sweep(
        filters={"created_since": DAY.isoformat(), "updated_since": (NOON - HOUR).isoformat()}, whole=False
    )


def test_a_failed_sweep_moves_nothing():
    following = window()
    following.next_sweep(0.0)

    assert following.next_sweep(60.0).whole


def test_what_a_wait_bounds_by_update_is_never_asked_for_from_before_that_bound():
    following = window(updated_since=NOON)
    sweep(following, started=NOON + timedelta(minutes=1))

    assert following.next_sweep(60.0).filters == {"updated_since": NOON.isoformat()}


def test_now_and_then_a_sweep_is_whole_again():
    following = window(whole_every=900.0)
    sweep(following, at=100.0)

    assert not following.next_sweep(999.0).whole
    assert following.next_sweep(1000.0).whole


def test_a_window_of_one_wait_is_read_whole_each_time():
    following = window(whole_every=0.0)
    sweep(following)

    assert following.next_sweep(0.0).whole


def test_a_snapshot_holds_everything_and_names_what_is_new():
    following = window()
    sweep(following, reference(1), reference(2))

    snapshot = sweep(following, reference(2), reference(3), at=60.0)

    assert list(snapshot.forms.by_id) == [1, 2, 3]
    assert list(snapshot.changed.by_id) == [3]
    assert not snapshot.whole


def test_an_updated_form_is_a_changed_one():
    following = window()
    sweep(following, reference(1))

    snapshot = sweep(following, reference(1, updated=NOON + HOUR), at=60.0)

    assert list(snapshot.changed.by_id) == [1]


def test_a_whole_sweep_forgets_what_is_gone():
    following = window()
    sweep(following, reference(1), reference(2))

    assert list(sweep(following, reference(2), at=900.0).forms.by_id) == [2]


def test_a_snapshot_is_not_copied():
    following = window()

    assert sweep(following, reference(1)).forms is sweep(following, reference(2), at=60.0).forms


@pytest.mark.parametrize("wanted", [{"job_id": "21"}, {"property_id": 7}])
def test_an_index_finds_forms_by_job_and_property(wanted):
    index = FormIndex([reference(1), reference(2, job=22, place="8"), reference(3)])

    assert [found["id"] for found in index.candidates(FormFilter(**wanted))] == [1, 3]


def test_an_index_follows_a_form_to_another_job():
    index = FormIndex([reference(1)])

    assert index.put(reference(1, job=22))
    assert list(index.candidates(FormFilter(job_id=21))) == []
    assert [found["id"] for found in index.candidates(FormFilter(job_id=22))] == [1]


def wait(minimum_forms=1, form_names=(), **wanted):
    demand = FormDemand(minimum_forms=minimum_forms, form_names=form_names)
    return FormWait(FormFilter(**wanted), demand)


def ids(found):
    return None if found is None else [form["id"] for form in found]


def test_a_wait_picks_its_own_forms():
    snapshot = sweep(window(), reference(1), reference(2, job=22), reference(3, job=22, place="8"))

    assert ids(wait(job_id=22).look_at(snapshot)) == [2, 3]
    assert ids(wait(job_id=22, property_id="8").look_at(snapshot)) == [3]
    assert ids(wait(property_id=7).look_at(snapshot)) == [1, 2]
    assert wait(job_id=23).look_at(snapshot) is None


def test_a_wait_applies_its_exact_bound():
    early, late = reference(1, created=NOON - timedelta(milliseconds=1)), reference(2, created=NOON)
    snapshot = sweep(window(), early, late)

    assert ids(wait(created_since=NOON).look_at(snapshot)) == [2]
    assert ids(wait(updated_since=NOON).look_at(snapshot)) == [2]


def test_a_time_that_cannot_be_read_matches_as_everywhere():
    snapshot = sweep(window(), {**reference(1), "createdOnDateTime": "yesterday"})

    assert ids(wait(created_since=NOON).look_at(snapshot)) == [1]


def test_a_wait_adds_up_what_comes_sweep_by_sweep():
    following, waiting = window(), wait(minimum_forms=2, job_id=21)

    assert waiting.look_at(sweep(following, reference(1))) is None
    assert waiting.look_at(sweep(following, reference(2, job=22), at=60.0)) is None
    assert ids(waiting.look_at(sweep(following, reference(3), at=120.0))) == [1, 3]


def test_a_wait_that_comes_late_has_missed_nothing():
    following = window()
    sweep(following, reference(1))

    assert ids(wait(job_id=21).look_at(sweep(following, at=60.0))) == [1]


def test_a_form_that_moves_to_another_job_counts_there_and_no_longer_here():
    following, here, there = window(), wait(minimum_forms=2, job_id=21), wait(minimum_forms=2, job_id=22)
    snapshot = sweep(following, reference(1), reference(2, job=22))
    assert here.look_at(snapshot) is None
    assert there.look_at(snapshot) is None

    snapshot = sweep(following, reference(1, job=22), at=60.0)

    assert here.look_at(snapshot) is None
    assert ids(there.look_at(snapshot)) == [2, 1]
    assert here.look_at(sweep(following, reference(3), at=120.0)) is None


def test_names_are_asked_for_each():
    following, waiting = window(), wait(form_names=("Gas", "Sign-off"))

    assert waiting.look_at(sweep(following, reference(1), reference(2, name="Photo"))) is None
    assert waiting.look_at(sweep(following, reference(2, name="Photo 2"), at=60.0)) is None
    assert ids(waiting.look_at(sweep(following, reference(3, name="Sign-off"), at=120.0))) == [1, 3]


def test_a_form_that_is_renamed_no_longer_counts():
    following, waiting = window(), wait(minimum_forms=2, form_names=("Gas",))
    waiting.look_at(sweep(following, reference(1)))
    waiting.look_at(sweep(following, reference(1, name="Photo"), at=60.0))

    assert waiting.look_at(sweep(following, reference(2), at=120.0)) is None


def test_nothing_new_is_not_looked_at_again():
    waiting, quiet = wait(job_id=21), Snapshot(FormIndex([reference(1)]), FormIndex(), whole=False)
    waiting.look_at(Snapshot(FormIndex(), FormIndex(), whole=True))

    assert waiting.look_at(quiet) is None


@pytest.mark.parametrize(
    ("served", "believed"),
    [
        (NOON - HOUR, True),
        (NOON + timedelta(hours=23), True),
        (NOON - timedelta(days=400), True),
        (NOON + timedelta(days=2), False),
        (NOON.replace(tzinfo=None), False),
        ("soon", False),
        (None, False),
    ],
)
def test_the_services_clock_counts_unless_it_is_far_ahead_or_unreadable(served, believed):
    assert start_of(served, NOON) == (served if believed else NOON)
