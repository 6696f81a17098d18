from __future__ import annotations

import pytest

from tests.unit.testing.conftest import register

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
        *(("last", sent, None) for sent in (BRACKETS, COMMA, [])),
        *(("all", sent, None) for sent in (BRACKETS, COMMA)),
        ("brackets", REPEATED, None),
        ("comma", BRACKETS, None),
    ],
)
def test_several_event_types_are_read_in_the_style_or_are_a_conflict(serve, style, sent, read):
    call = serve(event_types_style=style)

    response = register(call, sent)

    assert response.status_code == (200 if read else 409)
    assert response.json().get("eventTypes") == read
    assert len(call.service.webhooks) == (1 if read else 0)


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
