"""The page *Field service* in Airflow's UI: what is uncertain, what waits, what came."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.providers.common.compat.sdk import AirflowException, conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS
from fastapi import FastAPI, Form, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from jinja2 import Environment
from starlette.exceptions import HTTPException as StarletteHTTPException

from fsm_provider.api.errors import FsmInputError, FsmNoLedgerError, FsmRefusedError
from fsm_provider.api.settings import Settings
from fsm_provider.api.validation import parse_count, parse_past
from fsm_provider.hooks.connection import read_connection_outside_of_tasks, settings_from
from fsm_provider.plugins.page.access import MAY_EDIT, MAY_LOOK, dags_allowed, take_cookie
from fsm_provider.plugins.webhooks.events import count_deliveries
from fsm_provider.polling import admin as asset_admin
from fsm_provider.polling.admin import AssetStatus
from fsm_provider.polling.polls import time_of
from fsm_provider.user_errors import text_of
from fsm_provider.writes import admin as ledger_admin
from fsm_provider.writes.admin import UNCERTAIN, Settlement
from fsm_provider.writes.ledger import LedgerEntry

logger: logging.Logger = logging.getLogger(__name__)

Text = Annotated[str, Form()]
Flag = Annotated[bool, Form()]
Number = Annotated[int, Form()]
ResultT = TypeVar("ResultT")

MAX_ROWS = 100
DAYS = 30
NEWEST = 600  # entries of Airflow's store
SECONDS_PER_DAY = 86_400
TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    Path(__file__).with_suffix(".html").read_text()
)
POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'self'"
)


@dataclass(frozen=True, kw_only=True)
class LedgerSection:
    """What the page shows of the ledger to a user.

    :param absent_at: the connection of the database in which there is no ledger yet.
    :param found: the entries that the user looks for.
    :param done: how many writes are done, for each of the days that are shown.
    :param other: how many are uncertain or on their way.
    :param may_edit: the DAGs whose writes the user may settle.
    :param among: ends the sentence that there are none: among which entries, if not among all.
    :param web: scheme and host of the service's own page.
    """

    absent_at: str = ""
    uncertain: Sequence[LedgerEntry] = ()
    found: Sequence[LedgerEntry] = ()
    done: Sequence[int] = ()
    other: Sequence[int] = ()
    may_edit: frozenset[str] = frozenset()
    among: str = ""
    web: tuple[str, str] = ("", "")


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
        return RedirectResponse(f"../api/v2/auth/login?next={quote(str(request.url), safe='')}")
    return PlainTextResponse(status.phrase, status)


@app.get("/", dependencies=MAY_LOOK)
def show(user: GetUserDep, conn_id: str = "fsm_default", q: str = "") -> Response:
    return render(user, conn_id, q.strip())


@app.post("/settle", dependencies=MAY_EDIT)
def settle_write(
    user: GetUserDep,
    conn_id: Text,
    key: Text,
    owner: Text,
    why: Text,
    is_made: Flag,
    job_id: Text = "",
) -> Response:
    try:
        key = unquote(key)  # the form has it quoted: a browser changes the line ends of a plain one
        with ledger_admin.open_ledgers(conn_id) as ledgers:
            entry_in_ledger = ledger_admin.find_as_seen(ledgers, key, owner)
            _, entry = entry_in_ledger
            if not dags_allowed("PUT", user, [dag_of(entry)]):
                raise HTTPException(403)
            result_id = parse_count("id", job_id) if job_id else None
            settlement = Settlement.exists(result_id) if is_made else Settlement.does_not_exist()
            ledger_admin.settle(ledgers, entry_in_ledger, settlement, user.get_name(), why)
    except Exception as error:  # noqa: BLE001 - the 403 and what is a defect are raised again
        return render(user, conn_id, refused=text_for_user(error))
    return lead_back(conn_id)


@app.post("/begin", dependencies=MAY_EDIT)
def begin_anew(user: GetUserDep, conn_id: Text, asset_id: Number, since: Text) -> Response:
    try:
        assets = asset_admin.watched_assets(fsm_conn_id=conn_id)
        asset = next((asset for asset in assets if asset.asset_id == asset_id), None)
        if asset is None or not may_begin(user, asset):
            raise HTTPException(403)
        asset_admin.begin_anew(asset, parse_past("since", since))
    except Exception as error:  # noqa: BLE001 - the 403 and what is a defect are raised again
        return render(user, conn_id, refused=text_for_user(error))
    return lead_back(conn_id)


def lead_back(conn_id: str) -> Response:
    return RedirectResponse(f"./?conn_id={quote(conn_id, safe='')}", 303)


def render(user: Any, conn_id: str, q: str = "", refused: str = "") -> Response:
    """Return the page, with why something was refused. A section that cannot be read says so."""
    try:
        settings = settings_from(read_connection_outside_of_tasks(conn_id))
    except (AirflowException, FsmInputError) as error:
        logger.warning("The page: %s", error)
        raise HTTPException(404) from None
    today = int(time.time()) // SECONDS_PER_DAY
    days = range(today - DAYS + 1, today + 1)  # numbered from 1970
    labels = [f"{time_of(day * SECONDS_PER_DAY):%F}" for day in days]
    nonce = secrets.token_urlsafe(16)
    html = TEMPLATE.render(
        conn_id=conn_id,
        q=q,
        refused=refused,
        days=labels,
        by_day=lambda counts: [counts.get(label, 0) for label in labels],
        nonce=nonce,
        ledger=or_none(lambda: read_ledger(user, conn_id, settings, q, days)),
        assets=or_none(lambda: read_assets(user, conn_id)),
        deliveries=or_none(lambda: count_deliveries(conn_id)),
        time_of=time_of,
    )
    headers = {
        "Content-Security-Policy": POLICY.format(nonce),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(html, 409 if refused else 200, headers)


def read_ledger(
    user: Any, conn_id: str, settings: Settings, q: str, days: Sequence[int]
) -> LedgerSection:
    found = []
    try:
        with ledger_admin.open_ledgers(conn_id, NEWEST) as ledgers:
            uncertain = [entry for _, entry in ledgers.entries(UNCERTAIN, latest=MAX_ROWS)]
            if q:
                found = [entry for _, entry in ledgers.entries(text=q, latest=MAX_ROWS)]
            counts = ledgers.counts_by_day(min(days))
    except FsmNoLedgerError as error:
        logger.info("The page: %s", error)
        return LedgerSection(absent_at=error.place)
    dag_ids = {dag_of(entry) for entry in uncertain + found}
    may_see = dags_allowed("GET", user, dag_ids)
    among = f" among the newest {NEWEST:,} entries of Airflow's store"
    return LedgerSection(
        uncertain=newest_first(uncertain, may_see),
        found=newest_first(found, may_see),
        done=[counts[day, "done"] for day in days],
        other=[counts[day, "uncertain"] + counts[day, "sending"] for day in days],
        may_edit=frozenset(dags_allowed("PUT", user, dag_ids)),
        among="" if settings.state_conn_id else among,
        web=urlsplit(settings.web_url or "")[:2],
    )


def newest_first(entries: Sequence[LedgerEntry], dag_ids: set[str]) -> list[LedgerEntry]:
    """Return the entries of those DAGs; the one that was sent last comes first."""
    return [entry for entry in reversed(entries) if dag_of(entry) in dag_ids]


def dag_of(entry: LedgerEntry) -> str | None:
    """Return the id of the DAG that sent a write; None for a DAG of another Airflow.

    This Airflow does not know who may see a DAG of another one.
    """
    our_name = conf.get("fsm", "airflow_name", fallback="")
    if entry.sent_by.airflow in ("", our_name):
        return entry.sent_by.dag_id
    return None


def read_assets(user: Any, conn_id: str) -> list[tuple[AssetStatus, bool]]:
    """Return the connection's assets, each with whether the user may set its watermark."""
    assets = asset_admin.watched_assets(fsm_conn_id=conn_id)
    for asset in assets:
        if asset.unread and not isinstance(asset.unread, FsmNoLedgerError):
            raise asset.unread
    return [(asset, may_begin(user, asset)) for asset in assets]


def may_begin(user: Any, asset: AssetStatus) -> bool:
    """Return whether a user may edit all DAGs that an asset starts."""
    return bool(asset.dag_ids) and dags_allowed("PUT", user, asset.dag_ids) == asset.dag_ids


def or_none(read: Callable[[], ResultT]) -> ResultT | None:
    """Return what is read; None if that fails, which the log explains."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - the other sections stand
        logger.error("The page cannot be read in full: %s", text_of(error) or type(error).__name__)
        return None


def text_for_user(error: Exception) -> str:
    """Return why nothing was stored; raise what is a defect."""
    if isinstance(error, FsmRefusedError | FsmInputError):
        return str(error)
    text = text_of(error)
    if text is None:
        raise error
    logger.error("The page could not store what was found out: %s", text)
    return "This cannot be stored now. The log of the API server says why."
