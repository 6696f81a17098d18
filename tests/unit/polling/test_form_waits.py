"""Which forms a wait counts, and an index of references."""

from datetime import timedelta

import pytest

from fsm_provider.api.form_filter import FormFilter
from fsm_provider.polling.criteria import FormCriteria
from fsm_provider.polling.form_waits import FormIndex, FormWait
from tests.unit.polling.references import NOON, reference


@pytest.fixture
def wait():
    """Wait for two forms named Gas on a job."""
    return FormWait(FormFilter(job_id=21), FormCriteria(minimum_forms=2, form_names=("Gas",)))


def test_forms_of_other_names_do_not_count(wait):
    wait.add(reference(1))
    wait.add(reference(2, name="Oil"))
    assert wait.forms() is None

    wait.add(reference(3))
    assert wait.forms() == [reference(1), reference(3)]
    assert list(wait.others.values()) == ["Oil"]


def test_a_form_listed_twice_counts_once_and_as_its_latest(wait):
    latest = reference(1, updated=NOON + timedelta(hours=1))
    for one in (reference(1), latest):
        wait.add(one)

    assert wait.forms() is None
    assert list(wait.found.values()) == [latest]


@pytest.mark.parametrize("wanted", [{"job_id": "21"}, {"property_id": 7}])
def test_an_index_finds_forms_by_job_and_property(wanted):
    index = FormIndex([reference(1), reference(2, job=22, place="8"), reference(3)])

    assert [found["id"] for found in index.candidates(FormFilter(**wanted))] == [1, 3]


def test_an_index_moves_a_form_to_another_job():
    index = FormIndex([reference(1)])

    index.put(reference(1, job=22))

    assert list(index.candidates(FormFilter(job_id=21))) == []
    assert [found["id"] for found in index.candidates(FormFilter(job_id=22))] == [1]


def test_an_index_keeps_the_order_of_the_listing_when_a_form_changes():
    index = FormIndex([reference(1), reference(2)])

    index.put(reference(1, name="Oil"))

    for wanted in (FormFilter(), FormFilter(job_id=21), FormFilter(property_id=7)):
        assert [found["formName"] for found in index.candidates(wanted)] == ["Oil", "Gas"]
