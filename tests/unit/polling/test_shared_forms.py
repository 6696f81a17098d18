"""What a shared stream polls for, and which forms its waits match."""

from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.api.form_filter import FormFilter, format_time
from fsm_provider.polling.criteria import FormCriteria
from fsm_provider.polling.shared_forms import (
    FormIndex,
    FormMatcher,
    PollQuery,
    PollResult,
    SharedForms,
    Snapshot,
    start_time,
)

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


def shared_forms(*, full_interval=900.0, **bounds):
    wanted = FormFilter(**(bounds or {"created_since": DAY}))
    return SharedForms(wanted, look_back=HOUR, full_interval=full_interval)


def result_with(*references, started=NOON):
    return PollResult(references=list(references), started=started)


def poll(forms, *references, at=0.0, started=NOON):
    query = forms.next_query(at)
    return forms.ingest(query, result_with(*references, started=started), at)


def test_the_first_poll_is_full():
    assert shared_forms().next_query(0.0) == PollQuery(filters={"created_since": DAY.isoformat()}, full=True)


def test_the_next_poll_goes_back_to_the_start_of_the_last_less_the_look_back():
    forms = shared_forms()
    poll(forms, started=NOON)

    assert forms.next_query(60.0) == PollQuery(
        filters={"created_since": DAY.isoformat(), "updated_since": (NOON - HOUR).isoformat()}, full=False
    )


def test_a_failed_poll_does_not_move_the_watermark():
    forms = shared_forms()
    forms.next_query(0.0)

    assert forms.next_query(60.0).full


def test_no_poll_goes_back_before_a_bound_on_the_update():
    forms = shared_forms(updated_since=NOON)
    poll(forms, started=NOON + timedelta(minutes=1))

    assert forms.next_query(60.0).filters == {"updated_since": NOON.isoformat()}


def test_a_poll_is_full_again_after_the_interval():
    forms = shared_forms(full_interval=900.0)
    poll(forms, at=100.0)

    assert not forms.next_query(999.0).full
    assert forms.next_query(1000.0).full


def test_every_poll_is_full_without_an_interval():
    forms = shared_forms(full_interval=0.0)
    poll(forms)

    assert forms.next_query(0.0).full


def test_a_snapshot_holds_everything_and_names_what_is_new():
    forms = shared_forms()
    poll(forms, reference(1), reference(2))

    snapshot = poll(forms, reference(2), reference(3), at=60.0)

    assert list(snapshot.forms.by_id) == [1, 2, 3]
    assert list(snapshot.changed.by_id) == [3]
    assert not snapshot.full


def test_an_updated_form_is_a_changed_one():
    forms = shared_forms()
    poll(forms, reference(1))

    snapshot = poll(forms, reference(1, updated=NOON + HOUR), at=60.0)

    assert list(snapshot.changed.by_id) == [1]


def test_a_full_poll_forgets_what_is_gone():
    forms = shared_forms()
    poll(forms, reference(1), reference(2))

    assert list(poll(forms, reference(2), at=900.0).forms.by_id) == [2]


def test_a_snapshot_is_not_copied():
    forms = shared_forms()

    assert poll(forms, reference(1)).forms is poll(forms, reference(2), at=60.0).forms


@pytest.mark.parametrize("wanted", [{"job_id": "21"}, {"property_id": 7}])
def test_an_index_finds_forms_by_job_and_property(wanted):
    index = FormIndex([reference(1), reference(2, job=22, place="8"), reference(3)])

    assert [found["id"] for found in index.candidates(FormFilter(**wanted))] == [1, 3]


def test_an_index_moves_a_form_to_another_job():
    index = FormIndex([reference(1)])

    assert index.put(reference(1, job=22))
    assert list(index.candidates(FormFilter(job_id=21))) == []
    assert [found["id"] for found in index.candidates(FormFilter(job_id=22))] == [1]


def matcher(minimum_forms=1, form_names=(), **wanted):
    criteria = FormCriteria(minimum_forms=minimum_forms, form_names=form_names)
    return FormMatcher(FormFilter(**wanted), criteria)


def ids(found):
    return None if found is None else [form["id"] for form in found]


def test_a_wait_matches_its_own_forms():
    snapshot = poll(shared_forms(), reference(1), reference(2, job=22), reference(3, job=22, place="8"))

    assert ids(matcher(job_id=22).match(snapshot)) == [2, 3]
    assert ids(matcher(job_id=22, property_id="8").match(snapshot)) == [3]
    assert ids(matcher(property_id=7).match(snapshot)) == [1, 2]
    assert matcher(job_id=23).match(snapshot) is None


def test_a_wait_applies_its_exact_bound():
    early, late = reference(1, created=NOON - timedelta(milliseconds=1)), reference(2, created=NOON)
    snapshot = poll(shared_forms(), early, late)

    assert ids(matcher(created_since=NOON).match(snapshot)) == [2]
    assert ids(matcher(updated_since=NOON).match(snapshot)) == [2]


def test_an_unreadable_time_matches_as_everywhere():
    snapshot = poll(shared_forms(), {**reference(1), "createdOnDateTime": "yesterday"})

    assert ids(matcher(created_since=NOON).match(snapshot)) == [1]


def test_a_wait_adds_up_the_forms_of_all_polls():
    forms, wait = shared_forms(), matcher(minimum_forms=2, job_id=21)

    assert wait.match(poll(forms, reference(1))) is None
    assert wait.match(poll(forms, reference(2, job=22), at=60.0)) is None
    assert ids(wait.match(poll(forms, reference(3), at=120.0))) == [1, 3]


def test_a_wait_that_joins_late_misses_nothing():
    forms = shared_forms()
    poll(forms, reference(1))

    assert ids(matcher(job_id=21).match(poll(forms, at=60.0))) == [1]


def test_a_form_that_moves_to_another_job_counts_there_and_no_longer_here():
    forms = shared_forms()
    here, there = matcher(minimum_forms=2, job_id=21), matcher(minimum_forms=2, job_id=22)
    snapshot = poll(forms, reference(1), reference(2, job=22))
    assert here.match(snapshot) is None
    assert there.match(snapshot) is None

    snapshot = poll(forms, reference(1, job=22), at=60.0)

    assert here.match(snapshot) is None
    assert ids(there.match(snapshot)) == [2, 1]
    assert here.match(poll(forms, reference(3), at=120.0)) is None


def test_each_name_needs_a_form():
    forms, wait = shared_forms(), matcher(form_names=("Gas", "Sign-off"))

    assert wait.match(poll(forms, reference(1), reference(2, name="Photo"))) is None
    assert wait.match(poll(forms, reference(2, name="Photo 2"), at=60.0)) is None
    assert ids(wait.match(poll(forms, reference(3, name="Sign-off"), at=120.0))) == [1, 3]


def test_a_form_that_is_renamed_no_longer_counts():
    forms, wait = shared_forms(), matcher(minimum_forms=2, form_names=("Gas",))
    wait.match(poll(forms, reference(1)))
    wait.match(poll(forms, reference(1, name="Photo"), at=60.0))

    assert wait.match(poll(forms, reference(2), at=120.0)) is None


def test_an_unchanged_snapshot_is_not_matched_again():
    wait, quiet = matcher(job_id=21), Snapshot(FormIndex([reference(1)]), FormIndex(), full=False)
    wait.match(Snapshot(FormIndex(), FormIndex(), full=True))

    assert wait.match(quiet) is None


@pytest.mark.parametrize(
    ("minutes", "is_used"), [(0, True), (5, True), (-5, True), (6, False), (-6, False), (-600_000, False)]
)
def test_the_services_clock_is_used_if_it_is_near_ours(minutes, is_used):
    served = NOON + timedelta(minutes=minutes)

    assert start_time(served, NOON) == (served if is_used else NOON)
