"""Who may use the page: Airflow's login and permissions, and no page of another site."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.dag import DagModel
from airflow.providers.common.compat.sdk import conf
from fastapi import Depends, HTTPException, Request

TASK_INSTANCES = DagAccessEntity.TASK_INSTANCE


async def take_cookie(request: Request, call_next: Any) -> Any:
    """Give Airflow before 3.1, which reads the header alone, the token of the cookie."""
    token = request.cookies.get(COOKIE_NAME_JWT_TOKEN)
    if token and "authorization" not in request.headers:
        request.scope["headers"].append((b"authorization", f"Bearer {token}".encode()))
    return await call_next(request)


def check_origin(request: Request) -> None:
    """Refuse what the page of another site has a browser send: Airflow does not protect from that.

    A browser adds the cookie to such a request, but never the header ``Authorization``.
    """
    has_cookie = COOKIE_NAME_JWT_TOKEN in request.cookies
    has_header = "authorization" in request.headers
    if has_header and not has_cookie:
        return  # a program's
    if not _is_from_our_page(request):
        raise HTTPException(403)


def _is_from_our_page(request: Request) -> bool:
    """Return whether a browser says that our own page sends a request. If it says nothing: no."""
    site = request.headers.get("sec-fetch-site")
    if site:
        return site == "same-origin"
    # An older browser, or one without https.
    origin = urlsplit(request.headers.get("origin", "")).netloc
    if not origin:
        return False
    base_url = urlsplit(conf.get("api", "base_url", fallback="")).netloc
    return origin in (request.headers.get("host"), base_url)


MAY_LOOK = [Depends(requires_access_dag("GET", TASK_INSTANCES))]
MAY_EDIT = [Depends(check_origin), Depends(requires_access_dag("PUT", TASK_INSTANCES))]


def dags_allowed(
    method: Literal["GET", "PUT"], user: Any, dag_ids: Iterable[str | None]
) -> set[str]:
    """Return those DAGs whose task instances a user may see (GET) or edit (PUT); None is none."""
    details = {dag_id: DagDetails(id=dag_id) for dag_id in dag_ids if dag_id is not None}
    if details and conf.getboolean("core", "multi_team", fallback=False):
        team_names = DagModel.get_dag_id_to_team_name_mapping(list(details))
        for dag_id, team_name in team_names.items():
            details[dag_id].team_name = team_name
    is_authorized = partial(
        get_auth_manager().is_authorized_dag, method=method, access_entity=TASK_INSTANCES, user=user
    )
    return {dag_id for dag_id in details if is_authorized(details=details[dag_id])}
