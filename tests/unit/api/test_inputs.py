from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.inputs import read_count, read_identifier, read_names, read_path, read_time

EIGHT = datetime(2026, 1, 31, 8, tzinfo=UTC)


@pytest.mark.parametrize(("value", "read"), [(7, 7), (0, 0), ("7", "7"), (" a/b\n", "a/b")])
def test_an_identifier_is_an_integer_or_text(value, read):
    assert read_identifier("job_id", value) == read


@pytest.mark.parametrize("value", [None, True, 1.5, [1], b"7", "", " \n", "None", " None "])
def test_what_is_no_identifier_is_refused_by_name(value):
    with pytest.raises(FsmInputError, match=r"^job_id: "):
        read_identifier("job_id", value)


@pytest.mark.parametrize(
    "value",
    [
        EIGHT,
        EIGHT.replace(tzinfo=None),
        "2026-01-31T08:00:00Z",
        "2026-01-31 08:00:00",
        "2026-01-31T10:00:00.000+02:00",
        datetime(2026, 1, 31, 10, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_a_time_is_aware_and_one_without_a_zone_is_utc(value):
    read = read_time("since", value)

    assert read == EIGHT
    assert read.utcoffset() is not None


@pytest.mark.parametrize("value", [None, 5, True, "", "yesterday", "2026-13-01", [EIGHT]])
def test_what_is_no_time_is_refused_by_name(value):
    with pytest.raises(FsmInputError, match=r"^since: "):
        read_time("since", value)


@pytest.mark.parametrize(("value", "read"), [(1, 1), ("1", 1), ("20", 20)])
def test_a_count_may_be_given_as_text(value, read):
    assert read_count("minimum_forms", value) == read


@pytest.mark.parametrize("value", [0, "0", -1, True, 1.5, "1.5", "", " 1", "one", "٣", None])
def test_what_is_no_count_is_refused_by_name(value):
    with pytest.raises(FsmInputError, match=r"^minimum_forms: "):
        read_count("minimum_forms", value)


@pytest.mark.parametrize(
    ("value", "read"), [("Gas", ("Gas",)), (["Gas", "Oil"], ("Gas", "Oil")), (("Gas",), ("Gas",)), ([], ())]
)
def test_one_name_is_as_good_as_several(value, read):
    assert read_names("form_names", value) == read


@pytest.mark.parametrize("value", ["", " ", ["Gas", ""], [1], ["Gas", None], None, 5, {"Gas": 1}])
def test_an_empty_name_is_refused(value):
    with pytest.raises(FsmInputError, match=r"^form_names: "):
        read_names("form_names", value)


@pytest.mark.parametrize("path", ["/", "/forms", "/properties/7/jobs"])
def test_a_path_begins_with_one_slash(path):
    assert read_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        *["", "forms", "//evil.example.com", "https://evil.example.com/", "/forms?a=b", "/forms#a", None, 5],
        *["/../admin", "/a/..", "/./a", "/%2e%2e/admin", "/a b", "/a\n", "/a%0ab", "/a\\b"],
    ],
)
def test_a_path_that_leads_elsewhere_or_holds_a_query_is_refused(path):
    with pytest.raises(FsmInputError, match=r"^path: "):
        read_path(path)
