from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.payloads import (
    JOB_FIELDS,
    JobCreate,
    JobFields,
    JobRequest,
    WebhookCreate,
    parse_payload,
)

# The body of a job creation, field by field.
BODY = {
    "customerContactID": "31",
    "siteContactID": "32",
    "settingsJobDescriptionID": "33",
    "notes": "Ring first",
    "serviceReminderInstance1ID": 41,
    "serviceReminderInstance2ID": 42,
    "serviceReminderInstance3ID": 43,
    "skills": None,
    "customerReference": "PO-1",
    "quotedAmount": "99.50",
    "priority": "Not_Important",
    "businessUnitID": 91,
    "userGroupID": 92,
}
TEXT_IDS = ["customerContactID", "siteContactID", "settingsJobDescriptionID", "customerReference"]
INTEGER_IDS = [
    "serviceReminderInstance1ID",
    "serviceReminderInstance2ID",
    "serviceReminderInstance3ID",
    "businessUnitID",
    "userGroupID",
]
WEBHOOK = {
    "object": "jobs",
    "eventTypes": ["jobs.created", "jobs.updated"],
    "targetURL": "https://hooks.example.com/canary?a=b&c=d",
    "description": "Jobs & more",
}


def job_body(**fields: Any) -> dict[str, Any]:
    return parse_payload(JobCreate, fields, "job").body()


def webhook(**changes: Any) -> WebhookCreate:
    return parse_payload(WebhookCreate, {**WEBHOOK, **changes}, "webhook")


def test_the_body_has_exactly_the_specified_fields():
    assert job_body(**BODY) == BODY
    assert {*JOB_FIELDS.values()} == {*BODY}


def test_a_dictionary_may_be_annotated_with_the_fields_that_are_accepted():
    assert JobFields.__optional_keys__ == {*BODY, "extra_fields"}
    job: JobFields = {
        "customerReference": "PO-1",
        "quotedAmount": Decimal("99.50"),
        "businessUnitID": 91,
    }
    assert job_body(**job) == {**job, "quotedAmount": "99.50"}


def test_what_is_not_given_or_null_is_not_sent():
    assert job_body() == {}
    assert job_body(**dict.fromkeys(BODY.keys() - {"skills"})) == {}


def test_identifiers_may_be_given_as_the_other_type():
    other_type = {**dict.fromkeys(TEXT_IDS, 31), **dict.fromkeys(INTEGER_IDS, "41")}
    own_type = {**dict.fromkeys(TEXT_IDS, "31"), **dict.fromkeys(INTEGER_IDS, 41)}

    assert job_body(**other_type) == own_type


@pytest.mark.parametrize("spelling", [41.0, "41.0", " 41 ", "041"])
def test_an_identifier_is_sent_in_its_one_spelling(spelling):
    assert job_body(businessUnitID=spelling) == {"businessUnitID": 41}


def test_fields_may_be_given_in_snake_case():
    fields = {
        "customer_contact_id": "31",
        "service_reminder_instance1_id": 41,
        "quoted_amount": "5",
    }
    sent = {
        "customerContactID": "31",
        "serviceReminderInstance1ID": 41,
        "quotedAmount": "5",
    }

    assert job_body(**fields) == sent
    assert JobCreate(**fields).body() == sent


@pytest.mark.parametrize(
    "skills",
    [
        None,
        [],
        [1, 2],
        "gas",
        {"id": [1, None]},
        [{"id": 1, "skill": "s"}],
        0,
    ],
)
def test_skills_are_sent_as_given(skills):
    assert job_body(skills=skills) == {"skills": skills}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("customerContactID", True),
        ("customerContactID", 1.0),
        ("customerContactID", ["31"]),
        ("customerContactID", b"31"),
        ("businessUnitID", True),
        ("businessUnitID", 1.5),
        ("businessUnitID", "x"),
        ("businessUnitID", ""),
        ("businessUnitID", [41]),
        ("businessUnitID", "7_0"),
        ("businessUnitID", "1.5"),
        ("businessUnitID", "+7"),
        ("notes", 5),
        ("priority", True),
        ("skills", {1, 2}),
        ("jobType", 2),
        ("extraFields", {"jobType": 2}),
        ("extra_fields", {"jobType": object()}),
        ("extra_fields", {"customerReference": "WO-1"}),
        ("extra_fields", {"customer_reference": "WO-1"}),
    ],
)
def test_a_bad_field_of_a_job_is_named(name, value):
    with pytest.raises(FsmInputError, match=rf"^job\.{name}\b"):
        job_body(**{name: value})


def test_every_bad_field_is_named_and_no_value_quoted():
    with pytest.raises(FsmInputError) as raised:
        job_body(notes=["canary"], businessUnitID="canary", quotedAmount="canary", tags="canary")

    text = str(raised.value)
    assert "job.notes: " in text
    assert "job.businessUnitID: " in text
    assert "job.quotedAmount: " in text
    assert "job.tags: " in text
    assert "canary" not in text


@pytest.mark.parametrize("payload", [None, [], "x", 5])
def test_a_payload_that_is_no_object_is_refused(payload):
    with pytest.raises(FsmInputError, match=r"^job: "):
        parse_payload(JobCreate, payload, "job")


def test_extra_fields_are_merged_in():
    extra = {"jobType": 2, "tags": ["a"], "newField": None}

    assert job_body(notes="x", extra_fields=extra) == {"notes": "x", **extra}


@pytest.mark.parametrize(
    ("amount", "sent"),
    [
        ("120", "120"),
        ("99.50", "99.50"),
        (120, "120"),
        (Decimal("99.50"), "99.50"),
        (Decimal("1E+3"), "1000"),
        (Decimal("1E-7"), "0.0000001"),
    ],
)
def test_an_amount_is_sent_as_digits(amount, sent):
    assert job_body(quotedAmount=amount) == {"quotedAmount": sent}


@pytest.mark.parametrize(
    "amount",
    [
        1.5,
        True,
        -1,
        [5],
        "",
        " 5",
        "-1",
        "1,50",
        "1.",
        ".5",
        "1.2.3",
        "1e3",
        "£5",
        "٣",
        "5\n",
        Decimal("-1"),
        Decimal("NaN"),
        Decimal("Infinity"),
    ],
)
def test_what_is_no_amount_is_refused(amount):
    with pytest.raises(FsmInputError, match=r"^job\.quotedAmount: "):
        job_body(quotedAmount=amount)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"object": "users", "eventTypes": ["users.created"]}, "object"),
        ({"object": None}, "object"),
        ({"eventTypes": ["assets.created"]}, "eventTypes"),
        ({"eventTypes": ["jobs.created", "job.created"]}, "eventTypes"),
        ({"eventTypes": ["jobs.created", "jobs.created"]}, "eventTypes"),
        ({"eventTypes": []}, "eventTypes"),
        ({"eventTypes": ""}, "eventTypes"),
        ({"eventTypes": "jobs"}, "eventTypes"),
        ({"eventTypes": ["jobs."]}, "eventTypes"),
        ({"eventTypes": ["jobs.a\n"]}, "eventTypes"),
        ({"eventTypes": ["jobs.a,jobs.b"]}, "eventTypes"),
        ({"eventTypes": None}, "eventTypes"),
        ({"eventTypes": [1]}, "eventTypes"),
        ({"targetURL": ""}, "targetURL"),
        ({"targetURL": "canary"}, "targetURL"),
        ({"targetURL": "ftp://canary"}, "targetURL"),
        ({"targetURL": "https://"}, "targetURL"),
        ({"targetURL": "https://x y/"}, "targetURL"),
        ({"targetURL": "https://x/\n"}, "targetURL"),
        ({"targetURL": None}, "targetURL"),
        ({"targetURL": 5}, "targetURL"),
        ({"description": 5}, "description"),
        ({"signingSecret": "canary"}, "signingSecret"),
    ],
)
def test_a_bad_parameter_of_a_webhook_is_named(changes, named):
    with pytest.raises(FsmInputError, match=rf"^webhook\.{named}\b") as raised:
        webhook(**changes)

    assert "canary" not in str(raised.value)


def test_the_target_may_be_any_web_url_and_no_description_sends_none():
    query = webhook(targetURL="http://10.0.0.1:8080/fsm", description=None).query()

    assert query == {
        "object": WEBHOOK["object"],
        "eventTypes": WEBHOOK["eventTypes"],
        "targetURL": "http://10.0.0.1:8080/fsm",
    }


def test_parameters_of_a_webhook_may_be_text_and_what_is_missing_is_named():
    assert webhook(eventTypes="jobs.created").event_types == ["jobs.created"]
    with pytest.raises(FsmInputError, match=r"webhook\.object: is missing.*targetURL: is missing"):
        parse_payload(WebhookCreate, {"eventTypes": WEBHOOK["eventTypes"]}, "webhook")


def test_the_target_is_not_in_the_repr_of_a_webhook():
    assert "canary" not in repr(webhook())
    assert "canary" not in str(webhook())


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        ({"property_id": 7, "job": {"customerRefrence": "x"}}, "job.customerRefrence"),
        ({"property_id": 7, "job": {"colour": "red"}}, "job.colour"),
        ({"property_id": 7, "job": {}, "notes": "x"}, "notes"),
    ],
    ids=str,
)
def test_an_unknown_field_is_named_with_those_of_a_job(request_, name):
    message = rf"^jobs\[3\]\.{name}: .*customerReference.*its extra_fields$"

    with pytest.raises(FsmInputError, match=message):
        parse_payload(JobRequest, request_, "jobs[3]")


@pytest.mark.parametrize(
    ("identifier", "segment"),
    [
        (7, "7"),
        ("7", "7"),
        ("a/b", "a%2Fb"),
        ("a?b#c", "a%3Fb%23c"),
        ("é%", "%C3%A9%25"),
        ("...", "..."),
    ],
)
def test_a_property_stays_one_segment_of_the_path(identifier, segment):
    asked = JobRequest(property_id=identifier, job={})

    assert asked.request().path == f"/properties/{segment}/jobs"


@pytest.mark.parametrize("identifier", [None, "", " ", True, 1.5, ".", "..", " .. ", "None", "a b"])
def test_a_path_is_not_filled_with_what_is_no_identifier(identifier):
    request = {"property_id": identifier, "job": {}}

    with pytest.raises(FsmInputError, match=r"^property_id: "):
        parse_payload(JobRequest, request, "")
