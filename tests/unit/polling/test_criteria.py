from typing import Any

import pytest

from fsm_provider.polling.criteria import FormCriteria


def reference(identifier: int, name: str | None = "Gas", **fields: Any) -> dict[str, Any]:
    return {"id": identifier, "formName": name, **fields}


@pytest.mark.parametrize(("found", "met"), [([], False), ([1], False), ([1, 2], True), ([1, 2, 3], True)])
def test_enough_forms_meet_the_criteria(found, met):
    criteria = FormCriteria(minimum_forms=2)

    assert criteria.is_met_by(criteria.wanted(map(reference, found))) is met


def test_by_default_one_form_is_enough():
    assert FormCriteria().is_met_by([reference(1)])
    assert not FormCriteria().is_met_by([])


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ([], ["Gas", "Oil"]),
        (["Gas"], ["Oil"]),
        (["Gas", "Gas"], ["Oil"]),
        (["Other", None], ["Gas", "Oil"]),
        (["Oil", "Other", "Gas"], []),
    ],
)
def test_each_name_asked_for_needs_a_form(names, missing):
    criteria = FormCriteria(form_names=("Gas", "Oil"))
    wanted = criteria.wanted(reference(number, name) for number, name in enumerate(names))

    assert criteria.missing(wanted) == missing
    assert criteria.is_met_by(wanted) is (not missing)


def test_forms_of_other_names_do_not_count():
    criteria = FormCriteria(minimum_forms=2, form_names=("Gas",))

    assert not criteria.is_met_by(criteria.wanted([reference(1), reference(2, "Oil")]))
    assert criteria.is_met_by(criteria.wanted([reference(1), reference(2, "Oil"), reference(3)]))


def test_a_form_listed_twice_counts_once_and_as_its_latest():
    criteria = FormCriteria(minimum_forms=2)
    wanted = criteria.wanted([reference(1, updated="old"), reference(1, updated="new")])

    assert wanted == [reference(1, updated="new")]
    assert not criteria.is_met_by(wanted)
