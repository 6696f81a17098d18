"""Show assets' watermarks, and have forms emitted again: ``python -m fsm_provider watermark``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

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

DESCRIPTION = """\
Show up to where the watchers of completed_forms have emitted forms, and have them emit some again."""
EXAMPLES = {
    "show": ("", "gas_safety"),
    "rewind": ("gas_safety --to 2026-01-05T08:00:00Z --dry-run",),
    "replay": ("gas_safety --since 2026-01-05T08:00:00Z --until 2026-01-05T12:00:00Z --dry-run",),
}
MAX_SHOWN = 20
"""Forms that a dry run prints."""
HEAD = ("asset", "at (UTC)", "remark")
FORM_COLUMNS = ("id", "formName", "lastUpdatedOnDateTime", "jobID", "propertyID")

Output = tuple[list[str], list[tuple[str, ...]]]
"""Lines, and below them a table, its head first."""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES, conn_id=False)
    change = argparse.ArgumentParser(add_help=False)
    change.add_argument("name", metavar="NAME")
    change.add_argument("--dry-run", action="store_true", help="change nothing, print what would be")

    one = parser.subcommand("show", "show the watermarks of assets")
    one.add_argument("name", metavar="NAME", nargs="?", help="only this asset's")

    text = "have the watcher of an asset emit the forms again that were updated since a time"
    one = parser.subcommand("rewind", text, change)
    one.add_argument("--to", type=_past, metavar="TIME", required=True, help="ISO 8601; without a zone UTC")

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
    from airflow.utils.session import create_session

    from fsm_provider.polling.watched_assets import watched_assets

    with create_session() as session:
        found = await watched_assets(session, options.name)
    if not found:
        raise RefusedError("nothing was found")
    rows = [(one.name, format_time(one.at) if one.at else "-", ", ".join(one.remarks)) for one in found]
    return [], [HEAD, *rows]


async def _rewind(options: argparse.Namespace) -> Output:
    return await _emit_again(options, options.to, None)


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
        await asset.request(replay)
    begins = "within a minute" if asset.has_watcher else "once a watcher runs, and none does: see show"
    return [f"{asset.name}: forms {replay} are emitted again. That begins {begins}."], []


COMMANDS = {"show": _show, "rewind": _rewind, "replay": _replay}
