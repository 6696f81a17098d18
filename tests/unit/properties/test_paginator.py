"""The paginator against a model of what the contract says."""

from __future__ import annotations

import json
import re
from datetime import UTC
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fsm_provider.api.errors import FsmPaginationError
from fsm_provider.api.listing import CursorPaginator
from fsm_provider.api.models import Form
from fsm_provider.api.parsing import parse_page

MORE = [True, "true", "True", 1, "1"]
DONE = [False, "false", "FALSE", 0, "0"]
NEITHER: list[Any] = [None, "", "yes", 2, -1, 1.5, "2", " true", [], {}, [True]]
NO_CURSOR = [None, "", "null"]
ODD_CURSORS = [True, False, [], [1], {}, {"next": 1}]
MISSING = object()

has_mores = st.sampled_from(MORE * 6 + DONE + NEITHER + [MISSING])
records = st.sampled_from([[], [], [1], [2], [1, 2], [2, 1], [1, 2, 3]])
cursors = st.one_of(
    st.integers(-3, 40),
    st.integers(0, 40).map(str),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
    st.integers(10**20, 10**30),
    st.sampled_from([*NO_CURSOR, *ODD_CURSORS, "NULL", "0", 0, "false", MISSING]),
)
starts = st.sampled_from([None, None, "a", "0", 7])


def kind(value: Any, values: list[Any]) -> bool:
    """Whether it is among the values, True and 1 being two."""
    return any(type(value) is type(one) and value == one for one in values)


class Listing(RuleBasedStateMachine):
    """One listing after the other, each a page at a time."""

    @initialize(max_pages=st.integers(1, 4), start=starts)
    def begin(self, max_pages: int, start: int | str | None) -> None:
        self.paginator = CursorPaginator("after", start=start, max_pages=max_pages)
        self.max_pages = max_pages
        self.asked: list[str | None] = [None if start is None else str(start)]
        self.previous: list[int] = []
        self.ended = self.failed = False

    @precondition(lambda self: self.ended or self.failed)
    @rule(max_pages=st.integers(1, 4), start=starts)
    def begin_another(self, max_pages: int, start: int | str | None) -> None:
        self.begin(max_pages, start)

    @precondition(lambda self: not (self.ended or self.failed))
    @rule(has_more=has_mores, cursor=cursors, found=records)
    def any_page(self, has_more: Any, cursor: Any, found: list[int]) -> None:
        self.respond({"hasMore": has_more, "nextCursor": cursor}, found)

    @precondition(lambda self: not (self.ended or self.failed))
    @rule(has_more=st.sampled_from(MORE), cursor=st.integers(100, 199), found=records)
    def page_that_goes_on(self, has_more: Any, cursor: int, found: list[int]) -> None:
        self.respond({"hasMore": has_more, "nextCursor": cursor}, found)

    @precondition(lambda self: not (self.ended or self.failed) and self.asked[-1] is not None)
    @rule(has_more=st.sampled_from(MORE), data=st.data(), as_text=st.booleans(), found=records)
    def page_with_a_cursor_seen_before(
        self, has_more: Any, data: st.DataObject, as_text: bool, found: list[int]
    ) -> None:
        cursor: Any = data.draw(st.sampled_from([one for one in self.asked if one is not None]))
        if not as_text and re.fullmatch(r"0|-?[1-9][0-9]*", cursor):
            cursor = int(cursor)
        self.respond({"hasMore": has_more, "nextCursor": cursor}, found)

    @precondition(lambda self: not (self.ended or self.failed))
    @rule(has_more=has_mores, cursor=st.integers(100, 199))
    def page_with_the_records_of_the_one_before(self, has_more: Any, cursor: int) -> None:
        self.respond({"hasMore": has_more, "nextCursor": cursor}, self.previous)

    @precondition(lambda self: not (self.ended or self.failed))
    @rule(pagination=st.sampled_from([None, "true", [], 1, True, MISSING]), found=records)
    def page_without_pagination(self, pagination: Any, found: list[int]) -> None:
        self.respond(pagination, found)

    def respond(self, pagination: Any, found: list[int]) -> None:
        body: dict[str, Any] = {"pagination": pagination, "data": [{"id": number} for number in found]}
        if isinstance(pagination, dict):
            body["pagination"] = {name: value for name, value in pagination.items() if value is not MISSING}
        elif pagination is MISSING:
            del body["pagination"]
        page = parse_page(json.dumps(body).encode(), Form, number=len(self.asked), timezone=UTC)
        expected = self.expected(body.get("pagination"), found)
        self.previous = found
        if expected == "error":
            self.failed = True
            with pytest.raises(FsmPaginationError, match=rf"^page {len(self.asked)} of .*'after'"):
                self.paginator.advance(page)
            return
        self.paginator.advance(page)
        if expected == "end":
            self.ended = True
        else:
            self.asked.append(expected[1])

    def expected(self, pagination: Any, found: list[int]) -> Any:
        pagination = pagination if isinstance(pagination, dict) else {}
        has_more, cursor = pagination.get("hasMore"), pagination.get("nextCursor")
        if found and found == self.previous:
            return "error"
        if kind(has_more, DONE):
            return "end"
        if not kind(has_more, MORE) or kind(cursor, NO_CURSOR) or kind(cursor, ODD_CURSORS):
            return "error"
        if str(cursor) in self.asked or len(self.asked) >= self.max_pages:
            return "error"
        return "next", str(cursor)

    @invariant()
    def nothing_is_asked_for_twice(self) -> None:
        assert len(set(self.asked)) == len(self.asked)
        assert len(self.asked) <= self.max_pages

    @invariant()
    def the_paginator_is_where_the_model_is(self) -> None:
        assert self.paginator.finished == self.ended
        assert self.paginator.page_number == len(self.asked)
        assert self.paginator.params == ({} if self.asked[-1] is None else {"after": self.asked[-1]})


TestAnyListingIsLedToItsEndOrAnError = Listing.TestCase
TestAnyListingIsLedToItsEndOrAnError.settings = settings(max_examples=2_000, stateful_step_count=6)


def test_a_cursor_that_the_listing_started_from_is_not_asked_for_again() -> None:
    paginator = CursorPaginator("after", start="a")
    body = b'{"pagination": {"hasMore": true, "nextCursor": "a"}, "data": [{"id": 1}]}'

    with pytest.raises(FsmPaginationError):
        paginator.advance(parse_page(body, Form, number=1, timezone=UTC))
