"""Single values: what each parser reads, and what it refuses by name, without quoting a record."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import (
    checked_path,
    parse_count,
    parse_identifier,
    parse_json,
    parse_names,
    parse_text,
    parse_time,
)

EIGHT = datetime(2026, 1, 31, 8, tzinfo=UTC)
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
"""Texts that a template makes of a record or a list."""


@pytest.mark.parametrize(
    ("parse", "value", "expected"),
    [
        (parse_identifier, "7" * 255, "7" * 255),
        (parse_identifier, "Straße", "Straße"),
        (parse_identifier, "None-1", "None-1"),
        (parse_identifier, "5.0", "5"),
        (parse_identifier, 5.0, "5"),
        (parse_identifier, Decimal("5.00"), "5"),
        (parse_identifier, "12e5", "12e5"),
        (parse_identifier, "-1", "-1"),
        (parse_identifier, "...", "..."),
        (parse_identifier, 0, 0),
        (parse_identifier, " a/b\n", "a/b"),
        (parse_text, " Gas Safety ", "Gas Safety"),
        (parse_text, " O'Hara (old) ", "O'Hara (old)"),
        (parse_text, " [Draft] ", "[Draft]"),
        (parse_text, ' 15" pipe ', '15" pipe'),
        (parse_text, " a{b} ", "a{b}"),
        (parse_count, 1, 1),
        (parse_count, "1", 1),
        (parse_count, "20", 20),
        (parse_names, "Gas", ("Gas",)),
        (parse_names, "[Draft]", ("[Draft]",)),
        (parse_names, "Infinity", ("Infinity",)),
        (parse_names, "[" * 100_000, ("[" * 100_000,)),
        (parse_names, "2024", ("2024",)),
        (parse_names, "5", ("5",)),
        (parse_names, "1.50", ("1.50",)),
        (parse_names, "-0", ("-0",)),
        (parse_names, "1e400", ("1e400",)),
        (parse_names, "true", ("true",)),
        (parse_names, "9" * 5000, ("9" * 5000,)),
        (parse_names, ("Gas",), ("Gas",)),
        (parse_names, '["Gas", "Oil"]', ("Gas", "Oil")),
        (parse_names, '"Gas"', ("Gas",)),
        (parse_names, ' ["Gas \\u2013 2"]\n', ("Gas \u2013 2",)),
    ],
)
def test_what_is_read(parse, value, expected):
    assert parse("option", value) == expected


NO_TEXT = [None, True, 1.5, [1], "", " \n", "None", " None ", "null", RECORD, *RENDERED]
REFUSED = {
    parse_identifier: [
        *NO_TEXT,
        b"7",
        "1 2",
        "a\tb",
        "a'b",
        'a"b',
        "<Form 12>",
        "12}",
        "Form(id=12)",
        "7\x00",
        "7" * 256,
        # Of pandas and JavaScript.
        "nan",
        "NaT",
        "undefined",
        "12.5",
        12.5,
        float("inf"),
        2.0**53,
        ".",
        "..",
    ],
    parse_text: NO_TEXT,
    parse_time: [
        None,
        5,
        True,
        "",
        "yesterday",
        "2026-13-01",
        [EIGHT],
        *RENDERED,
    ],
    parse_count: [
        0,
        "0",
        -1,
        True,
        1.5,
        "1.5",
        "",
        " 1",
        "one",
        "٣",
        None,
        *RENDERED,
    ],
    parse_names: [
        "",
        " ",
        [],
        ["Gas", ""],
        [1],
        None,
        5,
        {"Gas": 1},
        "None",
        "null",
        "[]",
        "[1]",
        '["Gas", null]',
        ["None"],
        ['["Gas"]'],
        "['Gas', 'Oil']",
        "[None]",
        *RENDERED,
    ],
    parse_json: [
        "[" * 100_000,
        "",
        "yesterday",
        str(RECORD),
    ],
}


def refused_values():
    """Yield each parser with a value that it refuses."""
    for parse, values in REFUSED.items():
        for value in values:
            yield parse, value


@pytest.mark.parametrize(("parse", "value"), list(refused_values()))
def test_what_is_refused_by_name_and_not_quoted(parse, value):
    with pytest.raises(FsmInputError, match=r"^option: ") as refused:
        parse("option", value)
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
    time = parse_time("since", value)

    assert time == EIGHT
    assert time.utcoffset() is not None


@pytest.mark.parametrize("path", ["/", "/forms", "/properties/7/jobs", "/jobs/NONESUCH-1"])
def test_a_path_begins_with_one_slash(path):
    assert checked_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "forms",
        "//evil.example.com",
        "https://evil.example.com/",
        "/forms?a=b",
        "/forms#a",
        None,
        5,
        "/../admin",
        "/a/..",
        "/./a",
        "/%2e%2e/admin",
        "/a b",
        "/a\n",
        "/a%0ab",
        "/a\\b",
        "/100%",
        "/a%2",
        "/a//b",
        "/a/",
        "/a/None",
        "/a/%3CNA%3E/b",
    ],
)
def test_a_path_that_leads_elsewhere_or_holds_a_query_is_refused(path):
    with pytest.raises(FsmInputError, match=r"^path: "):
        checked_path(path)
