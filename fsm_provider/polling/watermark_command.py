"""Show watermarks, and have forms handled again: ``python -m fsm_provider watermark``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.form_filter import format_time
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
    from fsm_provider.polling.dag_watermarks import DagWatermark
    from fsm_provider.polling.watched_assets import WatchedAsset

DESCRIPTION = """\
Show up to where completed forms were handled, and have some handled again: for the assets of completed_forms,
and for DAGs that keep a watermark with fsm_provider.watermark, in the database of the connection's
state_conn_id or in a Variable."""
EXAMPLES = {
    "show": ("", "my_dag"),
    "rewind": ("gas_safety --to 2026-01-05T08:00:00Z --dry-run", "my_dag --to 2026-01-05T08:00:00Z"),
    "replay": ("gas_safety --since 2026-01-05T08:00:00Z --until 2026-01-05T12:00:00Z --dry-run",),
}
MAX_SHOWN = 20
"""Forms that a dry run prints."""
HEAD = ("watermark", "is in", "at (UTC)", "remark")
FORM_COLUMNS = ("id", "formName", "lastUpdatedOnDateTime", "jobID", "propertyID")

Output = tuple[list[str], list[tuple[str, ...]]]
"""Lines, and below them a table, its head first."""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES)
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--in", dest="place", choices=("asset", "database", "variable"), help="where NAME is, if in several"
    )
    change = argparse.ArgumentParser(add_help=False)
    change.add_argument("name", metavar="NAME")
    change.add_argument("--dry-run", action="store_true", help="change nothing, print what would be")

    one = parser.subcommand("show", "show the watermarks of assets and of the connection's database", where)
    one.add_argument("name", metavar="NAME", nargs="?", help="only this one, which may be a Variable")

    text = "set a watermark back, so that the forms since then are handled again"
    one = parser.subcommand("rewind", text, where, change)
    one.add_argument("--to", type=_past, metavar="TIME", required=True, help="ISO 8601; without a zone UTC")
    one.add_argument(
        "--force", action="store_true", help="also set it forward, which skips forms; no asset's"
    )

    text = "have the watcher of an asset emit the forms again that were updated in a period"
    one = parser.subcommand("replay", text, change)
    one.add_argument("--since", type=_past, metavar="TIME", required=True, help="updated at or after it")
    one.add_argument("--until", type=_past, metavar="TIME", required=True, help="and before it")
    return parser


def _past(text: str) -> datetime:
    try:
        return parse_past("TIME", text)
    except FsmInputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider watermark") -> int:
    """Do what the subcommand says; return the exit code described in ``--help``."""
    options = make_parser(prog).parse_args(arguments)
    with quiet_airflow():
        from airflow.providers.common.compat.sdk import AirflowException
        from sqlalchemy.exc import SQLAlchemyError
    try:
        with quiet_airflow():
            lines, rows = asyncio.run(COMMANDS[options.command](options))
    except RefusedError as error:
        return fail(1, str(error))
    except SQLAlchemyError as error:
        # The text of others, such as of a URL that cannot be parsed, may hold a password.
        return fail(2, f"the database: {getattr(error, 'orig', None) or type(error).__name__}")
    except (AirflowException, FsmError, ImportError) as error:
        return fail(2, str(error))
    for line in lines:
        print(printable(line))
    if rows:
        print_table(rows[0], rows[1:])
    return 0


async def _show(options: argparse.Namespace) -> Output:
    if not (found := await _find(options)):
        raise RefusedError("nothing was found")
    rows = [
        (one.name, one.place, format_time(one.at) if one.at else "-", ", ".join(one.remarks)) for one in found
    ]
    return [], [HEAD, *rows]


async def _rewind(options: argparse.Namespace) -> Output:
    from fsm_provider.polling.dag_watermarks import DagWatermark

    found = await _find(options)
    if not found:
        raise RefusedError(f"'{options.name}': nothing was found")
    if len(found) > 1:
        raise RefusedError(f"'{options.name}': is in several places: add --in database or --in asset")
    (one,) = found
    if not isinstance(one, DagWatermark):
        return await _emit_again(options, options.to, None)
    if options.to > one.at and not options.force:
        at = format_time(one.at)
        raise RefusedError(f"'{one.name}' is at {at}: a later time would skip forms; add --force to do that")
    lines = [f"{one.name}: from {format_time(one.at)} to {format_time(options.to)}"]
    if not options.dry_run:
        if not one.replace(one.at, options.to):
            raise RefusedError(f"'{one.name}' has just been moved by a run; nothing was changed")
        lines.append("A run that has already begun sets it forward again when it succeeds.")
    return lines, []


async def _replay(options: argparse.Namespace) -> Output:
    if options.until <= options.since:
        raise RefusedError("--until: is not after --since")
    return await _emit_again(options, options.since, options.until)


async def _emit_again(options: argparse.Namespace, since: datetime, until: datetime | None) -> Output:
    """Have an asset's watcher emit forms again, or list those that it would."""
    from airflow.utils.session import create_session

    from fsm_provider.polling.watched_assets import watched_assets

    with create_session() as session:
        assets = await watched_assets(session, options.name, lock=not options.dry_run)
        if not assets:
            raise RefusedError(f"'{options.name}': no active asset of this name has been watched")
        (asset,) = assets
        replay = asset.replay(since, until)
        if options.dry_run:
            forms: list[Any] = await asset.preview(replay)
            rows = [tuple(str(form[key]) for key in FORM_COLUMNS) for form in forms[:MAX_SHOWN]]
            line = f"{asset.name}: {len(forms)} forms {replay} would be emitted again"
            return [line], [FORM_COLUMNS, *rows] if rows else []
        asset.request(replay)
    begins = "within a minute" if asset.has_watcher else "once a watcher runs, and none does: see show"
    return [f"{asset.name}: forms {replay} are emitted again. That begins {begins}."], []


async def _find(options: argparse.Namespace) -> list[DagWatermark | WatchedAsset]:
    """Return the watermarks that are asked for; a Variable only by its name, and if nothing else has it."""
    from airflow.providers.common.compat.sdk import AirflowNotFoundException
    from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
    from airflow.utils.session import create_session

    from fsm_provider.polling.dag_watermarks import watermark_in_variable, watermarks_in_database
    from fsm_provider.polling.watched_assets import watched_assets

    found: list[DagWatermark | WatchedAsset] = []
    if options.place in (None, "database"):
        try:
            stored = watermarks_in_database(options.conn_id)
        except AirflowNotFoundException:
            if options.place or options.conn_id != "fsm_default":
                raise
            stored = []  # nobody has asked for the default
        found += [one for one in stored if options.name in (None, one.name)]
    if options.place == "asset" or (options.place is None and AIRFLOW_V_3_0_PLUS):
        with create_session() as session:
            found += await watched_assets(session, options.name)
    if options.name is not None and not found and options.place in (None, "variable"):
        found += filter(None, [watermark_in_variable(options.name)])
    return found


COMMANDS = {"show": _show, "rewind": _rewind, "replay": _replay}
