"""Determine what the specification leaves open, with a limited number of GET requests to the service.

Every finding states its evidence; without evidence, e.g. in a service without records, it is ``unknown``.
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
from fsm_provider.api.forms import FORM_FILTERS
from fsm_provider.api.listing import CursorPaginator
from fsm_provider.api.models import Page
from fsm_provider.api.retry import RetryPolicy
from fsm_provider.api.settings import Settings
from fsm_provider.probe.time_formats import OTHERS, OURS, TimeFormat, deviation

MAX_REQUESTS = 30
ONE_RETRY = RetryPolicy(max_retries=1, budget=60.0)
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

ListingEndpoint = Endpoint[Any]
LISTINGS: tuple[ListingEndpoint, ...] = (LIST_FORMS, LIST_ASSET_DYNAMIC_FIELDS)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one setting or filter.

    :param name: of the setting, or the operators' name of the filter.
    :param outcome: ``wrong``: the filter does not work as specified; ``unknown``: it could not be determined.
    :param evidence: the observation behind it, or why there is none.
    :param settings: what the connection should contain.
    """

    name: str
    outcome: Literal["confirmed", "wrong", "unknown"]
    evidence: str
    settings: Mapping[str, Any] = field(default_factory=dict)


class Probe:
    """One examination of a service.

    :param settings: of the connection; the parameter names in them are tried first.
    :param sleep: waits the given number of seconds before a request is repeated.
    :ivar requests: the number of requests made, not counting the one repeat of a request that does not arrive
        or returns HTTP 429.
    """

    def __init__(self, settings: Settings, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        unsized = settings.model_copy(update={"page_size_param": None, "page_size": None})
        self._client = FsmClient(unsized, retry_policy=ONE_RETRY, sleep=sleep)
        self._first: dict[ListingEndpoint, Page[Any]] = {}
        self._sized: dict[str, int] = {}
        self.requests: int = 0

    def findings(self) -> Iterator[Finding]:
        """Yield each finding as it is made.

        :raises FsmError: if neither listing can be read.
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
                self._first[listing] = self._ask(listing, {})
            except (FsmUnauthorisedError, FsmConnectionError):
                raise
            except FsmError as error:
                errors.append(error)
        if not self._first:
            raise errors[0]

    def _ask(self, listing: ListingEndpoint, params: Mapping[str, Any]) -> Page[Any]:
        if self.requests >= MAX_REQUESTS:
            raise _SpentError
        self.requests += 1
        return next(self._client.pages(listing.path, params=params, model=listing.response))

    def _attempt(self, listing: ListingEndpoint, params: Mapping[str, Any]) -> Page[Any] | str:
        """Request a page with parameters that may be refused; return what happened instead."""
        try:
            return self._ask(listing, params)
        except (FsmConnectionError, FsmRateLimitedError):
            raise
        except FsmApiError as refusal:
            return f"returned HTTP {refusal.status}"
        except FsmError:
            return "returned no listing"

    def _page_size(self) -> Finding:
        several = [(listing, page) for listing, page in self._first.items() if len(page.data) > 1]
        if not several:
            return Finding("page_size_param", "unknown", "no listing has two records")
        listing, first = several[0]
        usual = len(first.data)
        tried: dict[str, str] = {}
        for name in _candidates(self._settings.page_size_param, PAGE_SIZE_PARAMS):
            page = self._attempt(listing, {name: 1})
            if isinstance(page, Page) and len(page.data) == 1:
                size, evidence = self._largest_page(listing, name, usual)
                self._sized = {name: size or usual}
                settings = {"page_size_param": name} | ({"page_size": size} if size else {})
                evidence = f"{name}=1 gave 1 record, not {usual}; {evidence}"
                return Finding("page_size_param", "confirmed", evidence, settings)
            tried[name] = page if isinstance(page, str) else "ignored"
        return Finding("page_size_param", "unknown", f"none of the names tried works ({_summary_for(tried)})")

    def _largest_page(self, listing: ListingEndpoint, name: str, usual: int) -> tuple[int | None, str]:
        tried: dict[str, str] = {}
        for size in PAGE_SIZES:
            page = self._attempt(listing, {name: size})
            if isinstance(page, str):
                tried[f"{name}={size}"] = page
                continue
            count = len(page.data)
            if count == size or _after(page).finished:
                return size, f"{name}={size} gave {count}"
            if count > usual:
                return count, f"{name}={size} gave {count} of more"
            tried[f"{name}={size}"] = f"gave {count} of more"
        return None, _summary_for(tried)

    def _cursor(self) -> Finding:
        found = self._page_before_another()
        if found is None:
            return Finding("cursor_param", "unknown", "no listing has a second page")
        listing, params, first = found
        tried: dict[str, str] = {}
        for name in _candidates(self._settings.cursor_param, CURSOR_PARAMS):
            paginator = _after(first)
            second = self._attempt(listing, {**params, name: paginator.cursor})
            if isinstance(second, Page) and _follows(second, first, paginator):
                evidence = f"with it the second page of {listing.path} followed the first"
                return Finding("cursor_param", "confirmed", evidence, {"cursor_param": name})
            tried[name] = second if isinstance(second, str) else "ignored"
        return Finding("cursor_param", "unknown", f"none of the names tried works ({_summary_for(tried)})")

    def _page_before_another(self) -> tuple[ListingEndpoint, dict[str, Any], Page[Any]] | None:
        """Return a first page that has a second, with its listing and parameters."""
        for listing, page in self._first.items():
            if not _after(page).finished:
                return listing, {}, page
        for listing, page in self._first.items():
            if self._sized and len(page.data) > 1:
                params = dict.fromkeys(self._sized, 1)
                return listing, params, self._ask(listing, params)
        return None

    def _timezone(self) -> Finding:
        *_, (listing, _) = self._first.items()  # of asset fields, if readable: its serverTime has no zone
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
            evidence = f"at {now:%H:%M} UTC it was {there} there, which fits several zones: set the service's"
            return Finding("server_timezone", "unknown", evidence)
        evidence = f"in it, the service's time is the current time ({shown:%Y-%m-%d %H:%M:%S})"
        return Finding("server_timezone", "confirmed", evidence, {"server_timezone": str(zone)})

    def _time_filter(self, name: str, formats: tuple[TimeFormat, ...]) -> Finding:
        parameter, attribute = FORM_FILTERS[name], TIMES[name]
        known = _times(self._first.get(LIST_FORMS), attribute)
        tried: dict[str, str] = {}
        for one in formats:
            bound = one.bound_within(known)
            if bound is None:
                tried[one.name] = "not tried, as no two forms of the first page differ enough in their times"
                continue
            written = one.write(bound)
            page = self._attempt(LIST_FORMS, {**self._sized, parameter: written})
            trouble = (
                deviation(bound, known, _times(page, attribute), complete=_after(page).finished)
                if isinstance(page, Page)
                else page
            )
            if trouble is None and one is OURS:
                return Finding(name, "confirmed", f"since {written} no older form came, and the others did")
            if trouble is None:
                failures = _summary_for(tried)
                evidence = f"a time {one.name} is honoured ({written}), but not as it is sent ({failures})"
                advice = f"list without {name}, and give {parameter} in query_params (the hook: params)"
                return Finding(name, "wrong", f"{evidence}: {advice}")
            tried[one.name] = trouble
        outcome: Literal["wrong", "unknown"] = "unknown" if OURS.bound_within(known) is None else "wrong"
        return Finding(name, outcome, f"no time format is known to be honoured ({_summary_for(tried)})")


class _SpentError(Exception):
    def __str__(self) -> str:
        return f"the limit of {MAX_REQUESTS} requests was reached before its turn"


def _candidates(configured: str | None, names: tuple[str, ...]) -> Iterator[str]:
    return iter(dict.fromkeys((configured, *names) if configured else names))


def _summary_for(tried: Mapping[str, str]) -> str:
    by_outcome: dict[str, list[str]] = {}
    for name, outcome in tried.items():
        by_outcome.setdefault(outcome, []).append(name)
    return "; ".join(f"{', '.join(names)}: {outcome}" for outcome, names in by_outcome.items())


def _after(page: Page[Any]) -> CursorPaginator:
    paginator = CursorPaginator("cursor")
    paginator.advance(page)
    return paginator


def _follows(second: Page[Any], first: Page[Any], paginator: CursorPaginator) -> bool:
    """Return whether a page has other records than the first, and another cursor."""
    before, after = ({getattr(one, one.identity_field) for one in page.data} for page in (first, second))
    try:
        paginator.advance(second)
    except FsmPaginationError:
        return False
    return bool(after) and not before & after


def _times(page: Page[Any] | None, attribute: str) -> dict[int, datetime]:
    """Return the readable times of a page's forms, by identifier."""
    times = {form.id: getattr(form, attribute) for form in page.data} if page else {}
    return {form_id: time for form_id, time in times.items() if isinstance(time, datetime)}
