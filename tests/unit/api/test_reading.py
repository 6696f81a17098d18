from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from fsm_provider.api.errors import FsmResponseError
from fsm_provider.api.models import AssetDynamicField, Form, Job
from fsm_provider.api.reading import parse_json, read_page, read_record

SECRET = "canary-value"
LONDON = ZoneInfo("Europe/London")


def read_forms(page: Any, *, timezone: Any = UTC) -> Any:
    body = page if isinstance(page, bytes) else json.dumps(page).encode()
    return read_page(body, Form, number=3, timezone=timezone)


def present(value: Any) -> Any:
    """A record's values without its absent fields."""
    if isinstance(value, dict):
        return {name: present(one) for name, one in value.items() if one is not None}
    return [present(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("model", "record"), [(Form, {"id": 1, "formName": "a"}), (AssetDynamicField, {"dynamicFieldID": 1})]
)
@pytest.mark.parametrize(
    "pagination",
    [
        {"hasMore": True, "nextCursor": 2, "prevCursor": 0},
        {"hasMore": "true", "nextCursor": "2", "prevCursor": "null"},
        {"hasMore": 1, "nextCursor": "b2Zmc2V0", "prevCursor": None},
    ],
)
@pytest.mark.parametrize(
    "meta",
    [
        {"serverTime": "2026-01-31T08:00:00.000Z", "totalRecords": "1"},
        {"serverTime": "2026-01-31 08:00:00"},
        {"serverTime": "2026-01-31 08:00:00", "totalRecords": 1},
    ],
)
def test_a_page_is_read_in_every_dialect(model, record, pagination, meta, caplog):
    body = json.dumps({"meta": meta, "pagination": pagination, "data": [record]}).encode()

    page = read_page(body, model, number=1, timezone=UTC)

    assert [type(one) for one in page.data] == [model]
    assert present(page.data[0].as_json()) == record
    assert page.pagination.as_json() == pagination
    assert page.meta.server_time == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert page.meta.total_records == ("1" if "totalRecords" in meta else None)
    assert not caplog.records


@pytest.mark.parametrize("meta", [None, "text", {"serverTime": "2026-01-31 08:00:00"}])
def test_without_a_model_the_records_stay_as_parsed(meta):
    records = [{"any": [1, {"form": None}]}, "text", 5]

    page = read_page(json.dumps({"data": records, "meta": meta}).encode(), None, number=1, timezone=UTC)

    assert page.data == records


UNEXPECTED = [
    ({"jobType": "x"}, ["Job.jobType"]),
    ({"description": True}, ["Job.description"]),
    ({"hasSLA": "perhaps"}, ["Job.hasSLA"]),
    ({"createdOnDateTime": "yesterday"}, ["Job.createdOnDateTime"]),
    ({"customerContact": {"contactID": "x", "fullName": "a", "new": 1}}, ["Job.customerContact.contactID"]),
    ({"customerContact": "a"}, ["Job.customerContact"]),
    ({"skills": [{"id": 1}, {"id": "x", "skill": "s"}]}, ["Job.skills.id"]),
    ({"skills": [{"id": [1], "skill": {"a": 1}}]}, ["Job.skills.id", "Job.skills.skill"]),
    ({"skills": [{"id": 1}, "gas"]}, ["Job.skills"]),
    ({"skills": ["gas", {"id": "x"}]}, ["Job.skills"]),
    ({"skills": "gas"}, ["Job.skills"]),
    ({"tags": ["a", {}]}, ["Job.tags"]),
    ({"tags": {"a": 1}}, ["Job.tags"]),
    (
        {"jobType": "x", "closed": {"closedByID": "y"}, "skills": [{"id": "z"}], "tags": 5},
        ["Job.jobType", "Job.closed.closedByID", "Job.skills.id", "Job.tags"],
    ),
]


@pytest.mark.parametrize(("fields", "named"), UNEXPECTED)
def test_a_value_of_an_unexpected_type_stays_as_it_came_and_is_named(fields, named, caplog):
    raw = {"id": 1, "stageName": "New", **fields}

    job = read_record(copy.deepcopy(raw), Job, timezone=UTC)

    assert present(job.as_json()) == raw
    assert sorted(record.args[:2] for record in caplog.records) == sorted(
        tuple(name.split(".", 1)) for name in named
    )
    assert all(name in caplog.text for name in named)


def test_a_kept_value_is_at_its_attribute():
    raw = {"id": 1, "jobType": "x", "skills": [{"id": 1}, {"id": "y"}], "siteContact": {"siteContactID": "z"}}

    job = read_record(raw, Job, timezone=UTC)

    assert (job.job_type, job.skills[1].id, job.site_contact.site_contact_id) == ("x", "y", "z")


def test_a_field_is_warned_of_once_per_process(caplog):
    for value in ("x", "y"):
        read_record({"id": 1, "jobType": value}, Job, timezone=UTC)
        read_forms({"data": [{"id": 1, "jobDetails": {"jobID": value}}] * 2})
    read_record({"id": 1, "stageID": "z"}, Job, timezone=UTC)

    assert [record.args[:2] for record in caplog.records] == [
        ("Job", "jobType"),
        ("Form", "jobDetails.jobID"),
        ("Job", "stageID"),
    ]


def test_a_warning_quotes_no_value(caplog):
    read_record({"id": 1, "jobType": SECRET, "completed": {"completedByID": SECRET}}, Job, timezone=UTC)

    assert len(caplog.records) == 2
    assert SECRET not in caplog.text


def test_one_unexpected_value_leaves_the_other_records_of_its_page_alone():
    page = read_forms({"data": [{"id": 1}, {"id": 2, "jobDetails": 5}, {"id": 3, "formName": "c"}]})

    assert [present(form.as_json()) for form in page.data] == [
        {"id": 1},
        {"id": 2, "jobDetails": 5},
        {"id": 3, "formName": "c"},
    ]


@pytest.mark.parametrize(
    ("text", "hour"),
    [("2026-07-01 12:00:00", 11), ("2026-01-01T12:00:00.000", 12), ("2026-07-01T12:00:00Z", 12)],
)
def test_a_time_without_a_zone_is_in_the_given_one(text, hour, caplog):
    page = read_forms(
        {"meta": {"serverTime": text}, "data": [{"id": 1, "createdOnDateTime": text}]}, timezone=LONDON
    )
    job = read_record({"id": 1, "completed": {"completedOnDateTime": text}}, Job, timezone=LONDON)

    moments = [page.meta.server_time, page.data[0].created_on_date_time, job.completed.completed_on_date_time]

    assert [moment.astimezone(UTC).hour for moment in moments] == [hour] * 3
    assert not caplog.records


def test_the_servers_own_time_is_in_the_given_zone_even_where_all_else_is_as_specified():
    page = read_forms({"meta": {"serverTime": "2026-07-01 12:00:00"}, "data": [{"id": 1}]}, timezone=LONDON)

    assert page.meta.server_time == datetime(2026, 7, 1, 11, tzinfo=UTC)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"formName": SECRET}, "page 3, index 1 has no usable 'id'"),
        ({"id": None, "formName": SECRET}, "page 3, index 1 has no usable 'id'"),
        ({"id": SECRET}, "page 3, index 1 has no usable 'id'"),
        ({"id": {"x": SECRET}, "propertyID": []}, "page 3, index 1 has no usable 'id'"),
        (SECRET, "page 3, index 1 is not an object"),
        ([SECRET], "page 3, index 1 is not an object"),
        (None, "page 3, index 1 is not an object"),
    ],
)
def test_a_record_that_cannot_be_identified_is_an_error_that_says_where(bad, said):
    with pytest.raises(FsmResponseError, match=f"^{said}") as raised:
        read_forms({"data": [{"id": 1}, bad, {"id": 3}]})

    assert SECRET not in str(raised.value)


def test_the_identifier_of_an_asset_dynamic_field_is_named():
    with pytest.raises(FsmResponseError, match=r"^page 1, index 0 has no usable 'dynamicFieldID'"):
        read_page(b'{"data": [{"id": 1}]}', AssetDynamicField, number=1, timezone=UTC)


@pytest.mark.parametrize("raw", [{}, {"id": SECRET}, [SECRET], SECRET, None])
def test_a_body_without_an_identifier_is_an_error(raw):
    with pytest.raises(FsmResponseError, match=r"^the body (has no usable 'id'|is not an object)") as raised:
        read_record(raw, Job, timezone=UTC)

    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("read", [read_forms, parse_json])
@pytest.mark.parametrize(
    "body", [b"", f"<html>{SECRET}".encode(), f'{{"data": ["{SECRET}'.encode(), b"\xff\xfe", b"{} {}"]
)
def test_a_body_that_is_not_json_is_an_error_that_gives_its_length(read, body):
    with pytest.raises(FsmResponseError, match=rf"\({len(body)} bytes\) is not JSON") as raised:
        read(body)

    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "body", [[], SECRET, None, {}, {"data": None}, {"data": {"id": SECRET}}, {"data": SECRET}, {"Data": []}]
)
def test_a_body_that_is_no_listing_is_an_error_that_names_its_page(body):
    with pytest.raises(FsmResponseError, match=r"^page 3 is no listing") as raised:
        read_forms(body)

    assert SECRET not in str(raised.value)


def test_an_unexpected_envelope_loses_no_record(caplog):
    page = read_forms({"meta": "m", "pagination": [], "data": [{"id": 1}], "new": 1})

    assert present(page.as_json()) == {"meta": "m", "pagination": [], "data": [{"id": 1}], "new": 1}
    assert len(caplog.records) == 2


def test_an_unknown_field_named_like_an_attribute_is_kept_as_one():
    body = b'{"pagination": {"hasMore": false}, "data": [{"id": 1, "form_name": [], "job_type": 3}]}'

    (form,) = read_page(body, Form, number=1, timezone=UTC).data

    assert form.form_name is None
    assert form.as_json()["form_name"] == []
    assert form.as_json()["job_type"] == 3
