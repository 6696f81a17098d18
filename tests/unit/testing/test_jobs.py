"""What the fake makes of a job.

That it has each field of the specification is in test_conformance.py.
"""

from __future__ import annotations

import pytest

JSON = {"Content-Type": "application/json"}
BODY = {
    "customerContactID": "31",
    "siteContactID": "32",
    "serviceReminderInstance1ID": 5,
    "customerReference": "PO-1",
    "quotedAmount": "120.50",
}


def test_what_was_sent_is_carried_over_to_the_job(call):
    job = call.create_job(7, BODY).json()

    for name, value in BODY.items():
        assert job[name] == value
    assert job["propertyID"] == 7
    assert job["customerContact"]["contactID"] == 31
    assert job["siteContact"]["siteContactID"] == 32
    assert job["status"] == "Open"
    assert call.service.jobs == [job]


def test_links_are_absolute_below_the_base_path(serve):
    call = serve(base_path="api/v2/")
    job = call.create_job(7).json()

    assert call.service.base_url.endswith("/api/v2")
    assert job["links"] == {
        "self": f"{call.service.base_url}/jobs/{job['id']}",
        "property": f"{call.service.base_url}/properties/7",
        "appointments": f"{call.service.base_url}/jobs/{job['id']}/appointments",
    }
    assert call.service.requests[0].path == "/properties/7/jobs"


def test_unknown_fields_are_echoed_but_set_nothing_that_the_service_sets(call):
    sent = {"poNumber": 3, "id": 1, "status": "x"}

    first = call.create_job(7, sent).json()
    second = call.create_job(7, sent).json()

    assert first["poNumber"] == 3
    assert first["status"] == "Open"
    assert len({1, first["id"], second["id"]}) == 3


@pytest.mark.parametrize(
    ("skills", "result"),
    [
        (None, []),
        ([{"id": 1, "skill": "Gas"}], [{"id": 1, "skill": "Gas"}]),
        ("Gas", []),
        (7, []),
        ([None], []),
        ([{"id": "1", "skill": "Gas"}], []),
        ([{"id": 1}], []),
    ],
)
def test_skills_of_another_form_do_not_reach_the_job(call, skills, result):
    job = call.create_job(7, {"skills": skills}).json()

    assert job["skills"] == result


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({"json": {"quotedAmount": 120.5}}, "quotedAmount"),
        ({"json": {"serviceReminderInstance1ID": True}}, "serviceReminderInstance1ID"),
        ({"json": {"notes": None}}, "notes"),
        ({"data": b"{", "headers": JSON}, "object"),
        ({"data": b"[]", "headers": JSON}, "object"),
        ({"data": b"{}", "headers": {"Content-Type": "text/xml"}}, "Content-Type"),
    ],
)
def test_what_makes_no_job_is_refused_by_name(call, sent, named):
    response = call("POST", "/properties/7/jobs", **sent)

    assert response.status_code == 400
    assert named in response.json()["detail"]
    assert call.service.jobs == []


def test_any_property_exists_by_default_but_none_that_is_no_number(call):
    assert call.create_job(987654).status_code == 201
    assert call.create_job("abc").status_code == 404


def test_only_the_given_properties_exist(serve):
    call = serve(properties={1})
    assert call.create_job(1).status_code == 201
    assert call.create_job(2).status_code == 404

    call.service.add_property(2)

    assert call.create_job(2).status_code == 201
