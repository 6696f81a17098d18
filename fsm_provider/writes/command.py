"""``python -m fsm_provider ledger``: look at what was sent once, and record what a person has found
out.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from getpass import getuser
from typing import TYPE_CHECKING

from fsm_provider.api.redaction import printable
from fsm_provider.cli import RefusedError, SubcommandParser, fail, print_table, quiet_airflow

if TYPE_CHECKING:
    from fsm_provider.writes.ledger import Change, Row
    from fsm_provider.writes.sql_ledger import SqlLedger, SqlLedgers
    from fsm_provider.writes.task_ledger import AirflowLedgers, TaskLedger

    Ledgers = SqlLedgers | AirflowLedgers
    Entry = tuple[SqlLedger | TaskLedger, Row]

DESCRIPTION = """\
Look at the ledger of a connection, and settle what is uncertain in it. The ledger is in the SQL database
that the connection names as state_conn_id; without one, in the database of Airflow 3.3 or newer. Only what
was sent to the connection's base URL and account is shown and changed."""
UNCERTAIN = ("sending", "uncertain")
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
            ledgers = stack.enter_context(opened(options.conn_id))
            is_uncertain = options.command == "list" and options.uncertain
            entries = ledgers.rows(UNCERTAIN if is_uncertain else (), options.key)
        return COMMANDS[options.command](ledgers, entries, options)


@contextmanager
def opened(fsm_conn_id: str, newest: int | None = None) -> Iterator[Ledgers]:
    """Open the ledgers of a connection's service, in a process that has Airflow's database."""
    from fsm_provider.compat import hook_on, read_connection_outside_of_tasks
    from fsm_provider.hooks.fsm import settings_from

    settings = settings_from(read_connection_outside_of_tasks(fsm_conn_id))
    if settings.state_conn_id is None:
        from fsm_provider.writes.task_ledger import AirflowLedgers

        yield AirflowLedgers(settings.service, newest)
        return
    from fsm_provider.state.database import open_database
    from fsm_provider.writes.sql_ledger import SqlLedgers

    engine = open_database(
        settings.state_conn_id, lambda one: hook_on(read_connection_outside_of_tasks(one))
    )
    try:
        yield SqlLedgers(engine, settings.service)
    finally:
        engine.dispose()


def _is_wanted(row: Row, options: argparse.Namespace) -> bool:
    asked = (options.dag_id, options.run_id, options.task_id, options.key)
    has = (row.by.dag_id, row.by.run_id, row.by.task_id, row.key)
    return all(one is None or one == other for one, other in zip(asked, has, strict=True))


def _list(_: Ledgers, entries: Sequence[Entry], options: argparse.Namespace) -> int:
    rows = [row for _, row in entries if _is_wanted(row, options)]
    if options.limit:
        rows = rows[-options.limit :]
    if options.json:
        print(json.dumps([{**asdict(one), "result_id": one.result_id} for one in rows], indent=2))
    elif rows:
        head = ("key", "state", "id", "sent by", "at (UTC)", "what")
        cells = []
        for row in rows:
            at = f"{datetime.fromtimestamp(row.sent_at / 1000, UTC):%F %T}" if row.sent_at else "-"
            cells.append((row.key, row.state, str(row.result_id or "-"), str(row.by), at, str(row)))
        print_table(head, cells)
    return 0 if rows else fail(1, "nothing was found")


def _settle(ledgers: Ledgers, entries: Sequence[Entry], options: argparse.Namespace) -> int:
    given = not options.not_created, options.job_id, options.by, options.why
    print(printable(settle(ledgers, _only(entries, options), *given)))
    return 0


def _forget(_: Ledgers, entries: Sequence[Entry], options: argparse.Namespace) -> int:
    from fsm_provider.writes.ledger import forgotten

    entry = _only(entries, options)
    who = says("forgotten", options.by, options.why)
    change(entry, partial(forgotten, entry[1], who), who, "forgotten")
    print(printable(f"'{options.key}' is forgotten: it may be sent again"))
    return 0


def _only(entries: Sequence[Entry], options: argparse.Namespace) -> Entry:
    if not (wanted := [one for one in entries if _is_wanted(one[1], options)]):
        raise RefusedError(f"there is no '{options.key}'")
    if len(wanted) > 1:
        by = f"was sent by {len(wanted)} tasks: narrow it with --dag, --run, --task"
        raise RefusedError(f"'{options.key}' {by}: {'; '.join(str(row.by) for _, row in wanted)}")
    return wanted[0]


def settle(
    ledgers: Ledgers, entry: Entry, is_made: bool, job_id: int | None, by: str, why: str
) -> str:
    """Record what a person has found out about a write; return a sentence about it.

    :param job_id: of what is made; None if it has none.
    """
    from fsm_provider.writes.ledger import settled

    row = entry[1]
    if is_made and job_id is None and row.kind == "job" and row.state != "done":
        raise RefusedError(f"'{row.key}' is a job: give its id")
    for _, other in ledgers.rows(("done",), str(job_id)) if is_made and row.kind == "job" else ():
        if (
            other.kind == "job"
            and other.result_id == job_id
            and (other.by, other.id) != (row.by, row.id)
        ):
            raise RefusedError(
                f"'{row.key}' was not settled: job {job_id} is that of key '{other.key}'"
            )
    who = says("made" if is_made else "not created", by, why)
    result = None if not is_made else {} if job_id is None else {"id": job_id}
    change(entry, partial(settled, row, result, who), who, "settled")
    return f"'{row.key}' is settled: {'it exists' if is_made else 'nobody has made it'}"


def says(what: str, by: str, why: str) -> str:
    if not why.strip():
        raise RefusedError("--why: is empty")
    return f"{what}, says {by} at {datetime.now(UTC):%F %T} UTC: {why.strip()}"


def change(entry: Entry, apply: Change, who: str, done: str) -> None:
    """Change a row, which notes who did so; a RefusedError says why it was not changed."""
    ledger, row = entry
    refused = f"'{row.key}' was not {done}"
    try:
        after = ledger.change({row.id: apply})[row.id]
    except RefusedError as error:
        raise RefusedError(f"{refused}: {error}") from None
    if who in (after.note or ""):
        return
    if after.lease_left > 0 and (after.state == "done") == (done == "forgotten"):
        raise RefusedError(
            f"{refused}: a request may be on its way for another {after.lease_left:.0f} s"
        )
    with_id = f", with id {after.result_id}" if after.result_id else ""
    raise RefusedError(f"{refused}: it is {after.state}{with_id}")


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
