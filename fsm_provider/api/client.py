"""The only place that sends: one request at a time, tried again where that is safe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar, Unpack

from pydantic import SecretStr

from fsm_provider.api import endpoints
from fsm_provider.api.downloads import Download, Downloads
from fsm_provider.api.drafts import JobCreate, JobOrder, WebhookCreate, check
from fsm_provider.api.endpoints import Endpoint
from fsm_provider.api.errors import (
    FsmError,
    FsmInputError,
    FsmRegistrationMismatchError,
    FsmResponseError,
    FsmServerError,
    FsmUnauthorisedError,
    FsmUncertainWriteError,
)
from fsm_provider.api.forms import FormFilter, FormFilters, matching_forms
from fsm_provider.api.inputs import MAX_PDF_BYTES, read_path
from fsm_provider.api.models import AssetDynamicField, Form, Job, Page, Record, Webhook
from fsm_provider.api.pagination import DEFAULT_MAX_PAGES, CursorPaginator
from fsm_provider.api.reading import parse_json, read_page, read_record
from fsm_provider.api.retry import Attempts, RetryPolicy
from fsm_provider.api.settings import Settings
from fsm_provider.api.throttle import throttle_for
from fsm_provider.api.transport import Call, Transport

logger: logging.Logger = logging.getLogger(__name__)

_records = attrgetter("data")

ResultT = TypeVar("ResultT")
RecordT = TypeVar("RecordT", bound=Record)
Params = Mapping[str, Any]

LONG_WAIT = 5.0
"""Seconds from which on a wait for the throttle is worth a line in the log."""


class FsmClient:
    """The service's operations, over kept-alive connections.

    :param settings: where the service is and what it leaves open.
    :param reload_token: asked for the token once after a 401; the request is repeated only if it
        gives another one.
    :param retry_policy: replaces the one that ``settings.max_retries`` makes.
    :param sleep: waits so many seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        reload_token: Callable[[], SecretStr] | None = None,
        retry_policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self._token = settings.token
        self._reload_token = reload_token
        self._retry_policy = retry_policy or RetryPolicy(max_retries=settings.max_retries)
        self._sleep = sleep
        self._transport = Transport(settings)
        self._downloads = Downloads(self._transport, settings, self._wait_for_our_turn)

    def __enter__(self) -> FsmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def list_forms(
        self,
        *,
        params: Params | None = None,
        max_pages: int = DEFAULT_MAX_PAGES,
        **filters: Unpack[FormFilters],
    ) -> Iterator[Form]:
        """List completed forms page by page, in the service's order (4.3).

        :param filters: as :class:`~fsm_provider.api.forms.FormFilter` takes them; each is also
            checked on this side.
        :param params: query parameters that the specification does not show.
        :param max_pages: a longer listing is an error.
        :raises FsmInputError: at once, naming a filter that is not of its type.
        :raises FsmError: from the iteration.
        """
        wanted = FormFilter(**filters)
        listing = endpoints.LIST_FORMS
        pages = self.pages(
            listing.path, listing.response, {**(params or {}), **wanted.params()}, max_pages=max_pages
        )
        return chain.from_iterable(
            matching_forms(pages, wanted) if wanted.as_dict() else map(_records, pages)
        )

    def list_asset_dynamic_fields(
        self, *, params: Params | None = None, max_pages: int = DEFAULT_MAX_PAGES
    ) -> Iterator[AssetDynamicField]:
        """List asset dynamic fields page by page (4.1).

        :param params: query parameters, none of which the specification shows.
        :param max_pages: a longer listing is an error.
        :raises FsmError: from the iteration.
        """
        listing = endpoints.LIST_ASSET_DYNAMIC_FIELDS
        pages = self.pages(listing.path, listing.response, params, max_pages=max_pages)
        return chain.from_iterable(map(_records, pages))

    def create_job(self, property_id: int | str, job: JobCreate | dict[str, Any]) -> Job:
        """Create a job on a property (4.2). Sent again only where nothing can have happened.

        :param property_id: the property's identifier.
        :param job: the draft; a dictionary is checked first.
        :raises FsmInputError: before anything is sent, naming each bad field.
        :raises FsmUncertainWriteError: where the job may exist all the same.
        :raises FsmError: where it does not.
        """
        order = check(JobOrder, {"property_id": property_id, "job": job}, "")
        return self._create(
            endpoints.CREATE_JOB, path=order.path, json=order.job.body(), subject=order.subject
        )

    def register_webhook(
        self,
        webhook: WebhookCreate | dict[str, Any],
        *,
        on_registered: Callable[[Webhook], None] | None = None,
    ) -> list[Webhook]:
        """Register a webhook (4.4): with the style ``separate`` one registration per event type.

        :param webhook: the registration; a dictionary is checked first.
        :param on_registered: given each registration before the next is sent, as its signing secret
            may be shown only once.
        :raises FsmInputError: before anything is sent, naming each bad field.
        :raises FsmRegistrationMismatchError: where the service registered other event types.
        :raises FsmUncertainWriteError: where the registration may exist all the same.
        :raises FsmError: where it does not.
        """
        style = self.settings.event_types_style
        registered = []
        for part in check(WebhookCreate, webhook, "webhook").requests(style):
            registration = self._create(
                endpoints.REGISTER_WEBHOOK,
                path=endpoints.REGISTER_WEBHOOK.path,
                params=part.query(style),
                subject=part.subject,
                confidential=part.confidential,
            )
            registered.append(registration)
            if on_registered:
                on_registered(registration)
            _compare(registration, asked=part.event_types)
        return registered

    def paginate(
        self,
        path: str,
        params: Params | None = None,
        model: type[RecordT] | None = None,
        *,
        max_pages: int = DEFAULT_MAX_PAGES,
    ) -> Iterator[Any]:
        """List the records of any path that answers with the envelope of 2.5.

        :param path: begins with ``/`` and holds no query.
        :param params: query parameters, sent again with each page.
        :param model: what each record is read into; None gives dictionaries.
        :param max_pages: a longer listing is an error.
        :raises FsmInputError: at once, for a path of another form.
        :raises FsmError: from the iteration.
        """
        pages = self.pages(read_path(path), model, params, max_pages=max_pages)
        return chain.from_iterable(map(_records, pages))

    def request(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        json: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send any request and give the parsed JSON of its answer, None where there is no body.

        Only GET, HEAD and OPTIONS are ever repeated after they may have reached the service.

        :param path: begins with ``/`` and holds no query.
        :param headers: further headers, e.g. ``X-API-VERSION``.
        :raises FsmInputError: at once, for a path of another form or a header that is the client's own.
        :raises FsmError: for any other end.
        """
        if any(name.lower() == "authorization" for name in headers or {}):
            raise FsmInputError("headers: Authorization is made of the connection's token")
        call = Call(method.upper(), read_path(path), params, json, headers or {})
        return self._send(call, lambda body: parse_json(body) if body else None)

    def _create(self, endpoint: Endpoint[RecordT], **call: Any) -> RecordT:
        version = self.settings.api_version
        headers = {"X-API-VERSION": version} if endpoint.versioned and version else {}
        read = partial(read_record, model=endpoint.response, timezone=self.settings.server_timezone)
        return self._send(Call(endpoint.method, headers=headers, **call), lambda body: read(parse_json(body)))

    def pages(
        self,
        path: str,
        model: type[Record] | None = None,
        params: Params | None = None,
        *,
        max_pages: int = DEFAULT_MAX_PAGES,
    ) -> Iterator[Page[Any]]:
        """List page by page; what :meth:`paginate` takes its records from."""
        settings = self.settings
        sent = dict(params or {})
        if settings.page_size_param and settings.page_size:
            sent.setdefault(settings.page_size_param, settings.page_size)
        paginator = CursorPaginator(
            settings.cursor_param, start=sent.pop(settings.cursor_param, None), max_pages=max_pages
        )
        listing = self._transport.prepared(Call("GET", path, sent))

        def next_page() -> Page[Any]:
            read = partial(
                read_page, model=model, number=paginator.page_number, timezone=settings.server_timezone
            )
            page: Page[Any] = self._send(listing.with_query(paginator.params), read)
            paginator.advance(page)
            return page

        while not paginator.finished:
            yield next_page()  # kept in no variable: while one page is fetched, the last one is gone

    def download_pdf(
        self,
        form: Form,
        read: Callable[[Iterator[bytes]], ResultT],
        *,
        max_bytes: int = MAX_PDF_BYTES,
        allow_private_addresses: bool = False,
    ) -> ResultT:
        """Fetch the PDF of a form (2.3). The token goes to the service's own scheme, host and port alone.

        :param form: with its ``formPDFURL``.
        :param read: is given the pieces of the file at each attempt; what it returns is the result. Until it
            has had the last piece, the file may turn out not to be whole.
        :param max_bytes: a larger file is refused.
        :param allow_private_addresses: let another host than the service's have an address that is not
            public.
        :raises FsmAddressError: where there is no address, or one that nothing is sent to.
        :raises FsmFileError: where it is no PDF, or too large.
        :raises FsmError: for any other end; none of them names the address, which may be signed.
        """
        download = Download.of(form, max_bytes, allow_private_addresses)
        return self._repeated(lambda: self._downloads.fetch(download, self._token, read))

    def _send(self, call: Call, read: Callable[[bytes], ResultT]) -> ResultT:
        return self._repeated(lambda: self._attempt(call, read))

    def _repeated(self, attempt: Callable[[], ResultT]) -> ResultT:
        attempts, reloaded = Attempts(self._retry_policy), False
        while True:
            try:
                return attempt()
            except FsmUnauthorisedError:
                if reloaded or not self._token_changed():
                    raise
                reloaded = True
            except FsmError as error:
                self._sleep(attempts.delay_after(error))

    def _token_changed(self) -> bool:
        if self._reload_token is None:
            return False
        token = self._reload_token()
        changed = token != self._token
        self._token = token
        return changed

    def _wait_for_our_turn(self) -> None:
        per_second = self.settings.max_requests_per_second
        if not per_second:
            return
        delay = throttle_for(self.settings.base_url).reserve(per_second)
        if delay >= LONG_WAIT:
            logger.info("waiting %.1f s: max_requests_per_second is %g", delay, per_second)
        self._sleep(delay)

    def _attempt(self, call: Call, read: Callable[[bytes], ResultT]) -> ResultT:
        self._wait_for_our_turn()
        attempted_at = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            return read(self._transport.exchange(call, self._token))
        except FsmServerError as error:
            if not call.writes:
                raise
            reason = str(error)
        except FsmResponseError as error:
            if not call.writes:
                raise FsmResponseError(f"{call}: {error}") from None
            reason = str(error)
        raise FsmUncertainWriteError(call.method, call.path, reason, attempted_at, call.subject)


def _compare(registration: Webhook, *, asked: list[str]) -> None:
    echoed = registration.event_types
    if echoed is None:
        logger.warning(
            "webhook %s was registered, but the answer does not say for which event types", registration.id
        )
    elif not isinstance(echoed, list) or set(map(str, echoed)) != set(asked):
        raise FsmRegistrationMismatchError(
            f"webhook {registration.id} was registered for {echoed} instead of {asked}: "
            "set event_types_style on the connection to what the service reads, and delete this one there",
            webhook_id=registration.id,
        )
