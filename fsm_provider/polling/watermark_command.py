"""Show where watchers of assets are, and set them back: ``python -m fsm_provider watermark``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.forms import format_time
from fsm_provider.api.validation import parse_past
from fsm_provider.terminal import (
    RefusedError,
    SubcommandParser,
    fail,
    print_table,
    printable,
    quiet_airflow,
)

if TYPE_CHECKING:
    from airflow.models.asset import AssetModel
    from sqlalchemy.orm import Session

    from fsm_provider.state.assets import AssetStore

DESCRIPTION = """\
Show up to where the watchers of completed_forms have emitted forms, and set one to another time."""
EXAMPLES = {"show": ("", "gas_safety"), "set": ("gas_safety 2026-01-05T08:00:00Z",)}
HEAD = ("asset", "watermark (UTC)", "nothing before (UTC)", "remark")


def make_parser(prog: str) -> argparse.ArgumentParser:
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES, conn_id=False)
    one = parser.subcommand("show", "show the watermarks of assets")
    one.add_argument("name", metavar="NAME", nargs="?", help="only this asset's")
    text = "have the watcher of an asset begin anew: it emits the forms that were updated since a time"
    one = parser.subcommand("set", text)
    one.add_argument("name", metavar="NAME")
    one.add_argument("time", type=_past, metavar="TIME", help="ISO 8601; without a zone UTC")
    return parser


def _past(text: str) -> datetime:
    try:
        return parse_past("TIME", text)
    except FsmInputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider watermark") -> int:
    options = make_parser(prog).parse_args(arguments)
    with quiet_airflow():
        from airflow.providers.common.compat.sdk import AirflowException
        from sqlalchemy.exc import SQLAlchemyError
    try:
        with quiet_airflow():
            rows = asyncio.run(_run(options))
    except RefusedError as error:
        return fail(1, str(error))
    except SQLAlchemyError as error:
        # The text of others, such as of a URL that cannot be parsed, may hold a password.
        return fail(2, f"the database: {getattr(error, 'orig', None) or type(error).__name__}")
    except (AirflowException, FsmError, ImportError) as error:
        return fail(2, str(error))
    if options.command == "show":
        print_table(HEAD, rows)
        return 0
    begins = "once a watcher runs, and none does" if rows[0][-1] else "within a minute"
    print(printable(f"{options.name}: begins anew at {format_time(options.time)}, {begins}"))
    return 0


async def _run(options: argparse.Namespace) -> list[tuple[str, ...]]:
    from airflow.utils.session import create_session

    if not AIRFLOW_V_3_0_PLUS:
        raise RefusedError("assets of completed forms need Airflow 3.0 or newer")
    from fsm_provider.compat import read_connection_outside_of_tasks
    from fsm_provider.hooks.fsm import settings_from
    from fsm_provider.polling.tracker import WATERMARK
    from fsm_provider.polling.watcher import RESET, prefix_for, reset_id
    from fsm_provider.state.server_asset_store import active_assets, has_watcher

    rows: list[tuple[str, ...]] = []
    with create_session() as session:
        assets = active_assets(options.name, session)
        if not assets:
            named = f" named {options.name!r}" if options.name else ""
            raise RefusedError(f"there is no asset of completed forms{named} in a DAG that Airflow has read")
        for asset in assets:
            fsm_conn_id = unquote(urlsplit(asset.uri).netloc)
            prefix = prefix_for(settings_from(read_connection_outside_of_tasks(fsm_conn_id)).service)
            store = _store_of(asset, fsm_conn_id, session)
            stored = await store.aget(prefix + WATERMARK) or {}
            remarks = [] if has_watcher(asset) else ["no watcher runs"]
            if options.command == "set":
                reset = {"id": uuid4().hex, "time": options.time.timestamp()}
                await store.aset(prefix + RESET, reset)
            else:
                reset = await store.aget(prefix + RESET)
                if reset and reset_id(reset) != stored.get("reset"):
                    remarks.append(f"begins anew at {_shown(reset['time'])}")
            times = map(_shown, (stored.get("watermark"), stored.get("floor")))
            rows.append((asset.name, *times, ", ".join(remarks)))
    return rows


def _store_of(asset: AssetModel, fsm_conn_id: str, session: Session) -> AssetStore:
    from fsm_provider.compat import read_connection_outside_of_tasks
    from fsm_provider.polling.asset_stores import sql_store_for
    from fsm_provider.state.server_asset_store import ServerAssetStore

    if AIRFLOW_V_3_3_PLUS:
        return ServerAssetStore(asset, session)
    # In a thread: it ends the thread's session with Airflow's database.
    return sql_store_for(
        asset.name, fsm_conn_id, lambda one: asyncio.to_thread(read_connection_outside_of_tasks, one)
    )


def _shown(seconds: float | None) -> str:
    from fsm_provider.polling.polls import time_of

    time = time_of(seconds)
    return format_time(time) if time else "-"
