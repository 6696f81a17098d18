"""``python -m fsm_provider ledger``: look at what was sent once, and record what a person has found out."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from getpass import getuser
from typing import TYPE_CHECKING, NamedTuple

from fsm_provider.api.redaction import printable
from fsm_provider.terminal import RefusedError, SubcommandParser, fail, print_table, quiet_airflow

if TYPE_CHECKING:
    from fsm_provider.writes.ledger import Change, Row

DESCRIPTION = """\
Look at the ledger of a connection, and settle what is uncertain in it. The ledger is in the SQL database
that the connection names as state_conn_id; without one, in the database of Airflow 3.3 or newer. Only what
was sent to the connection's base URL and account is shown and changed."""
EXAMPLES = {
    "list": ("--uncertain", "--dag planned --run monday --json"),
    "settle": (
        'PM-7 --job-id 4711 --why "found in the service"',
        'PM-8 --not-created --why "not in the service, asked Jo"',
    ),
    "forget": ('PM-9 --why "cancelled, to be created again"',),
}


class Entry(NamedTuple):
    row: Row
    change: Callable[[Change], Row]


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider ledger") -> int:
    """Do what the subcommand says; return the exit code described in ``--help``."""
    options = _make_parser(prog).parse_args(arguments)
    try:
        with quiet_airflow():
            from airflow.providers.common.compat.sdk import AirflowException
            from sqlalchemy.exc import SQLAlchemyError

            from fsm_provider.api.errors import FsmInputError
    except ImportError as error:
        return fail(2, f"{error}: install airflow-provider-fsm[sql] and the provider of the database")
    try:
        with ExitStack() as stack:
            with quiet_airflow():
                entries = list(_open(options.conn_id, stack))
            return COMMANDS[options.command](entries, options)
    except RefusedError as error:
        return fail(1, str(error))
    except SQLAlchemyError as error:
        # The text of others, such as of a URL that cannot be parsed, may hold a password.
        text = [*getattr(error, "detail", ()), str(getattr(error, "orig", None) or type(error).__name__)]
        return fail(2, f"the ledger's database: {': '.join(text)}")
    except (FsmInputError, AirflowException, ImportError) as error:
        return fail(2, str(error))


def _open(conn_id: str, stack: ExitStack) -> Iterator[Entry]:
    from fsm_provider.compat import hook_outside_of_tasks
    from fsm_provider.hooks.fsm import FsmHook

    hook = FsmHook.outside_of_tasks(conn_id)
    service, state_conn_id = hook.settings.service, hook.settings.state_conn_id
    if state_conn_id is None:
        from fsm_provider.writes.airflow_rows import change_row, rows_in_airflow

        for place, row in rows_in_airflow(service):
            yield Entry(row, partial(change_row, place, row))
        return
    from fsm_provider.state.database import open_database
    from fsm_provider.writes.sql_ledger import SqlLedger, rows_of_service

    engine = open_database(state_conn_id, hook_outside_of_tasks)
    stack.callback(engine.dispose)
    for scope, row in rows_of_service(engine, service):
        ledger = SqlLedger(engine, service, scope)
        yield Entry(row, partial(ledger.change_one, row.id))


def _is_wanted(row: Row, options: argparse.Namespace) -> bool:
    wanted = {name: getattr(options, name) for name in ("dag_id", "run_id", "task_id")}
    if any(value is not None and getattr(row.by, name) != value for name, value in wanted.items()):
        return False
    return options.key is None or row.key == options.key


def _list(entries: list[Entry], options: argparse.Namespace) -> int:
    states = ("sending", "uncertain") if options.uncertain else ("sending", "uncertain", "free", "done")
    rows = [one.row for one in entries if one.row.state in states and _is_wanted(one.row, options)]
    if options.json:
        print(json.dumps([{**asdict(one), "result_id": one.result_id} for one in rows], indent=2))
    elif rows:
        print_table(
            ("key", "state", "id", "sent by", "at (UTC)", "what"),
            [
                (one.key, one.state, str(one.result_id or "-"), str(one.by), _time(one.sent_at), str(one))
                for one in rows
            ],
        )
    return 0 if rows else fail(1, "nothing was found")


def _settle(entries: list[Entry], options: argparse.Namespace) -> int:
    from fsm_provider.writes.ledger import settled

    row, change = _only(entries, options)
    if options.done and row.kind == "job" and row.state != "done":
        raise RefusedError(f"'{row.key}' is a job: give its id with --job-id")
    jobs = {
        one.row.result_id: one.row for one in entries if one.row.kind == "job" and one.row.state == "done"
    }
    if row.kind == "job" and (holder := jobs.get(options.job_id)) and holder.id != row.id:
        raise RefusedError(f"'{row.key}' was not settled: job {options.job_id} is that of key '{holder.key}'")
    if options.job_id is None and not options.done:
        result = None
    else:
        result = {} if options.done else {"id": options.job_id}
    who = _who(options, "not created" if result is None else "made")
    after = change(settled(row, result, who))
    if who not in (after.note or ""):
        raise RefusedError(f"'{row.key}' was not settled: {_why_not(after)}")
    print(printable(f"'{row.key}' is settled: {'nobody has made it' if result is None else 'it exists'}"))
    return 0


def _forget(entries: list[Entry], options: argparse.Namespace) -> int:
    from fsm_provider.writes.ledger import forgotten

    row, change = _only(entries, options)
    who = _who(options, "forgotten")
    after = change(forgotten(row, who))
    if who not in (after.note or ""):
        why_not = _why_not(after)
        if after.state == "done":
            why_not = f"a request may be on its way until {_time(after.lease_until)} UTC"
        raise RefusedError(f"'{row.key}' was not forgotten: {why_not}")
    print(printable(f"'{row.key}' is forgotten: it may be sent again"))
    return 0


def _only(entries: list[Entry], options: argparse.Namespace) -> Entry:
    if not (wanted := [one for one in entries if _is_wanted(one.row, options)]):
        raise RefusedError(f"there is no '{options.key}'")
    if len(wanted) > 1:
        tasks = "; ".join(str(one.row.by) for one in wanted)
        raise RefusedError(
            f"'{options.key}' was sent by {len(wanted)} tasks: narrow it with --dag, --run, --task: {tasks}"
        )
    return wanted[0]


def _why_not(row: Row) -> str:
    if row.state in ("sending", "uncertain") and row.lease_left > 0:
        return f"a request may be on its way for another {row.lease_left:.0f} s"
    return f"it is {row.state}{f', with id {row.result_id}' if row.result_id else ''}"


def _who(options: argparse.Namespace, what: str) -> str:
    return f"{what}, says {options.by} at {datetime.now(UTC):%F %T} UTC: {options.why}"


def _time(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%F %T}" if milliseconds else "-"


def _make_parser(prog: str) -> argparse.ArgumentParser:
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES)
    task = argparse.ArgumentParser(add_help=False)
    for name, text in (("dag", "DAG"), ("run", "run"), ("task", "task")):
        task.add_argument(f"--{name}", dest=f"{name}_id", metavar="ID", help=f"only of this {text}")
    who = argparse.ArgumentParser(add_help=False)
    who.add_argument("key", type=_text, metavar="KEY")
    user = _user()
    who.add_argument("--by", metavar="NAME", default=user, required=user is None, help="who you are")
    who.add_argument("--why", type=_text, metavar="TEXT", required=True, help="kept with the row")
    one = parser.subcommand("list", "show what was sent", task)
    one.add_argument("--key", type=_text, help="only of this key")
    one.add_argument("--uncertain", action="store_true", help="only what may exist or not")
    one.add_argument("--json", action="store_true", help="as JSON, with all that is known")
    text = "record what became of a write that is uncertain, after a look into the service"
    outcome = parser.subcommand("settle", text, task, who).add_mutually_exclusive_group(required=True)
    outcome.add_argument(
        "--job-id", "--id", type=_positive, metavar="N", help="it exists: tasks return this id"
    )
    outcome.add_argument("--done", action="store_true", help="it was carried out, and has no id")
    outcome.add_argument(
        "--not-created", action="store_true", help="nothing was written: it may be sent again"
    )
    parser.subcommand("forget", "have a write that is done sent again by the next attempt", task, who)
    return parser


def _user() -> str | None:
    try:
        return getuser()
    except (ImportError, KeyError, OSError):  # a container's user may have no name
        return None


def _text(text: str) -> str:
    if not (stripped := text.strip()):  # as the operators strip keys
        raise argparse.ArgumentTypeError("is empty")
    return stripped


def _positive(text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"should be a whole number, 1 or more, not {text!r}")
    return int(text)


COMMANDS = {"list": _list, "settle": _settle, "forget": _forget}
