from typing import Any

import pytest

from fsm_provider.polling.criteria import FormCriteria


def reference(identifier: int, name: str | None = "Gas") -> dict[str, Any]:
    return {"id": identifier, "formName": name}


@pytest.mark.parametrize(("found", "met"), [([], False), ([1], False), ([1, 2], True), ([1, 2, 3], True)])
def test_enough_forms_meet_the_criteria(found, met):
    criteria = FormCriteria(minimum_forms=2)

    assert criteria.is_met_by([reference(number) for number in found]) is met


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
    found = [reference(number, name) for number, name in enumerate(names)]
    counted = [one for one in found if criteria.counts(one)]

    assert criteria.missing(counted) == missing
    assert criteria.is_met_by(counted) is (not missing)
