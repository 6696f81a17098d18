"""Single values: what each parser reads, and what it refuses by name, without quoting a record."""

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
RECORD = {"id": 12, "formPDFURL": "https://files.example.com/12.pdf?signature=canary"}
RENDERED = [
    *(str(RECORD), json.dumps(RECORD), str([RECORD]), json.dumps([12])),
    *("[]", "{}", "('a', 12)", "['a']"),
]
NUMBERS = ("2024", "5", "1.50", "-0", "1e400", "true", "9" * 5000)
READ = {
    parse_identifier: {
        **{text: text for text in ("7" * 255, "Straße", "None-1", "12.5", "-1", "...")},
        **{0: 0, " a/b\n": "a/b"},
    },
    parse_text: {
        f" {text} ": text for text in ("Gas Safety", "O'Hara (old)", "[Draft]", '15" pipe', "a{b}")
    },
    parse_count: {1: 1, "1": 1, "20": 20},
    parse_names: {
        **{text: (text,) for text in ("Gas", "[Draft]", "Infinity", "[" * 100_000, *NUMBERS)},
        **{("Gas",): ("Gas",), '["Gas", "Oil"]': ("Gas", "Oil"), '"Gas"': ("Gas",)},
        ' ["Gas \\u2013 2"]\n': ("Gas \u2013 2",),
    },
}
NO_TEXT = [None, True, 1.5, [1], "", " \n", "None", " None ", "null", RECORD, *RENDERED]
REFUSED = {
    parse_identifier: [
        *[
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
        ],
        *["nan", "NaT", "undefined", "5.0"],  # of pandas and JavaScript
        *[".", ".."],
    ],
    parse_text: NO_TEXT,
    parse_time: [None, 5, True, "", "yesterday", "2026-13-01", [EIGHT], *RENDERED],
    parse_count: [0, "0", -1, True, 1.5, "1.5", "", " 1", "one", "٣", None, *RENDERED],
    parse_names: [
        *[
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
        ],
        *[["None"], ['["Gas"]'], "['Gas', 'Oil']", "[None]", *RENDERED],
    ],
    parse_json: ["[" * 100_000, "", "yesterday", str(RECORD)],
}


@pytest.mark.parametrize(
    ("parse", "value", "read"),
    [(parse, value, read) for parse, values in READ.items() for value, read in values.items()],
)
def test_what_is_read(parse, value, read):
    assert parse("option", value) == read


@pytest.mark.parametrize(
    ("parse", "value"), [(parse, value) for parse, values in REFUSED.items() for value in values]
)
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
    read = parse_time("since", value)

    assert read == EIGHT
    assert read.utcoffset() is not None


@pytest.mark.parametrize("path", ["/", "/forms", "/properties/7/jobs"])
def test_a_path_begins_with_one_slash(path):
    assert parse_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        *[
            "",
            "forms",
            "//evil.example.com",
            "https://evil.example.com/",
            "/forms?a=b",
            "/forms#a",
            None,
            5,
        ],
        *[
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
        ],
    ],
)
def test_a_path_that_leads_elsewhere_or_holds_a_query_is_refused(path):
    with pytest.raises(FsmInputError, match=r"^path: "):
        parse_path(path)
