"""Forms as records, references and identifiers."""

from __future__ import annotations

import json
from datetime import UTC

import pytest

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.forms import for_xcom, job_id_from, parse_forms, reference_to
from tests.unit.api.test_form_filter import NINE, form


def test_a_reference_has_exactly_its_six_keys():
    assert reference_to(form()) == {
        "id": 121,
        "formName": "Gas safety",
        "propertyID": "7",
        "jobID": 21,
        "createdOnDateTime": NINE,
        "lastUpdatedOnDateTime": NINE,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"formName": None, "propertyID": None, "jobDetails": None, "createdOnDateTime": None},
        {"formName": ["a"], "jobDetails": [1], "createdOnDateTime": "yesterday", "new": {"a": 1}},
    ],
)
def test_a_reference_is_json_with_six_keys_and_no_url_for_any_record(changes):
    compact = reference_to(form(**changes))

    assert json.loads(json.dumps(compact)) == compact
    assert len(compact) == 6
    assert "canary" not in str(compact)


def test_forms_are_given_as_xcom_names_it():
    forms = [form(id=2), form(id=1)]

    assert for_xcom(forms, "ids") == [2, 1]
    assert for_xcom(forms, "references") == [reference_to(one) for one in forms]
    assert for_xcom(forms, "full") == [one.as_json() for one in forms]
    assert "canary" not in str(for_xcom(forms, "references"))


def test_what_forms_are_read_from_is_left_as_it_is():
    record = {"id": 1, "jobDetails": {"jobID": "odd"}, "createdOnDateTime": "2026-01-31T09:00:00"}
    given = json.loads(json.dumps(record))

    (read,) = parse_forms([given], UTC)

    assert given == record
    assert job_id_from(read) == "odd"


def test_lists_of_a_mapped_task_are_refused_with_the_remedy():
    with pytest.raises(FsmInputError, match=r"^forms\[0\]: is a list: .* Use \.expand\(forms=\.\.\.\)"):
        parse_forms([[{"id": 1}], [{"id": 2}]], UTC)
    with pytest.raises(FsmInputError, match="forms: is None: the template or task output"):
        parse_forms(None, UTC)
