"""The service's four endpoints, the PDF of a form and the jobs, as an ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import Depends, FastAPI, HTTPException
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from fsm_provider.testing import pages, parsing, wire
from fsm_provider.testing.listing import Criteria, CursorError, Listing, T
from fsm_provider.testing.pdf import pdf_for
from fsm_provider.testing.settings import Settings
from fsm_provider.testing.state import ServiceState, StoredForm


def create_app(settings: Settings, state: ServiceState, *, base_path: str) -> FastAPI:
    """Make the application, without faults."""
    endpoints = _Endpoints(settings, state)
    app = FastAPI(openapi_url=None, redirect_slashes=False)

    with_token = [Depends(endpoints.authorise)]
    app.add_api_route(
        f"{base_path}/assetDynamicFieldValues",
        endpoints.list_asset_dynamic_fields,
        dependencies=with_token,
    )
    app.add_api_route(
        f"{base_path}/properties/{{property_id}}/jobs",
        endpoints.create_job,
        methods=["POST"],
        dependencies=with_token,
    )
    app.add_api_route(f"{base_path}/forms", endpoints.list_forms, dependencies=with_token)
    app.add_api_route(
        f"{base_path}/forms/{{form_id}}/pdf",
        endpoints.form_pdf,
        dependencies=with_token,
    )
    app.add_api_route(
        f"{base_path}/settings/webhooks",
        endpoints.register_webhook,
        methods=["POST"],
        dependencies=with_token,
    )

    # The specification shows no path of these two.
    token_or_browser = [Depends(endpoints.authorise_unless_browser)]
    app.add_api_route(f"{base_path}/jobs", endpoints.list_jobs, dependencies=token_or_browser)
    app.add_api_route(
        f"{base_path}/jobs/{{job_id}}",
        endpoints.get_job,
        dependencies=token_or_browser,
    )
    return app


class _Endpoints:
    """The functions that respond to requests.

    FastAPI calls them in the thread of the server's event loop; those that list hold
    ``state.changed``, as a test may change records in its own thread.
    """

    def __init__(self, settings: Settings, state: ServiceState) -> None:
        self._settings = settings
        self._state = state

    async def authorise(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme == "Bearer" and token in self._settings.forbidden_tokens:
            raise HTTPException(403, "Forbidden")
        if scheme != "Bearer" or token != self._settings.token:
            raise HTTPException(401, "Unauthorised", headers={"WWW-Authenticate": "Bearer"})

    async def authorise_unless_browser(self, request: Request) -> None:
        if not _is_browser(request):
            await self.authorise(request)

    async def list_asset_dynamic_fields(self, request: Request) -> Response:
        return self._list(request, "assets", self._state.asset_dynamic_fields, dict)

    async def list_forms(self, request: Request) -> Response:
        query = request.query_params
        if self._settings.ignore_filters:
            query = QueryParams()

        equal = {name: query[name] for name in parsing.EQUAL_FILTERS if name in query}
        at_least = parsing.parse_lower_bounds(query, self._settings.parse_time)
        bounds = [(name, query[name]) for name in at_least]

        return self._list(
            request,
            "forms",
            self._state.forms,
            self._shown_form,
            criteria=(*equal.items(), *bounds),
            matches=lambda form: form.matches(equal, at_least),
        )

    def _shown_form(self, form: StoredForm) -> wire.Record:
        pdf_url = self._settings.pdf_url
        if pdf_url is None:
            return form.record
        return {**form.record, "formPDFURL": pdf_url(form.record["id"])}

    async def form_pdf(self, form_id: str) -> Response:
        try:
            form = self._state.form(int(form_id))
        except (ValueError, LookupError) as error:
            raise HTTPException(404, f"There is no form {form_id}") from error
        return Response(pdf_for(form.record, form.pdf), media_type="application/pdf")

    async def list_jobs(self, request: Request) -> Response:
        with self._state.changed:
            jobs = self._state.jobs
            if _is_browser(request):
                return HTMLResponse(pages.jobs_page(jobs.values()))
            return self._list(request, "forms", self._state.listed_jobs, jobs.__getitem__)

    async def get_job(self, job_id: str, request: Request) -> Response:
        with self._state.changed:
            job: wire.Record | None = None
            if wire.is_integer(job_id):
                job = self._state.jobs.get(int(job_id))
            if job is None:
                raise HTTPException(404, f"There is no job {job_id}")
            if not _is_browser(request):
                return JSONResponse(job)

            forms = [form.record for form in self._state.forms.records if form.job_id == job["id"]]
            return HTMLResponse(pages.job_page(job, forms))

    async def create_job(self, property_id: str, request: Request) -> Response:
        return await self._handle_once(request, partial(self._create_job, property_id, request))

    async def _create_job(self, property_id: str, request: Request) -> Response:
        if not wire.is_integer(property_id) or not self._state.has_property(int(property_id)):
            raise HTTPException(404, f"There is no property {property_id}")
        body = await parsing.read_job_body(request)
        job = self._state.add_job(int(property_id), body, {})
        return JSONResponse(job, status_code=201)

    async def register_webhook(self, request: Request) -> Response:
        return await self._handle_once(request, partial(self._register_webhook, request))

    async def _register_webhook(self, request: Request) -> Response:
        fields = parsing.parse_webhook(request.query_params, self._settings.event_types_style)
        return JSONResponse(self._state.add_webhook(fields))

    async def _handle_once(
        self, request: Request, handle: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Handle a write; one whose idempotency key was used is answered as it was first."""
        header = self._settings.idempotency_header
        if header is None or header not in request.headers:
            return await handle()

        key = request.headers[header]
        content = (str(request.url), await request.body())
        if key not in self._state.answers:
            response = await handle()
            self._state.answers[key] = (content, response)

        first_content, first_response = self._state.answers[key]
        if first_content != content:
            raise HTTPException(422, f"{header} {key} was sent with another request")
        return first_response

    def _list(
        self,
        request: Request,
        kind: wire.ListingKind,
        listing: Listing[T],
        show: Callable[[T], wire.Record],
        criteria: Criteria = (),
        matches: Callable[[T], bool] = lambda _: True,
    ) -> Response:
        """Return the page that a request asks for.

        :param show: makes the record that the response has of an element of the listing.
        """
        settings = self._settings
        query = request.query_params
        cursor = None
        if not settings.ignore_cursor:
            cursor = query.get(settings.cursor_param)
        size = parsing.parse_page_size(query, settings.page_size_param, settings.page_size)
        with self._state.changed:
            try:
                page = listing.page(
                    criteria,
                    matches,
                    cursor=cursor,
                    size=size,
                    string_cursors=wire.paginates_in_strings(kind, settings.dialect),
                    cursors_from_zero=settings.cursors_from_zero,
                )
            except CursorError as error:
                raise HTTPException(409, str(error)) from error

            records = [show(record) for record in page.records]
            now = settings.now().astimezone(settings.server_timezone)
            body = wire.envelope(kind, page, records, dialect=settings.dialect, now=now)
            return JSONResponse(body)


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")
