"""Forms: the filters of their listing, records, references and identifiers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.forms import FormFilter, for_xcom, job_id_from, parse_forms, reference_to
from fsm_provider.api.models import Form
from fsm_provider.api.parsing import parse_record

EIGHT = datetime(2026, 1, 31, 8, tzinfo=UTC)
NINE = "2026-01-31T09:00:00Z"
ALL_FILTERS = {
    "property_id": "7",
    "job_id": "21",
    "created_since": "2026-01-31T08:00:00+00:00",
    "updated_since": "2026-01-31T08:00:00+00:00",
    "form_category": "Gas",
    "form_name_id": "3",
    "created_by_type": "User",
    "created_by_id": "71",
}
ALL_PARAMETERS = {
    "propertyID": "7",
    "jobID": "21",
    "createdOnDateTime[gte]": "2026-01-31T08:00:00.000Z",
    "lastUpdatedOnDateTime[gte]": "2026-01-31T08:00:00.000Z",
    "formCategory": "Gas",
    "formNameID": "3",
    "createdByType": "User",
    "createdByID": "71",
}


def form(**changes: Any) -> Form:
    """Read a form in which everything can be filtered by; a field of None is absent."""
    record = {
        "id": 121,
        "formName": "Gas safety",
        "propertyID": "7",
        "jobDetails": {"jobID": 21, "jobTown": "Anytown"},
        "createdByType": "User",
        "createdByID": "71",
        "createdOnDateTime": NINE,
        "lastUpdatedOnDateTime": NINE,
        "formPDFURL": "https://files.example.com/canary.pdf",
        "links": {"job": "https://api.example.com/canary"},
        **changes,
    }
    present = {name: value for name, value in record.items() if value is not None}
    return parse_record(present, Form, timezone=UTC)


def test_every_filter_is_sent_under_the_specified_name():
    assert FormFilter(**ALL_FILTERS).params() == ALL_PARAMETERS


def test_no_filter_sends_nothing_and_matches_every_form():
    assert FormFilter().params() == {}
    assert FormFilter().matches(form())
    assert FormFilter().matches(Form(id=1))
    assert str(FormFilter()) == "all forms"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("property_id", True),
        ("job_id", True),
        ("form_name_id", True),
        ("created_by_id", True),
        ("form_category", 1.5),
        ("created_by_type", 1.5),
    ],
)
def test_a_bad_filter_is_named(name, value):
    with pytest.raises(FsmInputError, match=f"^{name}: "):
        FormFilter(**{name: value})


@pytest.mark.parametrize(
    "since",
    [EIGHT.replace(microsecond=999), "2026-01-31T08:00:00", "2026-01-31T09:00:00+01:00"],
)
def test_a_time_is_sent_in_utc_with_milliseconds(since):
    params = FormFilter(created_since=since).params()

    assert params == {"createdOnDateTime[gte]": "2026-01-31T08:00:00.000Z"}


@pytest.mark.parametrize(
    ("filters", "matched"),
    [
        ({"property_id": 7}, True),
        ({"property_id": 8}, False),
        ({"property_id": "07"}, True),
        ({"job_id": 21}, True),
        ({"job_id": "2"}, False),
        ({"created_by_type": "User"}, True),
        ({"created_by_type": "Customer"}, False),
        ({"created_by_id": 71}, True),
        ({"created_by_id": "72"}, False),
        ({"created_since": EIGHT}, True),
        ({"created_since": NINE}, True),
        ({"created_since": "2026-01-31T09:00:00.001Z"}, False),
        ({"updated_since": "2026-01-31T10:00:00"}, False),
        ({"updated_since": "2026-01-31T10:00:00+01:00"}, True),
        ({"property_id": 7, "job_id": 21, "created_since": EIGHT}, True),
        ({"property_id": 7, "job_id": 22, "created_since": EIGHT}, False),
        ({"form_category": "Oil", "form_name_id": 9}, True),
    ],
)
def test_a_form_is_checked_against_each_filter(filters, matched):
    assert FormFilter(**filters).matches(form()) is matched


@pytest.mark.parametrize(
    ("filters", "absent"),
    [
        ({"property_id": 7}, {"propertyID": None}),
        ({"job_id": 21}, {"jobDetails": None}),
        ({"job_id": 21}, {"jobDetails": "job 21"}),
        ({"job_id": 21}, {"jobDetails": {"jobID": "J-21"}}),
        ({"created_by_type": "User"}, {"createdByType": None}),
        ({"created_by_id": 71}, {"createdByID": None}),
    ],
)
def test_a_form_that_does_not_say_whose_it_is_does_not_match(filters, absent):
    assert not FormFilter(**filters).matches(form(**absent))


@pytest.mark.parametrize("name", ["created_since", "updated_since"])
@pytest.mark.parametrize(
    "time",
    [
        None,
        "yesterday",
        [NINE],
        "2026-01-05",
        "0001-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
    ],
)
def test_a_time_that_cannot_be_read_is_taken_to_match(name, time):
    unreadable = form(createdOnDateTime=time, lastUpdatedOnDateTime=time)

    assert FormFilter(**{name: EIGHT}).matches(unreadable)
    assert not FormFilter(**{name: EIGHT}, job_id=22).matches(unreadable)


def test_a_filter_is_described_by_what_is_set():
    assert str(FormFilter(property_id=7, form_category="Gas")) == "property_id=7, form_category=Gas"


@pytest.mark.parametrize(
    "filters",
    [
        {},
        ALL_FILTERS,
        {"created_since": EIGHT},
        {"job_id": "J-1"},
    ],
)
def test_filters_of_text_come_back_from_json_as_equal_ones(filters):
    form_filter = FormFilter(**filters)

    from_json = json.loads(json.dumps(form_filter.as_dict()))

    assert FormFilter(**from_json) == form_filter


@pytest.mark.parametrize(
    ("details", "job"),
    [
        ({"jobID": 21}, 21),
        ({"jobID": "21"}, 21),
        ({}, None),
        (None, None),
        ("21", None),
    ],
)
def test_the_job_of_a_form_is_found_where_it_can_be_read(details, job):
    assert job_id_from(form(jobDetails=details)) == job


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
    reference = reference_to(form(**changes))

    assert json.loads(json.dumps(reference)) == reference
    assert len(reference) == 6
    assert "canary" not in str(reference)


def test_forms_are_given_as_xcom_names_it():
    first = form(id=2)
    second = form(id=1)
    forms = [first, second]

    references = for_xcom(forms, "references")

    assert for_xcom(forms, "ids") == [2, 1]
    assert references == [reference_to(first), reference_to(second)]
    assert for_xcom(forms, "full") == [first.as_json(), second.as_json()]
    assert "canary" not in str(references)


def test_what_forms_are_read_from_is_left_as_it_is():
    record = {"id": 1, "jobDetails": {"jobID": "odd"}, "createdOnDateTime": "2026-01-31T09:00:00"}
    argument = json.loads(json.dumps(record))

    [parsed] = parse_forms([argument], UTC)

    assert argument == record
    assert job_id_from(parsed) == "odd"


def test_lists_of_a_mapped_task_are_refused_with_the_remedy():
    remedy = r"^forms\[0\]: is a list: .* Use \.expand\(forms=\.\.\.\)"
    with pytest.raises(FsmInputError, match=remedy):
        parse_forms([[{"id": 1}], [{"id": 2}]], UTC)
    with pytest.raises(FsmInputError, match="forms: is None: the template or task output"):
        parse_forms(None, UTC)
