from __future__ import annotations

import pytest

from tests.unit.testing.caller import register

REPEATED = [("eventTypes", "jobs.created"), ("eventTypes", "jobs.updated")]
BRACKETS = [("eventTypes[]", "jobs.created"), ("eventTypes[]", "jobs.updated")]
COMMA = [("eventTypes", "jobs.created,jobs.updated")]
BOTH = ["jobs.created", "jobs.updated"]


@pytest.mark.parametrize(
    ("style", "sent", "expected"),
    [
        ("last", REPEATED, ["jobs.updated"]),
        ("all", REPEATED, BOTH),
        ("brackets", BRACKETS, BOTH),
        ("comma", COMMA, BOTH),
    ],
)
def test_several_event_types_are_read_in_the_style(serve, style, sent, expected):
    call = serve(event_types_style=style)

    response = register(call, sent)

    assert response.status_code == 200
    assert response.json()["eventTypes"] == expected
    assert len(call.service.webhooks) == 1


@pytest.mark.parametrize(
    ("style", "sent"),
    [
        ("last", BRACKETS),
        ("last", COMMA),
        ("last", []),
        ("all", BRACKETS),
        ("all", COMMA),
        ("brackets", REPEATED),
        ("comma", BRACKETS),
    ],
)
def test_event_types_in_another_style_are_a_conflict(serve, style, sent):
    call = serve(event_types_style=style)

    response = register(call, sent)

    assert response.status_code == 409
    assert response.json().get("eventTypes") is None
    assert call.service.webhooks == []


@pytest.mark.parametrize(
    ("params", "event_type", "named"),
    [
        ({"object": "forms"}, "forms.completed", "object"),
        ({"object": "assets"}, "jobs.created", "jobs.created"),
        ({}, "jobs", "'jobs'"),
        ({"targetURL": ""}, "jobs.created", "targetURL"),
    ],
)
def test_what_cannot_be_registered_is_a_conflict_that_names_it(call, params, event_type, named):
    response = register(call, [("eventTypes", event_type)], **params)

    assert response.status_code == 409
    assert named in response.json()["detail"]
    assert call.service.webhooks == []
