"""The page *Field service* in Airflow's UI: what is uncertain, what waits, what came."""

import secrets
import time
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlencode

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS, AIRFLOW_V_3_3_PLUS
from fastapi import Depends, FastAPI, Form, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader
from starlette.exceptions import HTTPException as StarletteHTTPException

from fsm_provider.api.errors import FsmInputError, FsmRefusedError
from fsm_provider.api.redaction import printable
from fsm_provider.api.settings import job_page_url
from fsm_provider.api.validation import parse_choice, parse_count, parse_past
from fsm_provider.hooks.connection import fsm_conn_ids
from fsm_provider.plugins.page import URL_PREFIX
from fsm_provider.plugins.page.access import MAY_EDIT, MAY_LOOK, dags_allowed, take_cookie
from fsm_provider.plugins.page.reading import (
    NEWEST,
    ROWS,
    View,
    assets_for,
    dag_of,
    log,
    may_begin,
    or_none,
    owners_of,
    property_url,
    read_connections,
    read_ledgers,
    sees_dags,
    service_url,
)
from fsm_provider.plugins.page.waits import property_of, read_waits, rendered_place
from fsm_provider.plugins.webhooks.events import count_deliveries
from fsm_provider.polling import admin as asset_admin
from fsm_provider.polling.polls import time_of
from fsm_provider.polling.waiting import waiting_in
from fsm_provider.user_errors import text_of
from fsm_provider.writes import admin as ledger_admin
from fsm_provider.writes.admin import Settlement

Text = Annotated[str, Form()]
Number = Annotated[int, Form()]
Viewed = Annotated[View, Depends()]

DAYS = 30
SECONDS_PER_DAY = 86_400
OUTCOMES = ("exists_with_id", "exists", "does_not_exist")
TEMPLATES = Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    loader=FileSystemLoader(Path(__file__).parent),
)
POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'self'"
)


app: FastAPI = FastAPI(openapi_url=None)
if not AIRFLOW_V_3_1_PLUS:
    app.middleware("http")(take_cookie)


@app.exception_handler(StarletteHTTPException)
@app.exception_handler(RequestValidationError)
def refuse(request: Request, error: Exception) -> Response:
    """Say no more than the status, or lead a browser to the login."""
    status = HTTPStatus(getattr(error, "status_code", 400))
    wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if status == HTTPStatus.UNAUTHORIZED and wants_page:
        url = str(request.url)
        base_url = conf.get("api", "base_url", fallback="")
        if base_url:  # behind a proxy, the request has the address that only the proxy knows
            url = f"{base_url.rstrip('/')}{URL_PREFIX}/?{request.url.query}"
        return RedirectResponse(f"../api/v2/auth/login?next={quote(url, safe='')}")
    return PlainTextResponse(status.phrase, status)


@app.get("/", dependencies=MAY_LOOK)
def show(user: GetUserDep, view: Viewed) -> Response:
    return render(user, view)


@app.post("/settle", dependencies=MAY_EDIT)
def settle_write(
    user: GetUserDep,
    conn_id: Text,
    key: Text,
    owner: Text,
    why: Text,
    outcome: Text,
    job_id: Text = "",
    back_to: Text = "",
) -> Response:
    try:
        settlement = settlement_from(outcome, job_id.strip())
        key = unquote(key)  # the form has it quoted: a browser changes the line ends of a plain one
        with ledger_admin.open_ledgers(conn_id) as ledgers:
            entry_in_ledger = ledger_admin.find_as_seen(ledgers, key, owner)
            _, entry = entry_in_ledger
            if not dags_allowed("PUT", user, [dag_of(entry)]):
                raise HTTPException(403)
            ledger_admin.settle(ledgers, entry_in_ledger, settlement, user.get_name(), why)
    except Exception as error:  # noqa: BLE001 - the 403 and what is a defect are raised again
        return render(user, View(conn_id=back_to), refused=text_or_raise(error))
    return lead_back({"conn_id": back_to, "settled": entry.id})


def settlement_from(outcome: str, job_id: str) -> Settlement:
    """Return the choice of a person, which is one of three."""
    parse_choice("outcome", outcome, OUTCOMES)
    if outcome == "exists" and job_id:
        raise FsmInputError("id: was given for what has none: leave it out, or choose otherwise")
    takes_id = outcome == "exists_with_id" or job_id
    result_id = parse_count("id", job_id) if takes_id else None
    return Settlement(outcome != "does_not_exist", result_id)


@app.post("/begin", dependencies=MAY_EDIT)
def begin_anew(
    user: GetUserDep, conn_id: Text, asset_id: Number, since: Text, back_to: Text = ""
) -> Response:
    try:
        assets = asset_admin.watched_assets(fsm_conn_id=conn_id)
        asset = next((asset for asset in assets if asset.asset_id == asset_id), None)
        if asset is None or not may_begin(user, asset):
            raise HTTPException(403)
        asset_admin.begin_anew([asset], parse_past("since", since))
    except Exception as error:  # noqa: BLE001 - the 403 and what is a defect are raised again
        return render(user, View(conn_id=back_to), refused=text_or_raise(error))
    return lead_back({"conn_id": back_to})


def lead_back(query: dict[str, str]) -> Response:
    return RedirectResponse(f"./?{urlencode(query)}", 303)


def render(user: Any, view: View, refused: str = "") -> Response:
    """Return the page, with why something was refused. A section that cannot be read says so."""
    view = view.stripped()
    assets = or_none(asset_admin.watched_assets)
    listed = set(fsm_conn_ids())
    listed.update(asset.fsm_conn_id for asset in assets or ())
    asked = [view.conn_id] if view.conn_id else sorted(listed) or ["fsm_default"]
    settings, broken = read_connections(asked, listed)
    is_conn_unknown = view.conn_id not in ("", *settings, *broken)
    now = time.time()
    today = int(now) // SECONDS_PER_DAY
    days = range(today - DAYS + 1, today + 1)  # numbered from 1970
    labels = [f"{time_of(day * SECONDS_PER_DAY):%F}" for day in days]
    ledgers = read_ledgers(user, settings, view)
    job_types = ("SchedulerJob", "DagProcessorJob", "TriggererJob")
    running = or_none(lambda: asset_admin.running_jobs(*job_types))
    waits = None if running is None else or_none(lambda: read_waits(user, view, running))
    nonce = secrets.token_urlsafe(16)
    html = TEMPLATES.get_template("page.html").render(
        view=view,
        refused=printable(refused),
        listed=sorted(listed.union(settings)),
        settings=settings,
        broken=broken,
        is_conn_unknown=is_conn_unknown,
        days=labels,
        now=now,
        nonce=nonce,
        newest=NEWEST if AIRFLOW_V_3_3_PLUS else None,
        rows=ROWS,
        ledgers=ledgers,
        written=lambda *states: [
            sum(ledgers.written[day, state] for state in states) for day in days
        ],
        waits=waits,
        owners=or_none(lambda: owners_of(ledgers, waits.shown if waits else ())) or {},
        assets=None if assets is None else assets_for(user, view, assets),
        by_day=lambda counts: [counts.get(label, 0) for label in labels],
        deliveries=or_none(lambda: count_deliveries(*settings)),
        time_of=time_of,
        property_url=property_url,
        service_url=service_url,
        job_page=job_page_url,
        running=running,
        waiting_in=waiting_in,
        property_of=property_of,
        rendered_place=rendered_place,
        may_begin=lambda asset: may_begin(user, asset),
        sees_dags=lambda asset: sees_dags(user, asset),
    )
    status = 404 if is_conn_unknown else 200
    headers = {
        "Content-Security-Policy": POLICY.format(nonce),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(html, 409 if refused else status, headers)


def text_or_raise(error: Exception) -> str:
    """Return why nothing was stored; raise what is a defect."""
    if isinstance(error, FsmRefusedError | FsmInputError):
        return str(error)
    if isinstance(error, AirflowNotFoundException):
        raise HTTPException(404) from None
    if text_of(error) is None:
        raise error
    log(error, "What a user entered cannot be stored")
    return "This cannot be stored now. The log of the API server says why."
