"""``python -m fsm_provider ledger``: look at what was sent once, and record what a person has found
out.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from getpass import getuser

from fsm_provider.api.errors import FsmRefusedError
from fsm_provider.api.redaction import printable
from fsm_provider.commands.cli import SubcommandParser, fail, print_table, quiet_airflow
from fsm_provider.writes.admin import (
    UNCERTAIN,
    Entry,
    change,
    open_ledgers,
    says,
    settle,
)
from fsm_provider.writes.ledger import LedgerEntry, LedgerReader

DESCRIPTION = """\
Look at the ledger of a connection, and settle what is uncertain in it. The ledger is in the SQL database
that the connection names as state_conn_id; without one, in the database of Airflow 3.3 or newer. Only what
was sent to the connection's base URL and account is shown and changed."""
EXAMPLES: dict[str, tuple[str, ...]] = {
    "list": ("--uncertain", "--limit 20", "--dag planned --run monday --json"),
    "settle": (
        'PM-7 --job-id 4711 --why "found in the service"',
        'PM-8 --not-created --why "not in the service, asked Jo"',
    ),
    "forget": ('PM-9 --why "cancelled, to be created again"',),
}


def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider ledger"
) -> int:
    options = _make_parser(prog).parse_args(arguments)
    with ExitStack() as stack:
        with quiet_airflow():
            ledgers = stack.enter_context(open_ledgers(options.conn_id))
            is_uncertain = options.command == "list" and options.uncertain
            entries = ledgers.entries(UNCERTAIN if is_uncertain else (), options.key)
        return COMMANDS[options.command](ledgers, entries, options)


def _is_wanted(row: LedgerEntry, options: argparse.Namespace) -> bool:
    asked = (options.dag_id, options.run_id, options.task_id, options.key)
    has = (row.sent_by.dag_id, row.sent_by.run_id, row.sent_by.task_id, row.key)
    return all(one is None or one == other for one, other in zip(asked, has, strict=True))


def _list(_: LedgerReader, entries: Sequence[Entry], options: argparse.Namespace) -> int:
    rows = [row for _, row in entries if _is_wanted(row, options)]
    if options.limit:
        rows = rows[-options.limit :]
    if options.json:
        print(
            json.dumps(
                [
                    {**asdict(one), "by": asdict(one.sent_by), "result_id": one.result_id}
                    for one in rows
                ],
                indent=2,
            )
        )
    elif rows:
        head = ("key", "state", "id", "sent by", "at (UTC)", "what")
        cells = []
        for row in rows:
            at = f"{datetime.fromtimestamp(row.sent_at / 1000, UTC):%F %T}" if row.sent_at else "-"
            cells.append(
                (row.key, row.state, str(row.result_id or "-"), str(row.sent_by), at, str(row))
            )
        print_table(head, cells)
    return 0 if rows else fail(1, "nothing was found")


def _settle(ledgers: LedgerReader, entries: Sequence[Entry], options: argparse.Namespace) -> int:
    given = not options.not_created, options.job_id, options.by, options.why
    print(printable(settle(ledgers, _only(entries, options), *given)))
    return 0


def _forget(_: LedgerReader, entries: Sequence[Entry], options: argparse.Namespace) -> int:
    from fsm_provider.writes.ledger import forget

    entry = _only(entries, options)
    who = says("forgotten", options.by, options.why)
    change(entry, partial(forget, entry[1], who), who, "forgotten")
    print(printable(f"'{options.key}' is forgotten: it may be sent again"))
    return 0


def _only(entries: Sequence[Entry], options: argparse.Namespace) -> Entry:
    if not (wanted := [one for one in entries if _is_wanted(one[1], options)]):
        raise FsmRefusedError(f"there is no '{options.key}'")
    if len(wanted) > 1:
        by = f"was sent by {len(wanted)} tasks: narrow it with --dag, --run, --task"
        raise FsmRefusedError(
            f"'{options.key}' {by}: {'; '.join(str(row.sent_by) for _, row in wanted)}"
        )
    return wanted[0]


def _make_parser(prog: str) -> argparse.ArgumentParser:
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES)
    task = argparse.ArgumentParser(add_help=False)
    for name, text in (("dag", "DAG"), ("run", "run"), ("task", "task")):
        task.add_argument(f"--{name}", dest=f"{name}_id", metavar="ID", help=f"only of this {text}")
    who = argparse.ArgumentParser(add_help=False)
    who.add_argument("key", type=str.strip, metavar="KEY")
    user = None
    with suppress(ImportError, KeyError, OSError):  # a container's user may have no name
        user = getuser()
    who.add_argument(
        "--by", metavar="NAME", default=user, required=user is None, help="who you are"
    )
    who.add_argument(
        "--why", type=str.strip, metavar="TEXT", required=True, help="kept with the row"
    )
    one = parser.subcommand("list", "show what was sent", task)
    one.add_argument("--key", type=str.strip, help="only of this key")
    one.add_argument("--uncertain", action="store_true", help="only what may exist or not")
    one.add_argument("--limit", type=_positive, metavar="N", help="only the N that were sent last")
    one.add_argument("--json", action="store_true", help="as JSON, with all that is known")
    text = "record what became of a write that is uncertain, after a look into the service"
    outcome = parser.subcommand("settle", text, task, who).add_mutually_exclusive_group(
        required=True
    )
    outcome.add_argument(
        "--job-id", "--id", type=_positive, metavar="N", help="it exists, with this id"
    )
    outcome.add_argument("--done", action="store_true", help="it was carried out, and has no id")
    outcome.add_argument(
        "--not-created", action="store_true", help="nothing was written: send it again"
    )
    parser.subcommand(
        "forget", "have a write that is done sent again by the next attempt", task, who
    )
    return parser


def _positive(text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"should be a whole number, 1 or more, not {text!r}")
    return int(text)


COMMANDS: dict[str, Callable[..., int]] = {"list": _list, "settle": _settle, "forget": _forget}
