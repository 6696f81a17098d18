"""One poll of the completed forms, read through a client."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from fsm_provider.api.client import FsmClient, Params
from fsm_provider.api.form_filter import FormFilter, FormReference
from fsm_provider.api.forms import reference_to
from fsm_provider.api.listing import Listing
from fsm_provider.api.log_once import warn_once
from fsm_provider.api.models import Form, Page
from fsm_provider.polling.old_polls import MAX_CLOCK_SKEW, PollResult
from fsm_provider.state.digest import digest_for

logger: logging.Logger = logging.getLogger(__name__)


class FormPoll:
    """A listing of forms that is read page by page. A page that failed is requested again.

    :param wanted: the filter, which is also checked here.
    :param params: query parameters that the specification does not document.
    :param max_pages: number of pages after which the listing is abandoned, None: it is read to its end.
    """

    def __init__(
        self, wanted: FormFilter, params: Params | None = None, *, max_pages: int | None = None
    ) -> None:
        self.wanted = wanted
        self.pages_read = 0
        self._max_pages = max_pages
        self._longest_page = 0
        self._params = params
        self._client: FsmClient | None = None
        self._listing: Listing | None = None
        self._references: list[FormReference] = []
        self._digests: dict[int, str] = {}
        self._others = 0
        self._started = datetime.max

    def read_page(self, client: FsmClient) -> PollResult | None:
        """Read the next page; return the result after the last page, None before.

        :param client: a client of the same service for each page; its token may differ.
        :raises FsmError: if the page cannot be read.
        """
        listing = self._listing_through(client)
        requested, began = datetime.now(UTC), time.monotonic()
        page = listing.next_page()
        if not self.pages_read:
            duration = timedelta(seconds=time.monotonic() - began)
            self._started = _start_time(client, page, requested, duration)
        self.pages_read += 1
        forms: list[Form] = page.data
        self._longest_page = max(self._longest_page, len(forms))
        matching = [form for form in forms if self.wanted.matches(form)]
        self._others += len(forms) - len(matching)
        for form in matching:
            self._references.append(reference_to(form))
            if isinstance(form.last_updated_on_date_time, datetime):
                self._digests.pop(form.id, None)
            else:
                self._digests[form.id] = _digest_for(form)
        if listing.finished:
            listing.log_mismatch()
        elif self.pages_read != self._max_pages:
            return None
        return PollResult(
            references=self._references,
            started=self._started,
            others=self._others,
            digests=self._digests,
            pages=self.pages_read,
            longest_page=self._longest_page,
            complete=listing.finished,
        )

    def _listing_through(self, client: FsmClient) -> Listing:
        if self._listing is None or client is not self._client:
            listing = client.form_pages(self.wanted, self._params)
            if self._listing is None:
                self._listing = listing
            else:
                self._listing.fetch_like(listing)
            self._client = client
        return self._listing


def _digest_for(form: Form) -> str:
    """Return a digest of a record's content. URLs are left out: a signed one differs at each listing."""
    record = form.model_dump(by_alias=True, exclude={"form_pdf_url", "links"}, warnings=False)
    return digest_for(_content_from(record), 16)


def _content_from(value: Any) -> Any:
    match value:
        case dict():
            contents = {name: _content_from(one) for name, one in value.items()}
            return {name: content for name, content in contents.items() if content is not None}
        case list():
            return [_content_from(one) for one in value]
        case datetime():
            return value.timestamp()
        case str() if value.startswith(("https://", "http://")):
            return None
        case _:
            return value


def _start_time(client: FsmClient, page: Page[Any], requested: datetime, duration: timedelta) -> datetime:
    """Return the time at which the service began to send its first page."""
    served = getattr(page.meta, "server_time", None)
    if not isinstance(served, datetime) or not served.tzinfo:
        return requested
    started = served - duration
    if abs(started - requested) <= MAX_CLOCK_SKEW:
        return started
    warn_once(
        logger,
        ("clock", client.settings.base_url),
        "The clock of %s is at %s (meta.serverTime), the local clock at %s: they differ by more than %s, "
        "so forms are polled by the local clock. Check this machine's clock, and server_timezone on the "
        "connection",
        client.settings.base_url,
        served.isoformat(),
        (requested + duration).isoformat(),
        MAX_CLOCK_SKEW,
    )
    return requested
