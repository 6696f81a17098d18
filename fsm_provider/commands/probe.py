"""Find the settings that a service needs, with GET requests: ``python -m fsm_provider probe``."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from fsm_provider.api.client import FsmClient
from fsm_provider.api.errors import (
    FsmBadRequestError,
    FsmConnectionError,
    FsmError,
    FsmNotFoundError,
    FsmPaginationError,
    FsmRateLimitedError,
)
from fsm_provider.api.forms import job_id_from
from fsm_provider.api.listing import CursorPaginator
from fsm_provider.api.models import LIST_ASSET_DYNAMIC_FIELDS, LIST_FORMS, Endpoint, Form, Page
from fsm_provider.api.redaction import printable
from fsm_provider.api.settings import Settings
from fsm_provider.commands.cli import conn_id_parser

MAX_REQUESTS = 30  # what the command promises; a test counts them
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
IN_THE_FUTURE = "2999-01-01T00:00:00.000Z"
MAX_CLOCK_DIFFERENCE = 180.0  # seconds
DESCRIPTION = f"""\
Find out which cursor parameter, page size and time zone the service behind a connection expects,
and what it returns where there are no forms, and print the extra that the connection should have.
Reads only: at most {MAX_REQUESTS} GET requests, plus one for each that does not arrive or returns
HTTP 429. Exit code: 0 if everything was determined, 1 if something was not, 2 if forms cannot be
listed."""


class Finding(NamedTuple):
    """What was found out about a setting.

    :param settings: what the connection should contain; empty if that was not found.
    """

    evidence: str
    settings: Mapping[str, Any] = MappingProxyType({})


class Probe:
    """An examination of a service; the parameter names of its settings are tried first.

    The command requests the first page of forms, and then takes each finding of :meth:`findings`.
    The cursor comes after the page size: with one form a page, the forms have a second page.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        changes = {"page_size_param": None, "page_size": None, "max_retries": 1}
        self._client = FsmClient(settings.model_copy(update=changes))
        self._size_param: str | None = None
        self.requests: int = 0

    def findings(self, first: Page[Form]) -> Iterator[tuple[str, Finding]]:
        """Yield each finding as it is made, with the name of its setting.

        :param first: the first page of forms.
        """
        with self._client:
            steps: dict[str, Callable[[], Finding | None]] = {
                "page_size_param": partial(self._find_page_size, first),
                "cursor_param": partial(self._find_cursor, first),
                "server_timezone": self.find_timezone,
                "no_forms_response": partial(self._find_no_forms, first),
            }
            for name, step in steps.items():
                try:
                    finding = step()
                except FsmError as error:
                    finding = Finding(str(error))
                if finding is not None:
                    yield name, finding

    def request_page(
        self, params: Mapping[str, Any], endpoint: Endpoint[Any] = LIST_FORMS
    ) -> Page[Any]:
        """Request a page of a listing."""
        self.requests += 1
        return next(self._client.pages(endpoint.path, params=params, model=endpoint.response))

    def _try(self, params: Mapping[str, Any]) -> Page[Form] | None:
        """Request a page with parameters that may be refused."""
        try:
            return self.request_page(params)
        except (FsmConnectionError, FsmRateLimitedError):
            raise
        except FsmError:
            return None

    def _find_page_size(self, first: Page[Form]) -> Finding:
        usual_size = len(first.data)
        if usual_size < 2:
            return Finding("there are no two forms")
        names = _distinct(self._settings.page_size_param, *PAGE_SIZE_PARAMS)
        for name in names:
            page = self._try({name: 1})
            if page is not None and len(page.data) == 1:
                self._size_param = name
                size = self._largest_page(name, usual_size)
                settings = {"page_size_param": name, "page_size": size}
                evidence = f"{name}=1 gave 1 record, not {usual_size}"
                return Finding(evidence, settings)
        return Finding(f"none of these works: {', '.join(names)}")

    def _largest_page(self, name: str, usual_size: int) -> int:
        for size in PAGE_SIZES:
            page = self._try({name: size})
            if page is None:
                continue
            if _paginator_after(page).finished:
                return size
            if len(page.data) > usual_size:
                return len(page.data)
        return usual_size

    def _find_cursor(self, first: Page[Form]) -> Finding:
        params = {}
        paginator = _paginator_after(first)
        if paginator.finished and self._size_param:
            params = {self._size_param: 1}
            first = self.request_page(params)
            paginator = _paginator_after(first)
        if paginator.finished:
            return Finding("the forms have no second page")
        names = _distinct(self._settings.cursor_param, *CURSOR_PARAMS)
        for name in names:
            second = self._try({**params, name: paginator.cursor})
            if second is not None and _follows(second, first):
                evidence = "with it the second page followed the first"
                return Finding(evidence, {"cursor_param": name})
        return Finding(f"none of these works: {', '.join(names)}")

    def find_timezone(self) -> Finding:
        """Compare the service's clock, which shows no zone, with this machine's."""
        page = self.request_page({}, LIST_ASSET_DYNAMIC_FIELDS)  # its serverTime has no zone
        shown = getattr(page.meta, "server_time", None)
        if not isinstance(shown, datetime):
            evidence = f"{LIST_ASSET_DYNAMIC_FIELDS.path} has no meta.serverTime"
            return Finding(evidence)
        zone = str(self._settings.server_timezone)
        ahead = (shown - datetime.now(UTC)).total_seconds()
        if abs(ahead) > MAX_CLOCK_DIFFERENCE:
            evidence = (
                f"read in {zone}, the service's clock is {ahead / 60:+.0f} minutes from this "
                "machine's: set the service's zone, or correct the clock"
            )
            return Finding(evidence)
        evidence = f"in it, the service's time is the current time ({shown:%Y-%m-%d %H:%M:%S})"
        return Finding(evidence, {"server_timezone": zone})

    def _find_no_forms(self, first: Page[Form]) -> Finding | None:
        """Ask for a job's forms of the future; None: the listing was as specified, or unknown."""
        if not first.data:
            return None
        job_id = job_id_from(first.data[0])
        params = {"jobID": job_id, "createdOnDateTime[gte]": IN_THE_FUTURE}
        self.requests += 1
        evidence = "so it was when a job was asked for forms of the future"
        try:
            page = self._client.request("GET", LIST_FORMS.path, params)
        except FsmNotFoundError:
            return Finding(evidence, {"no_forms_response": "404"})
        except FsmBadRequestError:
            return None
        return None if page else Finding(evidence, {"no_forms_response": "empty"})


def _distinct(*names: str | None) -> list[str]:
    return list(dict.fromkeys(filter(None, names)))


def _paginator_after(page: Page[Form]) -> CursorPaginator:
    paginator = CursorPaginator("cursor")
    paginator.advance(page)
    return paginator


def _follows(second: Page[Form], first: Page[Form]) -> bool:
    """Return whether a page has other records than the first, and another cursor."""
    try:
        _paginator_after(first).advance(second)
    except FsmPaginationError:
        return False
    first_ids = {form.id for form in first.data}
    second_ids = {form.id for form in second.data}
    return bool(second_ids) and first_ids.isdisjoint(second_ids)


def main(arguments: Sequence[str], prog: str) -> int:
    fsm_conn_id = conn_id_parser(prog, DESCRIPTION).parse_args(arguments).fsm_conn_id
    from fsm_provider.hooks.connection import read_connection_outside_of_tasks, settings_from

    connection = read_connection_outside_of_tasks(fsm_conn_id)
    settings = settings_from(connection)
    probe = Probe(settings)
    first = probe.request_page({})
    asking = f"Asking {settings.base_url} at most {MAX_REQUESTS} times, reading only."
    print(f"The connection works. {asking}\n")
    extra = dict(connection.extra_dejson)
    unknown = []
    for setting, finding in probe.findings(first):
        if finding.settings:
            values = ", ".join(f"{name} is {value}" for name, value in finding.settings.items())
            print(printable(f"{values}: {finding.evidence}"))
            extra |= finding.settings
        else:
            unknown.append(f"- {setting}, because {finding.evidence}.")
    print(f"\nRequests made: {probe.requests}. The connection's extra:")
    print(json.dumps(extra, indent=2))
    if not unknown:
        return 0
    print("\nCould not be determined:")
    for line in unknown:
        print(printable(line))
    return 1
