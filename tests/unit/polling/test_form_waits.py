"""An index of references."""

import pytest

from fsm_provider.api.form_filter import FormFilter
from fsm_provider.polling.form_waits import FormIndex
from tests.unit.polling.references import reference


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
