"""Show where watchers of assets are, and set them back: ``python -m fsm_provider watermark``."""

from __future__ import annotations

from collections.abc import Sequence

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from fsm_provider.api.errors import FsmRefusedError
from fsm_provider.api.forms import format_time
from fsm_provider.api.redaction import printable
from fsm_provider.api.validation import parse_past
from fsm_provider.commands.cli import SubcommandParser, print_table, quiet_airflow
from fsm_provider.polling.admin import watched_assets
from fsm_provider.polling.polls import time_of

DESCRIPTION = (
    "Show how far the watchers of completed_forms have emitted forms, and set that to another time."
)
EXAMPLES: dict[str, tuple[str, ...]] = {
    "show": ("", "gas_safety"),
    "set": ("gas_safety 2026-01-05T08:00:00Z",),
}


def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider watermark"
) -> int:
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES, conn_id=False)
    one = parser.subcommand("show", "show the watermarks of assets")
    one.add_argument("name", metavar="NAME", nargs="?", help="only this asset's")
    text = (
        "have the watcher of an asset begin anew: it emits the forms that were updated since a time"
    )
    one = parser.subcommand("set", text)
    one.add_argument("name", metavar="NAME")
    one.add_argument("time", metavar="TIME", help="ISO 8601; without a zone UTC")
    options = parser.parse_args(arguments)
    since = parse_past("TIME", options.time) if options.command == "set" else None
    with quiet_airflow():
        if not AIRFLOW_V_3_0_PLUS:
            raise FsmRefusedError("assets of completed forms need Airflow 3.0 or newer")
        if not (assets := watched_assets(options.name)):
            named = f" named {options.name!r}" if options.name else ""
            raise FsmRefusedError(
                f"there is no asset of completed forms{named} in a DAG that Airflow has read"
            )
        if since is not None:
            for asset in assets:
                asset.begin_anew(since)
    if since is None:
        times = [[time_of(one.stored.get(key)) for key in ("watermark", "floor")] for one in assets]
        cells = [[format_time(at) if at else "-" for at in some] for some in times]
        rows = [[one.name, *some] for one, some in zip(assets, cells, strict=True)]
        print_table(("asset", "watermark (UTC)", "nothing before (UTC)"), rows)
    else:
        at = format_time(since)
        print(
            printable(
                f"{options.name}: begins anew at {at} within a minute, or once its watcher runs"
            )
        )
    return 0
