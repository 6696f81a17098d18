from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def listed_ids(call, **params):
    response = call("GET", "/forms", params=params)
    assert response.status_code == 200, response.text
    return [form["id"] for form in response.json()["data"]]


@pytest.mark.parametrize(
    ("params", "seeded"),
    [
        ({"propertyID": "7"}, {"property_id": 7}),
        ({"jobID": "9"}, {"job_id": 9}),
        ({"createdByType": "Contact"}, {"createdByType": "Contact"}),
        ({"createdByID": "44"}, {"createdByID": "44"}),
        ({"formCategory": "gas"}, {"category": "gas"}),
        ({"formNameID": "3"}, {"form_name_id": "3"}),
    ],
)
def test_a_filter_narrows_the_listing(call, params, seeded):
    call.service.add_form()
    form = call.service.add_form(**seeded)

    assert listed_ids(call, **params) == [form["id"]]


@pytest.mark.parametrize(
    ("parameter", "argument"),
    [
        ("createdOnDateTime[gte]", "created"),
        ("lastUpdatedOnDateTime[gte]", "updated"),
    ],
)
def test_a_lower_bound_includes_the_bound_itself(call, parameter, argument):
    yesterday = {"created": NOON - timedelta(days=1)}
    before = {**yesterday, argument: NOON - timedelta(milliseconds=1)}
    call.service.add_form(**before)
    at_noon = {**yesterday, argument: NOON}
    form = call.service.add_form(**at_noon)

    assert listed_ids(call, **{parameter: "2026-03-01T12:00:00.000Z"}) == [form["id"]]
    assert listed_ids(call, **{parameter: "2026-03-01T13:00:00+01:00"}) == [form["id"]]
    assert listed_ids(call, **{parameter: "2026-03-01 12:00:00"}) == [form["id"]]


def test_a_form_matches_the_time_in_its_own_record(call):
    form = call.service.add_form(created=NOON.replace(microsecond=123_999))
    own_time = {"createdOnDateTime[gte]": form["createdOnDateTime"]}
    later = {"createdOnDateTime[gte]": "2026-03-01T12:00:00.123500Z"}

    assert listed_ids(call, **own_time) == [form["id"]]
    assert listed_ids(call, **later) == []


@pytest.mark.parametrize("name", ["createdOnDateTime[gte]", "lastUpdatedOnDateTime[gte]"])
def test_a_time_that_cannot_be_read_is_refused_by_name(call, name):
    response = call("GET", "/forms", params={name: "yesterday"})

    assert response.status_code == 409
    assert name in response.json()["detail"]


def test_a_naive_time_is_refused(call):
    with pytest.raises(ValueError, match="no time zone"):
        call.service.add_form(created=datetime(2026, 3, 1))


def test_seeded_forms_are_distinct_and_in_order_of_time(call):
    call.service.seed_forms(
        4,
        property_ids=(1, 2),
        form_names=("A", "B", "C"),
        first_created=NOON,
    )

    forms = call.service.forms
    assert len(forms) == 4
    assert len({form["id"] for form in forms}) == 4
    assert len({form["jobDetails"]["jobID"] for form in forms}) == 4

    facts = []
    for form in forms:
        seconds = form["createdOnDateTime"][17:19]
        facts.append((form["propertyID"], form["formName"], seconds))
    assert facts == [
        ("1", "A", "00"),
        ("2", "B", "01"),
        ("1", "C", "02"),
        ("2", "A", "03"),
    ]


def test_an_updated_form_keeps_its_place_and_its_creation(call):
    first = call.service.add_form(created=NOON)
    second = call.service.add_form(created=NOON)
    later = NOON + timedelta(hours=1)

    call.service.update_form(first["id"], updated=later, formName="Revised")

    updated_since = {"lastUpdatedOnDateTime[gte]": "2026-03-01T12:00:01Z"}
    created_since = {"createdOnDateTime[gte]": "2026-03-01T12:00:01Z"}
    assert listed_ids(call) == [first["id"], second["id"]]
    assert listed_ids(call, **updated_since) == [first["id"]]
    assert listed_ids(call, **created_since) == []
    assert call.service.forms[0]["formName"] == "Revised"


def test_a_form_is_completed_against_the_property_of_its_job(call):
    job = call.create_job(7).json()

    form = call.service.complete_form(job["id"], "Sign-off")

    assert form["formName"] == "Sign-off"
    assert form["propertyID"] == "7"
    assert listed_ids(call, jobID=job["id"], propertyID=7) == [form["id"]]
    with pytest.raises(LookupError):
        call.service.complete_form(1, "Sign-off")


def test_the_pdf_url_returns_a_pdf_that_differs_by_version(call):
    form = call.service.add_form(form_name="Record (gas)")
    path = form["formPDFURL"].removeprefix(call.service.base_url)

    first = call("GET", path)
    call.service.update_form(form["id"], updated=datetime.now(UTC) + timedelta(hours=1))
    second = call("GET", path)

    assert first.headers["Content-Type"] == "application/pdf"
    assert first.content.startswith(b"%PDF-")
    assert rb"(Record \(gas\) " in first.content
    assert second.content != first.content
    assert call("GET", "/forms/1/pdf").status_code == 404


def test_snapshots_are_copies(call):
    call.service.add_form()["jobDetails"].clear()
    call.service.forms[0]["jobDetails"].clear()

    assert call.service.forms[0]["jobDetails"]["jobID"] == 1
