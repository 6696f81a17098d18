"""Finding out what the specification leaves open, by reading from the service itself.

It asks with GET alone, and a limited number of times. What is found says what it was seen by; where nothing
can be seen, as in a service without records, that is said instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from fsm_provider.api.client import FsmClient
from fsm_provider.api.endpoints import LIST_ASSET_DYNAMIC_FIELDS, LIST_FORMS, Endpoint
from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmError,
    FsmPaginationError,
    FsmRateLimitedError,
    FsmUnauthorisedError,
)
from fsm_provider.api.models import Page
from fsm_provider.api.pagination import CursorPaginator
from fsm_provider.api.retry import RetryPolicy
from fsm_provider.api.settings import Settings
from fsm_provider.api.time_formats import OTHERS, OURS, TimeFormat, departure

MOST_REQUESTS = 30
ONE_MORE_TRY = RetryPolicy(max_retries=1, budget=60.0)
CURSOR_PARAMS = (
    "cursor",
    "nextCursor",
    "next_cursor",
    "pageCursor",
    "after",
    "startingAfter",
    "starting_after",
    "pageToken",
    "page_token",
)
PAGE_SIZE_PARAMS = ("limit", "pageSize", "page_size", "perPage", "per_page", "size", "count")
PAGE_SIZES = (500, 200, 100)
TIMES = {"created_since": "created_on_date_time", "updated_since": "last_updated_on_date_time"}
BETWEEN_ZONES = timedelta(minutes=15)
CLOCKS_DIFFER = timedelta(minutes=3)

Listing = Endpoint[Any]
LISTINGS: tuple[Listing, ...] = (LIST_FORMS, LIST_ASSET_DYNAMIC_FIELDS)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one setting or filter.

    :param name: of the setting, or of the filter as the operators call it.
    :param outcome: ``wrong``: it was told, and the filter does not do what it says; ``unknown``: it could
        not be told.
    :param evidence: what it was seen by, or why it could not be.
    :param settings: what the connection should say.
    """

    name: str
    outcome: Literal["told", "wrong", "unknown"]
    evidence: str
    settings: Mapping[str, Any] = field(default_factory=dict)


class Probe:
    """One look at a service.

    :param settings: how it is reached; the names that they hold are tried first.
    :param sleep: waits so many seconds before a request is tried again.
    :ivar requests: how many were made. One that fails on the way or is answered 429 is tried once more,
        which does not count.
    """

    def __init__(self, settings: Settings, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        unsized = settings.model_copy(update={"page_size_param": None, "page_size": None})
        self._client = FsmClient(unsized, retry_policy=ONE_MORE_TRY, sleep=sleep)
        self._first: dict[str, Page[Any]] = {}
        self._sized: dict[str, int] = {}
        self.requests: int = 0

    def findings(self) -> Iterator[Finding]:
        """Ask, and give each finding as it is made.

        :raises FsmError: where neither listing can be read.
        """
        steps: dict[str, Callable[[], Finding]] = {
            "page_size_param": self._page_size,
            "cursor_param": self._cursor,
            "server_timezone": self._timezone,
            "created_since": lambda: self._time_filter("created_since", (OURS, *OTHERS)),
            "updated_since": lambda: self._time_filter("updated_since", (OURS,)),
        }
        with self._client:
            self._read_first_pages()
            for name, step in steps.items():
                try:
                    yield step()
                except (FsmError, _SpentError) as error:
                    yield Finding(name, "unknown", str(error))

    def _read_first_pages(self) -> None:
        errors: list[FsmError] = []
        for listing in LISTINGS:
            try:
                self._first[listing.path] = self._ask(listing, {})
            except (FsmUnauthorisedError, FsmConnectionError):
                raise
            except FsmError as error:
                errors.append(error)
        if not self._first:
            raise errors[0]

    def _readable(self) -> Iterator[tuple[Listing, Page[Any]]]:
        return ((listing, self._first[listing.path]) for listing in LISTINGS if listing.path in self._first)

    def _ask(self, listing: Listing, params: Mapping[str, Any]) -> Page[Any]:
        if self.requests >= MOST_REQUESTS:
            raise _SpentError
        self.requests += 1
        return next(self._client.pages(listing.path, listing.response, params))

    def _try(self, listing: Listing, params: Mapping[str, Any]) -> Page[Any] | str:
        """Ask for a page with what may well be refused, and then say what came instead."""
        try:
            return self._ask(listing, params)
        except (FsmConnectionError, FsmRateLimitedError):
            raise
        except FsmApiError as refusal:
            return f"answered {refusal.status}"
        except FsmError:
            return "no listing came"

    def _page_size(self) -> Finding:
        several = [(listing, page) for listing, page in self._readable() if len(page.data) > 1]
        if not several:
            return Finding("page_size_param", "unknown", "no listing has two records")
        listing, first = several[0]
        usual = len(first.data)
        tried: dict[str, str] = {}
        for name in _in_turn(self._settings.page_size_param, PAGE_SIZE_PARAMS):
            page = self._try(listing, {name: 1})
            if isinstance(page, Page) and len(page.data) == 1:
                size, evidence = self._largest_page(listing, name, usual)
                self._sized = {name: size or usual}
                settings = {"page_size_param": name} | ({"page_size": size} if size else {})
                evidence = f"{name}=1 gave 1 record, not {usual}; {evidence}"
                return Finding("page_size_param", "told", evidence, settings)
            tried[name] = page if isinstance(page, str) else "ignored"
        return Finding("page_size_param", "unknown", f"no name that was tried is one ({_in_words(tried)})")

    def _largest_page(self, listing: Listing, name: str, usual: int) -> tuple[int | None, str]:
        tried: dict[str, str] = {}
        for size in PAGE_SIZES:
            page = self._try(listing, {name: size})
            if isinstance(page, str):
                tried[f"{name}={size}"] = page
                continue
            count = len(page.data)
            if count == size or _after(page).finished:
                return size, f"{name}={size} gave {count}"
            if count > usual:
                return count, f"{name}={size} gave {count} of more"
            tried[f"{name}={size}"] = f"gave {count} of more"
        return None, _in_words(tried)

    def _cursor(self) -> Finding:
        found = self._page_before_another()
        if found is None:
            return Finding("cursor_param", "unknown", "no listing has a second page")
        listing, params, first = found
        tried: dict[str, str] = {}
        for name in _in_turn(self._settings.cursor_param, CURSOR_PARAMS):
            paginator = _after(first)
            second = self._try(listing, {**params, name: paginator.cursor})
            if isinstance(second, Page) and _follows(second, first, paginator):
                evidence = f"with it the second page of {listing.path} followed the first"
                return Finding("cursor_param", "told", evidence, {"cursor_param": name})
            tried[name] = second if isinstance(second, str) else "ignored"
        return Finding("cursor_param", "unknown", f"no name that was tried is one ({_in_words(tried)})")

    def _page_before_another(self) -> tuple[Listing, dict[str, Any], Page[Any]] | None:
        """Give a first page that another follows, and the parameters that it came with."""
        for listing, page in self._readable():
            if not _after(page).finished:
                return listing, {}, page
        for listing, page in self._readable():
            if self._sized and len(page.data) > 1:
                params = dict.fromkeys(self._sized, 1)
                return listing, params, self._ask(listing, params)
        return None

    def _timezone(self) -> Finding:
        *_, (listing, _) = self._readable()  # that of the assets, which writes its time without a zone
        page = self._ask(listing, {})
        now = datetime.now(UTC)
        shown = getattr(page.meta, "server_time", None)
        if not isinstance(shown, datetime):
            return Finding("server_timezone", "unknown", f"{listing.path} has no meta.serverTime")
        zone = self._settings.server_timezone
        ahead = shown - now
        quarters = round(ahead / BETWEEN_ZONES)
        if abs(ahead - quarters * BETWEEN_ZONES) > CLOCKS_DIFFER:
            evidence = f"the service's clock and this machine's differ by {ahead.total_seconds():.0f} s"
            return Finding("server_timezone", "unknown", evidence)
        if quarters:
            there = (now.astimezone(zone) + quarters * BETWEEN_ZONES).strftime("%H:%M")
            evidence = f"at {now:%H:%M} UTC it was {there} there, which many zones have: name the service's"
            return Finding("server_timezone", "unknown", evidence)
        evidence = f"read in it, the time that the service gives is now ({shown:%Y-%m-%d %H:%M:%S})"
        return Finding("server_timezone", "told", evidence, {"server_timezone": str(zone)})

    def _time_filter(self, name: str, formats: tuple[TimeFormat, ...]) -> Finding:
        parameter, attribute = LIST_FORMS.parameters[name], TIMES[name]
        known = _times(self._first.get(LIST_FORMS.path), attribute)
        tried: dict[str, str] = {}
        for one in formats:
            bound = one.bound_within(known)
            if bound is None:
                tried[one.name] = "not tried, as no two forms of the first page differ enough in their times"
                continue
            written = one.write(bound)
            page = self._try(LIST_FORMS, {**self._sized, parameter: written})
            trouble = (
                departure(bound, known, _times(page, attribute), whole=_after(page).finished)
                if isinstance(page, Page)
                else page
            )
            if trouble is None and one is OURS:
                return Finding(name, "told", f"since {written} no older form came, and the others did")
            if trouble is None:
                evidence = (
                    f"a time {one.name} is honoured ({written}), but not as it is sent ({_in_words(tried)})"
                )
                advice = f"list without {name}, and give {parameter} in query_params (the hook: params)"
                return Finding(name, "wrong", f"{evidence}: {advice}")
            tried[one.name] = trouble
        outcome: Literal["wrong", "unknown"] = "unknown" if OURS.bound_within(known) is None else "wrong"
        return Finding(name, outcome, f"no time is known to be honoured ({_in_words(tried)})")


class _SpentError(Exception):
    def __str__(self) -> str:
        return f"the limit of {MOST_REQUESTS} requests was reached before its turn"


def _in_turn(set_now: str | None, names: tuple[str, ...]) -> Iterator[str]:
    return iter(dict.fromkeys((set_now, *names) if set_now else names))


def _in_words(tried: Mapping[str, str]) -> str:
    by_outcome: dict[str, list[str]] = {}
    for name, outcome in tried.items():
        by_outcome.setdefault(outcome, []).append(name)
    return "; ".join(f"{', '.join(names)}: {outcome}" for outcome, names in by_outcome.items())


def _after(page: Page[Any]) -> CursorPaginator:
    paginator = CursorPaginator("cursor")
    paginator.advance(page)
    return paginator


def _follows(second: Page[Any], first: Page[Any], paginator: CursorPaginator) -> bool:
    """Tell whether a page holds other records than the first, and another cursor."""
    before, after = ({getattr(one, one.identity_field) for one in page.data} for page in (first, second))
    try:
        paginator.advance(second)
    except FsmPaginationError:
        return False
    return bool(after) and not before & after


def _times(page: Page[Any] | None, attribute: str) -> dict[int, datetime]:
    """Give the times of a page's forms, as far as they can be read, by identifier."""
    moments = {form.id: getattr(form, attribute) for form in page.data} if page else {}
    return {form_id: moment for form_id, moment in moments.items() if isinstance(moment, datetime)}
