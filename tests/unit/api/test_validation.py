from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import (
    parse_count,
    parse_identifier,
    parse_json,
    parse_names,
    parse_path,
    parse_text,
    parse_time,
)

EIGHT = datetime(2026, 1, 31, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "read"),
    [(0, 0), (" a/b\n", "a/b"), *((text, text) for text in ("7" * 255, "Straße", "None-1", "12.5", "-1"))],
)
def test_an_identifier_is_an_integer_or_text(value, read):
    assert parse_identifier("job_id", value) == read


RECORD = {"id": 12, "formPDFURL": "https://files.example.com/12.pdf?signature=canary"}
RENDERED = [
    str(RECORD),
    json.dumps(RECORD),
    str([RECORD]),
    json.dumps([12]),
    "[]",
    "{}",
    "('a', 12)",
    "['a']",
]


@pytest.mark.parametrize(
    "value",
    [
        *[None, True, 1.5, [1], b"7", "", " \n", "None", " None ", "null", RECORD, *RENDERED],
        *["1 2", "a\tb", "a'b", 'a"b', "<Form 12>", "12}", "Form(id=12)", "7\x00", "7" * 256],
        *["nan", "NaT", "undefined", "5.0"],  # of pandas and JavaScript
    ],
)
def test_what_is_no_identifier_is_refused_by_name_and_not_quoted(value):
    with pytest.raises(FsmInputError, match=r"^job_id: ") as refused:
        parse_identifier("job_id", value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("value", ["Gas Safety", "O'Hara (old)", "[Draft]", '15" pipe', "a{b}"])
def test_text_may_hold_what_identifiers_may_not(value):
    assert parse_text("form_category", f" {value} ") == value


@pytest.mark.parametrize("value", [None, True, 1.5, [1], "", " ", "None", "null", RECORD, *RENDERED])
def test_a_record_or_nothing_is_no_text(value):
    with pytest.raises(FsmInputError, match=r"^form_category: ") as refused:
        parse_text("form_category", value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        EIGHT,
        EIGHT.replace(tzinfo=None),
        "2026-01-31 08:00:00",
        "2026-01-31T10:00:00.000+02:00",
        datetime(2026, 1, 31, 10, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_a_time_is_aware_and_one_without_a_zone_is_utc(value):
    read = parse_time("since", value)

    assert read == EIGHT
    assert read.utcoffset() is not None


@pytest.mark.parametrize("value", [None, 5, True, "", "yesterday", "2026-13-01", [EIGHT]])
def test_what_is_no_time_is_refused_by_name(value):
    with pytest.raises(FsmInputError, match=r"^since: "):
        parse_time("since", value)


@pytest.mark.parametrize(("value", "read"), [(1, 1), ("1", 1), ("20", 20)])
def test_a_count_may_be_given_as_text(value, read):
    assert parse_count("minimum_forms", value) == read


@pytest.mark.parametrize("value", [0, "0", -1, True, 1.5, "1.5", "", " 1", "one", "٣", None])
def test_what_is_no_count_is_refused_by_name(value):
    with pytest.raises(FsmInputError, match=r"^minimum_forms: "):
        parse_count("minimum_forms", value)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("Gas", ("Gas",)),
        (["Gas", "Oil"], ("Gas", "Oil")),
        (("Gas",), ("Gas",)),
        ([], ()),
        ('["Gas", "Oil"]', ("Gas", "Oil")),
        (' ["Gas \\u2013 2"]\n', ("Gas \u2013 2",)),
        ('"Gas"', ("Gas",)),
        ("[Draft]", ("[Draft]",)),
        ("Infinity", ("Infinity",)),
        ("[" * 100_000, ("[" * 100_000,)),
        *[(text, (text,)) for text in ("2024", "5", "1.50", "-0", "1e400", "true", "9" * 5000)],
    ],
)
def test_one_name_is_as_good_as_several_or_a_json_list_of_them(value, read):
    assert parse_names("form_names", value) == read


@pytest.mark.parametrize(
    "value",
    [
        *["", " ", ["Gas", ""], [1], None, 5, {"Gas": 1}, "None", "null", "[]", "[1]", '["Gas", null]'],
        *[["None"], ['["Gas"]'], "['Gas', 'Oil']", "[None]", *RENDERED],
    ],
)
def test_what_holds_no_name_is_refused(value):
    with pytest.raises(FsmInputError, match=r"^form_names: ") as refused:
        parse_names("form_names", value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(("read", "name"), [(parse_count, "minimum_forms"), (parse_time, "since")])
@pytest.mark.parametrize("value", RENDERED)
def test_a_record_in_place_of_a_number_or_time_is_refused_and_not_quoted(read, name, value):
    with pytest.raises(FsmInputError, match=rf"^{name}: ") as refused:
        read(name, value)
    assert "canary" not in str(refused.value)


def test_json_that_is_nested_too_deeply_is_refused_by_name():
    with pytest.raises(FsmInputError, match=r"^jobs: is text, but no JSON"):
        parse_json("jobs", "[" * 100_000)


@pytest.mark.parametrize("path", ["/", "/forms", "/properties/7/jobs"])
def test_a_path_begins_with_one_slash(path):
    assert parse_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        *["", "forms", "//evil.example.com", "https://evil.example.com/", "/forms?a=b", "/forms#a", None, 5],
        *["/../admin", "/a/..", "/./a", "/%2e%2e/admin", "/a b", "/a\n", "/a%0ab", "/a\\b", "/100%", "/a%2"],
    ],
)
def test_a_path_that_leads_elsewhere_or_holds_a_query_is_refused(path):
    with pytest.raises(FsmInputError, match=r"^path: "):
        parse_path(path)
