"""Show where watchers of assets are, and set them back: ``python -m fsm_provider watermark``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from airflow.providers.common.compat.sdk import AirflowException, conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.forms import format_time
from fsm_provider.api.redaction import printable
from fsm_provider.api.validation import parse_past
from fsm_provider.cli import RefusedError, SubcommandParser, fail, print_table, quiet_airflow
from fsm_provider.compat import read_connection_outside_of_tasks
from fsm_provider.hooks.fsm import settings_from
from fsm_provider.polling.asset_stores import SqlAssetStore
from fsm_provider.polling.polls import time_of
from fsm_provider.polling.tracker import WATERMARK
from fsm_provider.polling.watcher import RESET, prefix_for

if TYPE_CHECKING:
    from airflow.models.asset import AssetModel
    from sqlalchemy.orm import Session

    from fsm_provider.polling.watcher import AssetStore

DESCRIPTION = "Show how far the watchers of completed_forms have emitted forms, and set that to another time."
EXAMPLES = {"show": ("", "gas_safety"), "set": ("gas_safety 2026-01-05T08:00:00Z",)}


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider watermark") -> int:
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES, conn_id=False)
    one = parser.subcommand("show", "show the watermarks of assets")
    one.add_argument("name", metavar="NAME", nargs="?", help="only this asset's")
    text = "have the watcher of an asset begin anew: it emits the forms that were updated since a time"
    one = parser.subcommand("set", text)
    one.add_argument("name", metavar="NAME")
    one.add_argument("time", metavar="TIME", help="ISO 8601; without a zone UTC")
    options = parser.parse_args(arguments)
    try:
        since = parse_past("TIME", options.time) if options.command == "set" else None
        with quiet_airflow():
            rows = asyncio.run(_run(options.name, since))
    except RefusedError as error:
        return fail(1, str(error))
    except SQLAlchemyError as error:
        # The text of others, such as of a URL that cannot be parsed, may hold a password.
        return fail(2, f"the database: {getattr(error, 'orig', None) or type(error).__name__}")
    except (AirflowException, FsmError, ImportError) as error:
        return fail(2, str(error))
    if since is None:
        print_table(("asset", "watermark (UTC)", "nothing before (UTC)"), rows)
    else:
        at = format_time(since)
        print(printable(f"{options.name}: begins anew at {at} within a minute, or once its watcher runs"))
    return 0


async def _run(name: str | None, since: datetime | None) -> list[tuple[str, ...]]:
    if not AIRFLOW_V_3_0_PLUS:
        raise RefusedError("assets of completed forms need Airflow 3.0 or newer")
    from airflow.models.asset import AssetModel
    from airflow.utils.session import create_session

    rows: list[tuple[str, ...]] = []
    query = select(AssetModel).where(AssetModel.active.has(), AssetModel.uri.like("fsm://%/forms/%"))
    if name is not None:
        query = query.where(AssetModel.name == name)
    with create_session() as session:
        for asset in session.scalars(query.order_by(AssetModel.name)).all():
            fsm_conn_id = unquote(urlsplit(asset.uri).netloc)
            prefix = prefix_for(settings_from(read_connection_outside_of_tasks(fsm_conn_id)).service)
            store = store_of(asset, fsm_conn_id, session)
            if since is not None:
                await store.aset(prefix + RESET, {"id": uuid4().hex, "time": since.timestamp()})
            stored = await store.aget(prefix + WATERMARK) or {}
            times = [time_of(stored.get(key)) for key in ("watermark", "floor")]
            rows.append((asset.name, *(format_time(time) if time else "-" for time in times)))
    if not rows:
        named = f" named {name!r}" if name else ""
        raise RefusedError(f"there is no asset of completed forms{named} in a DAG that Airflow has read")
    return rows


def store_of(asset: AssetModel, fsm_conn_id: str, session: Session) -> AssetStore:
    if AIRFLOW_V_3_3_PLUS:
        return ServerAssetStore(asset, session)
    # In a thread: it ends the thread's session with Airflow's database.
    read = asyncio.to_thread
    return SqlAssetStore(asset.name, fsm_conn_id, lambda one: read(read_connection_outside_of_tasks, one))


class ServerAssetStore:
    """What Airflow 3.3 and newer store with an active asset, for a process that has Airflow's database."""

    def __init__(self, asset: AssetModel, session: Session) -> None:
        from airflow.state import AssetScope, get_state_backend

        if backend := conf.get("workers", "state_store_backend", fallback=""):
            raise FsmInputError(f"only workers read what is in {backend}, state_store_backend of airflow.cfg")
        self._backend: Any = get_state_backend()
        self._scope, self._session = AssetScope(asset_id=asset.id), session

    async def aget(self, key: str) -> Any:
        text = self._backend.get(self._scope, key, session=self._session)
        return None if text is None else json.loads(text)

    async def aset(self, key: str, value: Any) -> None:
        self._backend.set(self._scope, key, json.dumps(value), session=self._session)
