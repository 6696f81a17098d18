"""Show where watchers of assets are, and set them back: ``python -m fsm_provider watermark``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fsm_provider.api.errors import FsmNoLedgerError, FsmRefusedError
from fsm_provider.api.redaction import printable
from fsm_provider.commands.cli import SubcommandParser, fail, print_table, quiet_airflow
from fsm_provider.user_errors import text_of

if TYPE_CHECKING:
    from fsm_provider.polling.asset_status import AssetStatus
    from fsm_provider.polling.polls import Time

DESCRIPTION = (
    "Show how far the watchers of completed_forms have emitted forms, and set that to another time."
)
EXAMPLES: dict[str, tuple[str, ...]] = {
    "show": ("", "gas_safety"),
    "set": ("gas_safety 2026-01-05T08:00:00Z",),
}
HEAD = ("asset", "connection", "watermark (UTC)", "nothing before (UTC)")


def main(arguments: Sequence[str], prog: str) -> int:
    options = _make_parser(prog).parse_args(arguments)
    return COMMANDS[options.command](options)


def _show(options: argparse.Namespace) -> int:
    with quiet_airflow():
        assets = _find_assets(options.name)
        rows = list(map(_cells_for, assets))
    print_table(HEAD, rows)
    failures = [asset.read_error for asset in assets if asset.read_error]
    if not failures:
        return 0
    only_absent = all(isinstance(failure, FsmNoLedgerError) for failure in failures)
    reasons = {str(text_of(failure)) for failure in failures}
    return fail(1 if only_absent else 2, "; ".join(sorted(reasons)))


def _set(options: argparse.Namespace) -> int:
    from fsm_provider.api.forms import format_time
    from fsm_provider.api.validation import parse_past

    since = parse_past("TIME", options.time)
    with quiet_airflow():
        assets = _find_assets(options.name)
        from fsm_provider.polling.admin import begin_anew

        begin_anew(assets, since)
    begins = f"begins anew at {format_time(since)} within a minute, or once its watcher runs"
    print(printable(f"{options.name}: {begins}"))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {"show": _show, "set": _set}


def _find_assets(name: str | None) -> list[AssetStatus]:
    """Return the assets of that name, or all: at least one."""
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

    if not AIRFLOW_V_3_0_PLUS:
        raise FsmRefusedError("assets of completed forms need Airflow 3.0 or newer")
    from fsm_provider.polling.admin import watched_assets

    assets = watched_assets(name)
    if not assets:
        named = f" named {name!r}" if name else ""
        raise FsmRefusedError(
            f"there is no asset of completed forms{named} in a DAG that Airflow has read"
        )
    return assets


def _cells_for(asset: AssetStatus) -> tuple[str, ...]:
    """Return the cells of an asset, in the columns of ``HEAD``."""
    times = (asset.stored.watermark, asset.stored.floor)
    return asset.name, asset.fsm_conn_id, *map(_format_seconds, times)


def _format_seconds(seconds: Time | None) -> str:
    """Return a stored time as people read it, ``-`` if nothing is stored."""
    from fsm_provider.api.forms import format_time
    from fsm_provider.polling.polls import time_of

    time = time_of(seconds)
    return "-" if time is None else format_time(time)


def _make_parser(prog: str) -> argparse.ArgumentParser:
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES, conn_id=False)

    showing = parser.subcommand("show", "show the watermarks of assets")
    showing.add_argument("name", metavar="NAME", nargs="?", help="only this asset's")

    text = (
        "have the watcher of an asset begin anew: it emits the forms that were updated since a time"
    )
    setting = parser.subcommand("set", text)
    setting.add_argument("name", metavar="NAME")
    setting.add_argument("time", metavar="TIME", help="ISO 8601; without a zone UTC")
    return parser
