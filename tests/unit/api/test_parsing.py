from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from fsm_provider.api.errors import FsmResponseError
from fsm_provider.api.models import AssetDynamicField, Form, Job
from fsm_provider.api.parsing import parse_json, parse_page, parse_record

SECRET = "canary-value"
LONDON = ZoneInfo("Europe/London")


def parse_forms(page: Any, *, timezone: Any = UTC) -> Any:
    if not isinstance(page, bytes):
        page = json.dumps(page).encode()
    return parse_page(page, Form, number=3, timezone=timezone)


def without_nones(value: Any) -> Any:
    """Return a record's values without its absent fields."""
    if isinstance(value, list):
        return list(map(without_nones, value))
    if not isinstance(value, dict):
        return value
    present = {}
    for name, part in value.items():
        if part is not None:
            present[name] = without_nones(part)
    return present


@pytest.mark.parametrize(
    ("model", "record"),
    [
        (Form, {"id": 1, "formName": "a"}),
        (AssetDynamicField, {"dynamicFieldID": 1}),
    ],
)
@pytest.mark.parametrize(
    "pagination",
    [
        {"hasMore": True, "nextCursor": 2, "prevCursor": 0},
        {"hasMore": "true", "nextCursor": "2", "prevCursor": "null"},
        {"hasMore": 1, "nextCursor": "b2Zmc2V0", "prevCursor": None},
        {"hasMore": {"bool": 1}, "nextCursor": "2", "prevCursor": None},
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

    page = parse_page(body, model, number=1, timezone=UTC)

    [read] = page.data
    assert type(read) is model
    assert without_nones(read.as_json()) == record
    assert page.pagination.as_json() == pagination
    assert page.meta.server_time == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert page.meta.total_records == ("1" if "totalRecords" in meta else None)
    assert not caplog.records


@pytest.mark.parametrize("meta", [None, "text", {"serverTime": "2026-01-31 08:00:00"}])
def test_without_a_model_the_records_stay_as_parsed(meta):
    records = [{"any": [1, {"form": None}]}, "text", 5]
    body = json.dumps({"data": records, "meta": meta}).encode()

    page = parse_page(body, None, number=1, timezone=UTC)

    assert page.data == records


UNEXPECTED = [
    ({"jobType": "x"}, ["jobType"]),
    ({"hasSLA": "perhaps"}, ["hasSLA"]),
    ({"hasSLA": 1, "jobType": True}, ["hasSLA", "jobType"]),
    ({"createdOnDateTime": 5}, ["createdOnDateTime"]),
    ({"createdOnDateTime": "yesterday"}, ["createdOnDateTime"]),
    (
        {"customerContact": {"contactID": "x", "fullName": "a", "new": 1}},
        ["customerContact.contactID"],
    ),
    ({"customerContact": "a"}, ["customerContact"]),
    ({"skills": [{"id": [1], "skill": {"a": 1}}]}, ["skills.id", "skills.skill"]),
    ({"skills": [{"id": 1}, "gas"]}, ["skills"]),
    ({"skills": ["gas", {"id": "x"}]}, ["skills"]),
    ({"tags": ["a", {}]}, ["tags"]),
    (
        {"jobType": "x", "closed": {"closedByID": "y"}, "skills": [{"id": "z"}], "tags": 5},
        ["closed.closedByID", "jobType", "skills.id", "tags"],
    ),
]


def warned_fields(caplog) -> list[tuple[str, str]]:
    """Return the model and the field of each warning."""
    return [record.args[:2] for record in caplog.records]


@pytest.mark.parametrize(("fields", "named"), UNEXPECTED)
def test_a_value_of_an_unexpected_type_stays_as_it_came_and_is_named(fields, named, caplog):
    raw = {"id": 1, "stageName": "New", **fields}

    job = parse_record(copy.deepcopy(raw), Job, timezone=UTC)

    assert without_nones(job.as_json()) == raw
    assert sorted(warned_fields(caplog)) == [("Job", field) for field in named]
    for field in named:
        assert f"Job.{field}" in caplog.text
    assert "yesterday" not in caplog.text
    assert "perhaps" not in caplog.text


def test_a_field_is_warned_of_once_per_process(caplog):
    for value in ("x", "y"):
        parse_record({"id": 1, "jobType": value}, Job, timezone=UTC)
        form = {"id": 1, "jobDetails": {"jobID": value}}
        parse_forms({"data": [form, form]})
    parse_record({"id": 1, "stageID": "z"}, Job, timezone=UTC)

    assert warned_fields(caplog) == [
        ("Job", "jobType"),
        ("Form", "jobDetails.jobID"),
        ("Job", "stageID"),
    ]


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2026-07-01 12:00:00", 11),
        ("2026-01-01T12:00:00.000", 12),
        ("2026-07-01T12:00:00Z", 12),
    ],
)
def test_a_time_without_a_zone_is_in_the_given_one(text, hour, caplog):
    raw_page = {"meta": {"serverTime": text}, "data": [{"id": 1, "createdOnDateTime": text}]}
    raw_job = {"id": 1, "completed": {"completedOnDateTime": text}}

    page = parse_forms(raw_page, timezone=LONDON)
    job = parse_record(raw_job, Job, timezone=LONDON)

    assert page.meta.server_time.astimezone(UTC).hour == hour
    assert page.data[0].created_on_date_time.astimezone(UTC).hour == hour
    assert job.completed.completed_on_date_time.astimezone(UTC).hour == hour
    assert not caplog.records


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"formName": SECRET}, "page 3, index 1 has no usable 'id'"),
        ({"id": {"x": SECRET}, "propertyID": []}, "page 3, index 1 has no usable 'id'"),
        (SECRET, "page 3, index 1 is not an object"),
        (None, "page 3, index 1 is not an object"),
    ],
)
def test_a_record_that_cannot_be_identified_is_an_error_that_says_where(bad, said):
    with pytest.raises(FsmResponseError, match=f"^{said}") as raised:
        parse_forms({"data": [{"id": 1}, bad, {"id": 3}]})

    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("raw", [{}, {"id": [SECRET]}, [SECRET], SECRET, None])
def test_a_body_without_an_identifier_is_an_error(raw):
    said = r"^the body (has no usable 'id'|is not an object)"

    with pytest.raises(FsmResponseError, match=said) as raised:
        parse_record(raw, Job, timezone=UTC)

    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("read", [parse_forms, parse_json])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        f"<html>{SECRET}".encode(),
        f'{{"data": ["{SECRET}'.encode(),
        b"\xff\xfe",
        b"{} {}",
    ],
)
def test_a_body_that_is_not_json_is_an_error_that_gives_its_length(read, body):
    with pytest.raises(FsmResponseError, match=rf"\({len(body)} bytes\) is not JSON") as raised:
        read(body)

    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "body", [[], None, {}, {"data": None}, {"data": {"id": SECRET}}, {"Data": []}]
)
def test_a_body_that_is_no_listing_is_an_error_that_names_its_page(body):
    with pytest.raises(FsmResponseError, match=r"^page 3 is no listing") as raised:
        parse_forms(body)

    assert SECRET not in str(raised.value)


def test_an_unexpected_envelope_loses_no_record(caplog):
    raw = {"meta": "m", "pagination": [], "data": [{"id": 1}], "new": 1}

    page = parse_forms(raw)

    assert without_nones(page.as_json()) == raw
    assert len(caplog.records) == 2


def test_an_unknown_field_named_like_an_attribute_is_kept_as_one():
    body = (
        b'{"pagination": {"hasMore": false}, "data": [{"id": 1, "form_name": [], "job_type": 3}]}'
    )

    [form] = parse_page(body, Form, number=1, timezone=UTC).data

    assert form.form_name is None
    assert form.as_json()["form_name"] == []
    assert form.as_json()["job_type"] == 3


HALF = "\ud83d"
FUNNY = {
    "half an emoji": (rb'"a\ud83d b"', "a\ufffd b"),
    "half an emoji before another": (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
    "a written backslash": (rb'"\\ud83d\ud83d"', "\\ud83d\ufffd"),
    "a raw line break": (b'"a\nb\tc"', "a\nb\tc"),
    "a raw null": (b'"a\0b"', "a\ufffdb"),
    "Latin-1": (b'"caf\xe9"', "caf\ufffd"),
    "half a character of UTF-8": (b'"\xf0\x9f\x98"', "\ufffd"),
    "a surrogate in UTF-8": (b'"\xed\xa0\xbd"', "\ufffd\ufffd\ufffd"),
}
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(("written", "read"), FUNNY.values(), ids=FUNNY)
@pytest.mark.parametrize("before", [b"", BOM], ids=["", "BOM"])
def test_what_is_no_text_is_replaced_and_loses_no_record(written, read, before, caplog):
    body = before + b'{"data": [{"id": 1}, {"id": 2, "formName": ' + written + b'}, {"id": 3}]}'

    page = parse_page(body, Form, number=1, timezone=UTC)
    untyped = parse_page(body, None, number=1, timezone=UTC)

    assert [form.id for form in page.data] == [1, 2, 3]
    assert page.data[1].form_name == read
    assert untyped.data[1]["formName"] == read
    json.dumps(page.as_json(), ensure_ascii=False).encode()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "replaced" in caplog.text


@pytest.mark.parametrize(
    "record",
    [
        rb'{"id": 1, "new\ud83d": 1}',
        rb'{"id": 1, "new": [{"a\ude00": "\ud83d"}]}',
        rb'{"id": 1, "jobDetails": {"jobID": "\ud83d"}, "formName": 5}',
    ],
)
def test_what_is_no_text_is_replaced_everywhere(record):
    [form] = parse_forms(b'{"data": [' + record + b"]}").data

    assert form.id == 1
    text = json.dumps(form.as_json(), ensure_ascii=False)
    assert "\ufffd" in text.encode().decode()


@pytest.mark.parametrize(
    "body",
    [
        rb'{"id": "\ud83d',
        b'{"id": 1\n',
        b'{"a": "\n" "b"}',
        BOM,
        b'"\xff" "\xff"',
        b"[" * 5_000,
    ],
)
def test_what_is_funny_and_no_json_is_no_json(body, caplog):
    with pytest.raises(FsmResponseError, match=rf"\({len(body)} bytes\) is not JSON"):
        parse_json(body)
    assert not caplog.records


NO_NUMBERS = b'{"a": NaN, "b": [Infinity, -Infinity, 1e400, 1.5, 10]}'
NULLS = {"a": None, "b": [None, None, None, 1.5, 10]}


def test_numbers_that_json_does_not_have_are_nulls(caplog):
    value = parse_json(NO_NUMBERS)

    assert value == NULLS
    assert len(caplog.records) == 1


def test_numbers_that_json_does_not_have_are_nulls_in_a_page(caplog):
    body = b'{"data": [' + NO_NUMBERS + b"]}"

    page = parse_page(body, None, number=1, timezone=UTC)

    assert page.data == [NULLS]
    assert len(caplog.records) == 1
