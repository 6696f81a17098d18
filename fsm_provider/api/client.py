"""The client: the service's operations. All requests pass here; it repeats those that it may."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, Unpack, cast

from pydantic import SecretStr

from fsm_provider.api import errors, models
from fsm_provider.api.forms import FORM_FILTERS, FormFilter, FormFilters, matching_forms
from fsm_provider.api.listing import DEFAULT_MAX_PAGES, CursorPaginator, Listing, records_of
from fsm_provider.api.metrics import Metrics
from fsm_provider.api.models import AssetDynamicField, Form, Job, Page, Record, Webhook
from fsm_provider.api.parsing import parse_json, parse_page
from fsm_provider.api.request import SAFE_METHODS, ApiRequest, TimeLimit
from fsm_provider.api.retry import RetryState
from fsm_provider.api.settings import Settings
from fsm_provider.api.throttling import reserve_time
from fsm_provider.api.validation import ResultT, checked_path, parse_params

if TYPE_CHECKING:
    from fsm_provider.api.downloads import PdfLimits
    from fsm_provider.api.payloads import JobCreate, WebhookCreate

logger: logging.Logger = logging.getLogger(__name__)

FILTER_PARAMS = frozenset(FORM_FILTERS.values())
Params = Mapping[str, Any]
Headers = Mapping[str, str]


class FsmClient:
    """The service's operations, over kept-alive connections.

    :param reload_settings: returns the current settings. It is called after a 401; the request is
        repeated once, if the token has changed, and ``base_url`` and account have not.
    :param sleep: waits the given number of seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        reload_settings: Callable[[], Settings] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        metrics: Metrics | None = None,
    ) -> None:
        # With requests, which no DAG file needs to load.
        from fsm_provider.api.transport import Transport

        self.settings = settings
        self._token = settings.token
        self._reload_settings = reload_settings
        self._reloading = Lock()
        self._sleep = sleep
        self._metrics = metrics or Metrics()
        self._transport = Transport(settings, self._metrics, self._throttle)

    def __enter__(self) -> FsmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def list_forms(
        self, *, params: Params | None = None, **filters: Unpack[FormFilters]
    ) -> Iterator[Form]:
        """List completed forms page by page, in the service's order.

        :param filters: those of :class:`~fsm_provider.api.forms.FormFilter`; each form is also
            checked here.
        :param params: query parameters that the specification does not show.
        :raises FsmInputError: at once, naming a filter of the wrong type; other errors: during
            iteration.
        """
        wanted = FormFilter(**filters)
        pages = self.form_pages(wanted, params).pages_with_warning()
        return chain.from_iterable(matching_forms(pages, wanted))

    def form_pages(
        self,
        wanted: FormFilter,
        params: Params | None = None,
        *,
        max_pages: int = DEFAULT_MAX_PAGES,
    ) -> Listing:
        """List forms as :meth:`pages` does; they are not checked against ``wanted``."""
        listing = models.LIST_FORMS
        sent = {**parse_params("params", params), **wanted.params()}
        return self.pages(listing.path, params=sent, model=listing.response, max_pages=max_pages)

    def list_asset_dynamic_fields(
        self, *, params: Params | None = None
    ) -> Iterator[AssetDynamicField]:
        """List asset dynamic fields page by page; see :meth:`paginate`."""
        listing = models.LIST_ASSET_DYNAMIC_FIELDS
        return self.paginate(listing.path, params, listing.response)

    def create_job(self, property_id: int | str, job: JobCreate | Mapping[str, Any]) -> Job:
        """Create a job on a property. The request is sent once.

        :param job: the body; a mapping, such as :class:`~fsm_provider.api.JobFields`, is validated
            first.
        :raises FsmInputError: before anything is sent, naming each invalid field.
        :raises FsmUncertainWriteError: if the job may exist nevertheless; any other FsmError: it
            does not.
        """
        from fsm_provider.api.payloads import JobRequest, parse_payload, warn_of_empty_templates

        asked = parse_payload(JobRequest, {"property_id": property_id, "job": job}, "")
        warn_of_empty_templates(asked)
        return cast(Job, self.send(asked.request()))

    def register_webhook(self, webhook: WebhookCreate | dict[str, Any]) -> Webhook:
        """Register a webhook, with one request.

        :param webhook: a dictionary is validated first. Register each event type by itself: the
            specification does not show how a request has several.
        :raises FsmInputError: before anything is sent, naming each invalid field.
        :raises FsmRegistrationError: if the service registered another object or other event types.
        :raises FsmUncertainWriteError: if the registration may exist nevertheless.
        """
        from fsm_provider.api.payloads import WebhookCreate, parse_payload

        asked = parse_payload(WebhookCreate, webhook, "webhook")
        return cast(Webhook, self.send(asked.request()))

    def paginate(
        self,
        path: str,
        params: Params | None = None,
        model: type[Record] | None = None,
        *,
        max_pages: int = DEFAULT_MAX_PAGES,
    ) -> Iterator[Any]:
        """List the records of any path that returns the service's listing envelope.

        :param path: starts with ``/`` and contains no query.
        :param params: query parameters, sent with each page.
        :param model: the class of the records; None yields dictionaries.
        :param max_pages: a longer listing is an error.
        :raises FsmInputError: at once, for an invalid path or params; any other FsmError: during
            iteration.
        """
        pages = self.pages(checked_path(path), params=params, model=model, max_pages=max_pages)
        return records_of(pages.pages_with_warning())

    def request(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        json: Any = None,
        *,
        headers: Headers | None = None,
    ) -> Any:
        """Send any request and return the parsed JSON of its response, None for an empty body.

        Only GET, HEAD and OPTIONS are repeated.

        :param path: starts with ``/`` and contains no query.
        :param headers: further headers, e.g. ``X-API-VERSION``.
        :raises FsmInputError: before anything is sent, naming what cannot be sent.
        """
        if not (isinstance(method, str) and method.isascii() and method.isalpha()):
            raise errors.FsmInputError("method: should be a name such as POST")
        return self.send(
            ApiRequest.build(method.upper(), checked_path(path), params, json, headers)
        )

    def send(
        self,
        request: ApiRequest,
        *,
        headers: Headers | None = None,
        limit: TimeLimit | None = None,
    ) -> Any:
        """Send a request, a write once; return what its reader makes of the response.

        :param headers: further headers, such as an idempotency key.
        :param limit: given by a caller that has reserved the request's turn, see :meth:`reserve`.
        """
        all_headers = {**request.headers, **(headers or {})}
        if request.is_versioned and self.settings.api_version:
            all_headers.setdefault("X-API-VERSION", self.settings.api_version)
        sent = replace(request, headers=all_headers)

        def read_body(body: bytes) -> Any:
            values = parse_json(body) if body else None
            if request.make_record is None:
                return values
            return request.make_record(values, self.settings.server_timezone)

        attempt = partial(self._transport.send_once, sent, read_body, limit=limit)
        return self._repeat(attempt, is_write=request.method not in SAFE_METHODS)

    def pages(
        self,
        path: str,
        *,
        params: Params | None = None,
        model: type[Record] | None = None,
        max_pages: int = DEFAULT_MAX_PAGES,
    ) -> Listing:
        """List page by page, as :meth:`paginate` does; it can continue after a failed page."""
        settings = self.settings
        sent = parse_params("params", params)
        if settings.page_size_param and settings.page_size:
            sent.setdefault(settings.page_size_param, settings.page_size)
        paginator = CursorPaginator(settings.cursor_param, max_pages=max_pages)
        # Without a filter, a 404 may be that of a wrong base path.
        has_form_filter = path == models.LIST_FORMS.path and not FILTER_PARAMS.isdisjoint(sent)
        no_forms_response = settings.no_forms_response if has_form_filter else None

        def fetch(at: CursorPaginator) -> Page[Any]:
            is_first = at.cursor is None
            read = partial(
                parse_page,
                model=model,
                number=at.page_number,
                timezone=settings.server_timezone,
                may_be_empty=is_first and no_forms_response == "empty",
            )
            request = ApiRequest.build("GET", path, {**sent, **at.params})
            try:
                return self._repeat(partial(self._transport.send_once, request, read))
            except errors.FsmNotFoundError:
                if is_first and no_forms_response == "404":
                    return read(b"", may_be_empty=True)  # a page without forms
                raise

        return Listing(f"{settings.base_url}{path}", paginator, fetch)

    def download_pdf(
        self, form: Form, read: Callable[[Iterator[bytes]], ResultT], **limits: Unpack[PdfLimits]
    ) -> ResultT:
        """Fetch the PDF of a form.

        The token is sent only to the service's own scheme, host and port.

        :param read: receives the chunks of the file, at each attempt; its result is returned. Only
            their end confirms that the file is complete.
        :param max_bytes: a larger file is refused; default: 100 MiB.
        :param max_seconds: from its first request to its last byte, with all repeats; default: 600.
        :param allow_private_addresses: let other hosts have an IP address that is not public;
            default: False.
        :raises FsmPdfUrlError: if the URL is missing or not allowed.
        :raises FsmPdfError: if the file is not a PDF, or too large.
        :raises FsmDownloadTimeoutError: after ``max_seconds``. No error has the URL, which may be
            signed.
        """
        from fsm_provider.api.downloads import Download

        download = Download(form, self._transport, self.settings.allow_http, **limits)
        return self._repeat(partial(download.fetch, read))

    def _repeat(self, attempt: Callable[[SecretStr], ResultT], is_write: bool = False) -> ResultT:
        retries = RetryState(self.settings.max_retries)
        has_reloaded = False
        while True:
            token = self._token
            try:
                return attempt(token)
            except errors.FsmUnauthorisedError as error:
                if has_reloaded:
                    raise
                self._reload_token(token, error)
                has_reloaded = True
                if self._token == token:
                    raise
            except errors.FsmError as error:
                if is_write:
                    raise
                delay = retries.delay_after(error)
                self.count_retry(delay)
                self._sleep(delay)

    def _reload_token(self, refused: SecretStr, error: errors.FsmUnauthorisedError) -> None:
        """Reload the token, unless another thread has done so since the request got its own."""
        with self._reloading:
            if self._reload_settings is None or self._token != refused:
                return
            try:
                settings = self._reload_settings()
            except Exception as failure:
                is_ours = isinstance(failure, errors.FsmError)  # whose text holds no secret
                why = failure if is_ours else type(failure).__name__
                logger.warning("the connection could not be read again (%s)", why)
                raise error from failure
            if settings.service != self.settings.service:
                raise errors.FsmConnectionEditedError(**vars(error)) from error
            self._token = settings.token

    def reserve(self) -> float:
        """Reserve the next time of ``max_requests_per_second``; return the seconds until then."""
        per_second = self.settings.max_requests_per_second
        if per_second is None:
            return 0.0
        delay = reserve_time(self.settings.base_url, per_second)
        self._metrics.timing("delay", delay, reason="throttle")
        return delay

    def count_retry(self, delay: float) -> None:
        self._metrics.incr("retries")
        self._metrics.timing("delay", delay, reason="retry")

    def _throttle(self) -> None:
        delay = self.reserve()
        if delay > 0:
            self._sleep(delay)
