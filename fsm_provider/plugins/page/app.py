"""The page *Field service* in Airflow's UI: what is uncertain, what waits, what came."""

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from airflow.providers.common.compat.sdk import AirflowException, conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_1_PLUS
from fastapi import Depends, FastAPI, Form, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from jinja2 import Environment
from starlette.exceptions import HTTPException as StarletteHTTPException

from fsm_provider.api.errors import FsmInputError, FsmRefusedError
from fsm_provider.api.settings import Settings
from fsm_provider.api.validation import parse_count, parse_past
from fsm_provider.hooks.connection import read_connection_outside_of_tasks, settings_from
from fsm_provider.plugins.webhooks.events import deliveries
from fsm_provider.polling.admin import AssetStatus, watched_assets
from fsm_provider.polling.polls import time_of
from fsm_provider.user_errors import text_of
from fsm_provider.writes.admin import UNCERTAIN, open_ledgers, settle
from fsm_provider.writes.ledger import LedgerEntry

logger: logging.Logger = logging.getLogger(__name__)

Text = Annotated[str, Form()]
Flag = Annotated[bool, Form()]

MAX_ROWS = 100
DAYS = 30
NEWEST = 600  # entries of Airflow's store
TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    Path(__file__).with_suffix(".html").read_text()
)
POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'self'"
)
TASK = DagAccessEntity.TASK_INSTANCE

app: FastAPI = FastAPI(openapi_url=None)


if not AIRFLOW_V_3_1_PLUS:  # reads the header alone

    @app.middleware("http")
    async def take_cookie(request: Request, call_next: Any) -> Any:
        if "authorization" not in request.headers and (
            token := request.cookies.get(COOKIE_NAME_JWT_TOKEN)
        ):
            request.scope["headers"].append((b"authorization", f"Bearer {token}".encode()))
        return await call_next(request)


@app.exception_handler(StarletteHTTPException)
@app.exception_handler(RequestValidationError)
def refuse(request: Request, error: Exception) -> Response:
    """Say no more than the status, or lead a browser to the login."""
    status = HTTPStatus(getattr(error, "status_code", 400))
    if (
        status == 401
        and request.method == "GET"
        and "text/html" in request.headers.get("accept", "")
    ):
        return RedirectResponse(f"../api/v2/auth/login?next={quote(str(request.url), safe='')}")
    return PlainTextResponse(status.phrase, status)


def check_origin(request: Request) -> None:
    """Refuse what the page of another site sends: Airflow has no protection of its own."""
    headers = request.headers
    if "authorization" in headers and COOKIE_NAME_JWT_TOKEN not in request.cookies:
        return
    ours = headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="")).netloc
    site, origin = headers.get("sec-fetch-site"), urlsplit(headers.get("origin", "")).netloc
    if (site != "same-origin") if site else (not origin or origin not in ours):
        raise HTTPException(403)


def allowed(method: Any, user: Any, dag_ids: Iterable[str | None]) -> set[str | None]:
    """Return those DAGs whose task instances a user may see (GET) or edit (PUT)."""
    details = {one: DagDetails(id=one) for one in dag_ids if one is not None}
    if details and conf.getboolean("core", "multi_team", fallback=False):
        for one, team in DagModel.get_dag_id_to_team_name_mapping(list(details)).items():
            details[one].team_name = team
    may = get_auth_manager().is_authorized_dag
    return {
        one
        for one in details
        if may(method=method, access_entity=TASK, details=details[one], user=user)
    }


def may_begin(user: Any, asset: AssetStatus) -> bool:
    return bool(asset.dag_ids) and allowed("PUT", user, asset.dag_ids) == asset.dag_ids


def dag_of(row: LedgerEntry) -> str | None:
    """Return the id of the DAG; None for that of another Airflow: this one does not know who may
    see it.
    """
    return (
        row.sent_by.dag_id
        if row.sent_by.airflow in ("", conf.get("fsm", "airflow_name", fallback=""))
        else None
    )


def said_of(error: Exception) -> str:
    if isinstance(error, FsmRefusedError | FsmInputError):
        return str(error)
    if (text := text_of(error)) is None:
        raise error
    logger.error("The page could not store what was found out: %s", text)
    return "This cannot be stored now. The log of the API server says why."


def settings_of(conn_id: str) -> Settings:
    try:
        return settings_from(read_connection_outside_of_tasks(conn_id))
    except (AirflowException, FsmInputError) as error:
        logger.warning("The page: %s", error)
        raise HTTPException(404) from None


def attempted(read: Callable[[], Any]) -> Any:
    """Return what is read; None if that fails, which the log explains."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - the other sections stand
        logger.error("The page cannot be read in full: %s", text_of(error) or type(error).__name__)
        return None


@app.get("/", dependencies=[Depends(requires_access_dag("GET", TASK))])
def show(user: GetUserDep, conn_id: str = "fsm_default", q: str = "") -> Response:
    return page(user, conn_id, q.strip())


def page(user: Any, conn_id: str, q: str = "", refused: str = "") -> Response:
    settings = settings_of(conn_id)
    today = int(time.time()) // 86_400
    days = {day: f"{time_of(day * 86_400):%F}" for day in range(today - DAYS + 1, today + 1)}

    def ledger() -> dict[str, Any]:
        with open_ledgers(conn_id, NEWEST) as ledgers:
            uncertain = [row for _, row in ledgers.entries(UNCERTAIN, latest=MAX_ROWS)][::-1]
            found = [row for _, row in ledgers.entries(text=q, latest=MAX_ROWS)][::-1] if q else []
            counts = ledgers.counts_by_day(min(days))
        dag_ids = {dag_of(row) for row in uncertain + found}
        newest = f" among the newest {NEWEST:,} entries of Airflow's store"
        may_see, may_edit = (allowed(method, user, dag_ids) for method in ("GET", "PUT"))
        return {
            "uncertain": [row for row in uncertain if dag_of(row) in may_see],
            "found": [row for row in found if dag_of(row) in may_see],
            "done": [counts[day, "done"] for day in days],
            "other": [counts[day, "uncertain"] + counts[day, "sending"] for day in days],
            "may_edit": may_edit,
            "among": "" if settings.state_conn_id else newest,
            "web": urlsplit(settings.web_url or "")[:2],
        }

    nonce = secrets.token_urlsafe(16)
    html = TEMPLATE.render(
        conn_id=conn_id,
        q=q,
        refused=refused,
        days=[*days.values()],
        by_day=lambda counts: [counts.get(day, 0) for day in days.values()],
        nonce=nonce,
        ledger=attempted(ledger),
        assets=attempted(
            lambda: [(one, may_begin(user, one)) for one in watched_assets(fsm_conn_id=conn_id)]
        ),
        endpoints=attempted(lambda: deliveries(conn_id)),
        at=time_of,
    )
    headers = {"Content-Security-Policy": POLICY.format(nonce), "Cache-Control": "no-store"}
    return HTMLResponse(
        html, 409 if refused else 200, {**headers, "X-Content-Type-Options": "nosniff"}
    )


EDIT = [Depends(check_origin), Depends(requires_access_dag("PUT", TASK))]


@app.post("/settle", dependencies=EDIT)
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
        with open_ledgers(conn_id) as ledgers:  # a browser would change line ends in a plain key
            entries = [
                one for one in ledgers.entries(UNCERTAIN, unquote(key)) if one[1].owner == owner
            ]
            if not entries:
                raise FsmRefusedError(f"'{unquote(key)}' has changed meanwhile: look again")
            if not allowed("PUT", user, [dag_of(entries[0][1])]):
                raise HTTPException(403)
            made = parse_count("id", job_id) if job_id else None
            settle(ledgers, entries[0], is_made, made, user.get_name(), why)
    except Exception as error:  # noqa: BLE001 - what is a defect is raised again
        return page(user, conn_id, refused=said_of(error))
    return RedirectResponse(f"./?conn_id={quote(conn_id, safe='')}", 303)


@app.post("/begin", dependencies=EDIT)
def begin_anew(
    user: GetUserDep, conn_id: Text, asset_id: Annotated[int, Form()], since: Text
) -> Response:
    try:
        mine = [one for one in watched_assets(fsm_conn_id=conn_id) if one.asset_id == asset_id]
        if not mine or not may_begin(user, mine[0]):
            raise HTTPException(403)
        mine[0].begin_anew(parse_past("since", since))
    except Exception as error:  # noqa: BLE001 - what is a defect is raised again
        return page(user, conn_id, refused=said_of(error))
    return RedirectResponse(f"./?conn_id={quote(conn_id, safe='')}", 303)
