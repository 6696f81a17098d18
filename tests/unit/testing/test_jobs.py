from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

BODY = {
    "customerContactID": "31",
    "siteContactID": "32",
    "settingsJobDescriptionID": "4",
    "notes": "Gate code 1234",
    "serviceReminderInstance1ID": 5,
    "serviceReminderInstance2ID": 6,
    "serviceReminderInstance3ID": 7,
    "customerReference": "PO-1",
    "quotedAmount": "120.50",
    "priority": "Important",
    "businessUnitID": 8,
    "userGroupID": 9,
}

STRINGS = [
    "createdOnDateTime",
    "createdByType",
    "createdByUser",
    "lastUpdatedOnDateTime",
    "customerContactID",
    "siteContactID",
    "description",
    "settingsJobDescriptionID",
    "notes",
    "serviceReminderInstance1Name",
    "serviceReminderInstance2Name",
    "serviceReminderInstance3Name",
    "pipelineName",
    "stageName",
    "blameUser",
    "jobReportedDateTime",
    "expectedOnsiteDateTime",
    "expectedCompletionDateTime",
    "customerReference",
    "quotedAmount",
    "priority",
    "businessUnit",
    "userGroup",
    "status",
    "onHoldReasonDescription",
    "afterSalesCareFeedback",
    "afterSalesCareComments",
    "SLAType",
    "SLAStatus",
]
INTEGERS = [
    "id",
    "createdByUserID",
    "propertyID",
    "jobType",
    "serviceReminderInstance1ID",
    "serviceReminderInstance2ID",
    "serviceReminderInstance3ID",
    "pipelineID",
    "stageID",
    "contractID",
    "recallOfParentJobID",
    "blameUserID",
    "businessUnitID",
    "userGroupID",
    "onHoldReasonID",
]
JOB_FIELDS = {
    **dict.fromkeys(STRINGS, str),
    **dict.fromkeys(INTEGERS, int),
    **dict.fromkeys(["hasRelatedRecall", "isJobOnHold", "hasSLA"], bool),
    **dict.fromkeys(["skills", "usersCurrentlyAssignedToJob", "tags"], list),
    **dict.fromkeys(["customerContact", "siteContact", "completed", "closed", "links"], dict),
}
PEOPLE = {"fullName": str, "mobile": str, "telephone": str, "email": str}
OBJECTS = {
    "customerContact": {"contactID": int, **PEOPLE},
    "siteContact": {"siteContactID": int, **PEOPLE},
    "completed": {
        "completedByID": int,
        "completedByUser": str,
        "completedByType": str,
        "completedOnDateTime": type(None),
    },
    "closed": {
        "closedByID": int,
        "closedByUser": str,
        "closedByType": str,
        "closedOnDateTime": type(None),
        "closedOutcome": str,
        "focReason": str,
        "focNote": str,
        "abortReason": str,
        "abortNote": str,
    },
    "links": {"self": str, "property": str, "appointments": str},
}


@pytest.mark.parametrize("body", [{}, BODY], ids=["empty", "full"])
def test_a_created_job_has_every_field_of_the_specification_in_its_type(call, body):
    response = call("POST", "/properties/7/jobs", json=body)

    assert response.status_code == 201
    job = response.json()
    assert {name: type(value) for name, value in job.items()} == JOB_FIELDS
    for name, types in OBJECTS.items():
        assert {key: type(value) for key, value in job[name].items()} == types


def test_what_was_sent_is_carried_over_to_the_job(call):
    job = call("POST", "/properties/7/jobs", json=BODY).json()

    assert {name: job[name] for name in BODY} == BODY
    assert job["propertyID"] == 7
    assert job["customerContact"]["contactID"] == 31
    assert job["siteContact"]["siteContactID"] == 32
    assert job["status"] == "Open"
    assert call.service.jobs == [job]


def test_links_are_absolute_below_the_base_path(serve):
    call = serve(base_path="api/v2/")
    job = call("POST", "/properties/7/jobs", json={}).json()

    assert call.service.base_url.endswith("/api/v2")
    assert job["links"] == {
        "self": f"{call.service.base_url}/jobs/{job['id']}",
        "property": f"{call.service.base_url}/properties/7",
        "appointments": f"{call.service.base_url}/jobs/{job['id']}/appointments",
    }
    assert call.service.requests[0].path == "/properties/7/jobs"


def test_a_job_is_created_now_in_utc_with_milliseconds(call):
    before = datetime.now(UTC)
    written = call("POST", "/properties/7/jobs", json={}).json()["createdOnDateTime"]

    created = datetime.strptime(written, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    assert len(written) == len("2026-01-02T03:04:05.678Z")
    assert before - timedelta(milliseconds=1) <= created <= datetime.now(UTC)


def test_each_job_has_its_own_identifier(call):
    ids = {call("POST", "/properties/7/jobs", json={}).json()["id"] for _ in range(3)}

    assert len(ids) == 3


def test_unknown_fields_are_echoed_but_set_nothing_that_the_service_sets(call):
    job = call("POST", "/properties/7/jobs", json={"poNumber": 3, "id": 1, "status": "x"}).json()

    assert job["poNumber"] == 3
    assert job["id"] != 1
    assert job["status"] == "Open"


@pytest.mark.parametrize(
    ("skills", "result"), [(None, []), ([{"id": 1, "skill": "Gas"}], [{"id": 1, "skill": "Gas"}])]
)
def test_skills_may_be_null_or_a_list(call, skills, result):
    assert call("POST", "/properties/7/jobs", json={"skills": skills}).json()["skills"] == result


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quotedAmount", 120.5),
        ("customerContactID", 31),
        ("businessUnitID", "8"),
        ("serviceReminderInstance1ID", True),
        ("notes", None),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_name(call, name, value):
    response = call("POST", "/properties/7/jobs", json={name: value})

    assert response.status_code == 400
    assert name in response.json()["detail"]
    assert call.service.jobs == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"'])
def test_a_body_that_is_no_object_is_refused(call, body):
    response = call("POST", "/properties/7/jobs", data=body, headers={"Content-Type": "application/json"})

    assert response.status_code == 400
    assert "object" in response.json()["detail"]


def test_a_body_of_another_content_type_is_refused(call):
    response = call("POST", "/properties/7/jobs", data=b"{}", headers={"Content-Type": "text/xml"})

    assert response.status_code == 400
    assert "Content-Type" in response.json()["detail"]


def test_any_property_exists_by_default_but_none_that_is_no_number(call):
    assert call("POST", "/properties/987654/jobs", json={}).status_code == 201
    assert call("POST", "/properties/abc/jobs", json={}).status_code == 404


def test_only_the_given_properties_exist(serve):
    call = serve(properties={1})
    assert call("POST", "/properties/1/jobs", json={}).status_code == 201
    assert call("POST", "/properties/2/jobs", json={}).status_code == 404

    call.service.add_property(2)

    assert call("POST", "/properties/2/jobs", json={}).status_code == 201


def test_a_seeded_job_has_the_given_fields(call):
    job = call.service.add_job(7, status="Closed", stageName="Done")

    assert (job["propertyID"], job["status"], job["stageName"]) == (7, "Closed", "Done")
    assert set(job) == set(JOB_FIELDS)
