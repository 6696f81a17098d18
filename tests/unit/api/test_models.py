"""The records, against complete ones written down from the specification."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from fsm_provider.api.models import (
    AssetDynamicField,
    AssignedUser,
    Closed,
    Completed,
    CustomerContact,
    Form,
    FormLinks,
    Job,
    JobDetails,
    JobLinks,
    Meta,
    Page,
    Pagination,
    Record,
    SiteContact,
    Skill,
    Usage,
    ValueOption,
    Webhook,
)

WHEN = "2026-01-31T08:00:00Z"
SECRET = "whsec-canary"

ASSET_DYNAMIC_FIELD = {
    "dynamicFieldID": 11,
    "dynamicFieldName": "Fuel",
    "usedBy": [
        {
            "scope": "assetType",
            "fieldKey": "f_1",
            "fieldDescription": "Fuel type",
            "assetTypeID": 3,
            "assetTypeDescription": "Boiler",
            "assetGroupID": 4,
            "assetGroupDescription": "Heating",
        }
    ],
    "values": [{"id": 1, "name": "Gas"}],
}
JOB = {
    "id": 21,
    "createdOnDateTime": WHEN,
    "createdByType": "User",
    "createdByUserID": 5,
    "createdByUser": "Ann Other",
    "lastUpdatedOnDateTime": WHEN,
    "propertyID": 7,
    "customerContactID": "31",
    "customerContact": {
        "contactID": 31,
        "fullName": "C. Ustomer",
        "mobile": "07",
        "telephone": "01",
        "email": "c@example.com",
    },
    "siteContactID": "32",
    "siteContact": {
        "siteContactID": 32,
        "fullName": "S. Ite",
        "mobile": "08",
        "telephone": "02",
        "email": "s@example.com",
    },
    "description": "Service",
    "settingsJobDescriptionID": "33",
    "notes": "Ring first",
    "jobType": 2,
    "serviceReminderInstance1ID": 41,
    "serviceReminderInstance2ID": 42,
    "serviceReminderInstance3ID": 43,
    "serviceReminderInstance1Name": "One",
    "serviceReminderInstance2Name": "Two",
    "serviceReminderInstance3Name": "Three",
    "skills": [{"id": 51, "skill": "Gas"}],
    "pipelineID": 61,
    "pipelineName": "Repairs",
    "stageID": 62,
    "stageName": "New",
    "usersCurrentlyAssignedToJob": [{"id": 71, "fullName": "E. Ngineer"}],
    "contractID": 81,
    "hasRelatedRecall": True,
    "recallOfParentJobID": 82,
    "blameUserID": 83,
    "blameUser": "B. Lame",
    "jobReportedDateTime": WHEN,
    "expectedOnsiteDateTime": WHEN,
    "expectedCompletionDateTime": WHEN,
    "tags": ["urgent"],
    "customerReference": "PO-1",
    "quotedAmount": "99.50",
    "priority": "Not_Important",
    "businessUnitID": 91,
    "businessUnit": "North",
    "userGroupID": 92,
    "userGroup": "Gas",
    "status": "Open",
    "completed": {
        "completedByID": 101,
        "completedByUser": "E. Ngineer",
        "completedByType": "User",
        "completedOnDateTime": WHEN,
    },
    "closed": {
        "closedByID": 102,
        "closedByUser": "O. Ffice",
        "closedByType": "User",
        "closedOnDateTime": WHEN,
        "closedOutcome": "Done",
        "focReason": "Goodwill",
        "focNote": "Once",
        "abortReason": "No access",
        "abortNote": "Twice",
    },
    "isJobOnHold": False,
    "onHoldReasonID": 111,
    "onHoldReasonDescription": "Parts",
    "afterSalesCareFeedback": "Good",
    "afterSalesCareComments": "None",
    "hasSLA": True,
    "SLAType": "Gold",
    "SLAStatus": "Met",
    "links": {"self": "/jobs/21", "property": "/properties/7", "appointments": "/appointments"},
}
FORM = {
    "id": 121,
    "createdOnDateTime": WHEN,
    "lastUpdatedOnDateTime": WHEN,
    "createdByType": "User",
    "createdByID": "71",
    "createdByUser": "E. Ngineer",
    "propertyID": "7",
    "jobDetails": {
        "jobID": 21,
        "jobDescription": "Service",
        "jobAddressLine1": "1 High Street",
        "jobAddressLine2": "Oldtown",
        "jobAddressLine3": "Upper",
        "jobTown": "Anytown",
        "jobProvince": "Anyshire",
        "jobPostcode": "AB1 2CD",
    },
    "formName": "Gas safety",
    "formPDFURL": "https://files.example.com/121.pdf?signature=canary",
    "links": {"property": "/properties/7", "job": "/jobs/21"},
}
WEBHOOK = {
    "id": 131,
    "description": "Jobs",
    "object": "jobs",
    "eventTypes": ["jobs.created"],
    "targetURL": "https://hooks.example.com/canary",
    "signingSecret": SECRET,
}
META = {"serverTime": WHEN, "totalRecords": "1"}
PAGINATION = {"hasMore": True, "nextCursor": 2, "prevCursor": 0}

SPECIFIED: dict[type[Record], dict[str, Any]] = {
    AssetDynamicField: ASSET_DYNAMIC_FIELD,
    Usage: ASSET_DYNAMIC_FIELD["usedBy"][0],
    ValueOption: ASSET_DYNAMIC_FIELD["values"][0],
    Job: JOB,
    CustomerContact: JOB["customerContact"],
    SiteContact: JOB["siteContact"],
    Skill: JOB["skills"][0],
    AssignedUser: JOB["usersCurrentlyAssignedToJob"][0],
    Completed: JOB["completed"],
    Closed: JOB["closed"],
    JobLinks: JOB["links"],
    Form: FORM,
    JobDetails: FORM["jobDetails"],
    FormLinks: FORM["links"],
    Webhook: WEBHOOK,
    Meta: META,
    Pagination: PAGINATION,
    Page[Form]: {"meta": META, "pagination": PAGINATION, "data": [FORM]},
    Page[AssetDynamicField]: {"meta": META, "pagination": PAGINATION, "data": [ASSET_DYNAMIC_FIELD]},
}
EVERY_RECORD = pytest.mark.parametrize(
    ("model", "record"), SPECIFIED.items(), ids=[model.__name__ for model in SPECIFIED]
)
IDENTIFIERS = [
    (model, name, value)
    for model, record in SPECIFIED.items()
    for name, value in record.items()
    if name == "id" or name.endswith("ID")
]


def without_secret(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "signingSecret"}


@EVERY_RECORD
def test_fields_are_exactly_the_specified_ones(model, record):
    assert {field.alias for field in model.model_fields.values()} == set(record)


@EVERY_RECORD
def test_a_complete_record_is_written_as_it_came(model, record):
    record = without_secret(record)

    written = model.model_validate_json(json.dumps(record)).as_json()

    assert {name: written[name] for name in record} == record
    assert written.keys() - record.keys() <= {"signingSecret"}


@EVERY_RECORD
def test_a_complete_record_comes_back_from_json_as_an_equal_one(model, record):
    first = model.model_validate(without_secret(record))

    second = model.model_validate_json(json.dumps(first.as_json()))

    assert second == first


@EVERY_RECORD
def test_every_date_time_is_aware(model, record):
    read = model.model_validate(record).model_dump(by_alias=True)
    times = [value for name, value in read.items() if name.endswith(("DateTime", "serverTime"))]

    assert times == [datetime(2026, 1, 31, 8, tzinfo=UTC)] * len(times)
    assert len(times) == list(record.values()).count(WHEN)


@pytest.mark.parametrize("number", [0, 17])
@pytest.mark.parametrize("given_as", [int, str])
@pytest.mark.parametrize(("model", "name", "specified"), IDENTIFIERS)
def test_an_identifier_of_either_type_gets_the_specified_one(model, name, specified, given_as, number):
    record = {**SPECIFIED[model], name: given_as(number)}

    written = model.model_validate(record).as_json()[name]

    assert written == type(specified)(number)


@pytest.mark.parametrize("scope", ["standard", "assetType", "assetGroup"])
def test_a_usage_has_one_of_the_three_scopes(scope):
    assert Usage.model_validate({"scope": scope}).scope == scope
    with pytest.raises(ValidationError, match="scope"):
        Usage.model_validate({"scope": scope.upper()})


@EVERY_RECORD
def test_unknown_fields_are_kept(model, record):
    unknown = {"newText": "x", "newObject": {"deep": [1, None]}, "newNull": None}

    assert unknown.items() <= model.model_validate({**record, **unknown}).as_json().items()


@pytest.mark.parametrize(
    ("model", "identifier"),
    [(AssetDynamicField, "dynamicFieldID"), (Job, "id"), (Form, "id"), (Webhook, "id")],
)
def test_only_the_identifier_is_required(model, identifier):
    record = model.model_validate({identifier: 5})

    assert getattr(record, record.identity_field) == 5
    assert {name: value for name, value in record.as_json().items() if value is not None} == {identifier: 5}
    with pytest.raises(ValidationError, match=identifier):
        model.model_validate(without_secret(SPECIFIED[model]) | {identifier: None})


def test_milliseconds_survive():
    form = Form.model_validate({**FORM, "createdOnDateTime": "2026-01-31T08:00:00.678Z"})

    assert form.created_on_date_time == datetime(2026, 1, 31, 8, microsecond=678000, tzinfo=UTC)
    assert Form.model_validate(form.as_json()) == form


@pytest.mark.parametrize("cursor", [0, "0", "007", "null", "a&b=c", " "])
def test_a_cursor_keeps_its_type_and_its_text(cursor):
    read = Pagination.model_validate({"nextCursor": cursor}).next_cursor

    assert (type(read), read) == (type(cursor), cursor)


@pytest.mark.parametrize("secret", [SECRET, {"value": SECRET}, [SECRET]])
def test_the_signing_secret_shows_in_no_dump_and_no_repr(secret):
    webhook = Webhook.model_validate({**WEBHOOK, "signingSecret": secret})

    shown = [repr(webhook), str(webhook), repr([webhook]), webhook.as_json(), webhook.model_dump()]
    shown += [webhook.model_dump_json(), webhook.model_dump(mode="json", by_alias=True)]

    assert SECRET not in str(shown)
    assert webhook.signing_secret is not None
    assert webhook.signing_secret.get_secret_value() == str(secret)


def test_a_secret_that_comes_under_our_name_is_not_in_the_json():
    assert SECRET not in str(Webhook.model_validate({**WEBHOOK, "signing_secret": SECRET}).as_json())


@pytest.mark.parametrize(("model", "record"), [(Form, FORM), (Webhook, WEBHOOK)])
def test_a_url_that_may_be_signed_is_not_in_the_repr(model, record):
    read = model.model_validate(record)

    assert "canary" not in repr(read) + str(read) + repr([read])
