from __future__ import annotations

import pytest

from tests.unit.testing.conftest import register


def test_a_registration_has_the_fields_of_the_specification(call):
    response = register(call, [("eventTypes", "jobs.created")])

    assert response.status_code == 200
    webhook = response.json()
    assert call.service.webhooks == [webhook]
    assert len(webhook.pop("signingSecret")) >= 32
    assert webhook == {
        "id": 1,
        "description": "New jobs",
        "object": "jobs",
        "eventTypes": ["jobs.created"],
        "targetURL": "https://example.test/hook",
    }


def test_each_registration_has_its_own_secret(call):
    secrets = {register(call, [("eventTypes", "jobs.created")]).json()["signingSecret"] for _ in range(2)}

    assert len(secrets) == 2


REPEATED = [("eventTypes", "jobs.created"), ("eventTypes", "jobs.updated")]
BRACKETS = [("eventTypes[]", "jobs.created"), ("eventTypes[]", "jobs.updated")]
COMMA = [("eventTypes", "jobs.created,jobs.updated")]
BOTH = ["jobs.created", "jobs.updated"]


@pytest.mark.parametrize(
    ("style", "sent", "read"),
    [
        ("last", REPEATED, ["jobs.updated"]),
        ("all", REPEATED, BOTH),
        ("brackets", BRACKETS, BOTH),
        ("comma", COMMA, BOTH),
    ],
)
def test_several_event_types_are_read_in_the_style(serve, style, sent, read):
    call = serve(event_types_style=style)

    assert register(call, sent).json()["eventTypes"] == read


@pytest.mark.parametrize(
    ("style", "sent"),
    [
        ("last", BRACKETS),
        ("last", COMMA),
        ("all", BRACKETS),
        ("all", COMMA),
        ("brackets", REPEATED),
        ("comma", BRACKETS),
        ("last", []),
    ],
)
def test_event_types_that_the_style_cannot_read_are_a_conflict(serve, style, sent):
    call = serve(event_types_style=style)

    assert register(call, sent).status_code == 409
    assert call.service.webhooks == []


@pytest.mark.parametrize(
    ("params", "event_type", "named"),
    [
        ({"object": "forms"}, "forms.completed", "object"),
        ({"object": ""}, "jobs.created", "object"),
        ({"object": "assets"}, "jobs.created", "jobs.created"),
        ({}, "jobs", "'jobs'"),
        ({}, "jobsXcreated", "jobsXcreated"),
        ({"targetURL": ""}, "jobs.created", "targetURL"),
    ],
)
def test_what_cannot_be_registered_is_a_conflict_that_names_it(call, params, event_type, named):
    response = register(call, [("eventTypes", event_type)], **params)

    assert response.status_code == 409
    assert named in response.json()["detail"]
    assert call.service.webhooks == []


@pytest.mark.parametrize(
    "object_", ["properties", "assets", "contracts", "opportunities", "jobs", "appointments"]
)
def test_each_of_the_six_objects_can_be_registered(call, object_):
    event_types = [("eventTypes", f"{object_}.created")]

    assert register(call, event_types, object=object_).json()["object"] == object_
