"""``python -m fsm_provider ledger``: writes that were sent, and what people found out of them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from getpass import getuser
from typing import TYPE_CHECKING

from fsm_provider.api.errors import FsmRefusedError
from fsm_provider.api.redaction import printable
from fsm_provider.commands.cli import (
    ALL_HELP,
    SubcommandParser,
    all_conn_ids,
    fail,
    print_table,
    quiet_airflow,
)
from fsm_provider.writes.advice import TASK_OPTIONS

if TYPE_CHECKING:
    from fsm_provider.writes.ledger import EntryFilter, LedgerEntry
    from fsm_provider.writes.sql_ledger import SqlLedgers

DESCRIPTION = """\
Look at the ledger of a connection, and settle what is uncertain in it. The ledger is in the SQL
database that the connection names as state_conn_id; without one, in the database of Airflow 3.3 or
newer. Only what was sent to the connection's base URL and account is shown and changed."""
EXAMPLES: dict[str, tuple[str, ...]] = {
    "list": ("--uncertain", "--uncertain --all", "--limit 20", "--dag planned --run monday --json"),
    "settle": (
        'PM-7 --job-id 4711 --why "found in the service"',
        'PM-8 --not-created --why "not in the service, asked Jo"',
    ),
    "forget": ('PM-9 --why "cancelled, to be created again"',),
    "services": ("",),
    "add-service": ("'https://api.example.com/v1 (account north)'",),
    "rename-service": ("https://api.example.com/v1 https://api.example.com/v2",),
}
HEAD_OF_SERVICES = ("service", "connection")
NO_SERVICES = (
    "connection '{}' names no database as its state_conn_id, and without one each run has a "
    "ledger of its own: there are no services to tell apart"
)
NOTHING_FOUND = "nothing{} was found that was sent under the host and login that {} has now"
HEAD = ("connection", "key", "state", "id", "sent by", "at (UTC)", "what")


def main(arguments: Sequence[str], prog: str) -> int:
    options = _make_parser(prog).parse_args(arguments)
    return COMMANDS[options.command](options)


def _list(options: argparse.Namespace) -> int:
    with quiet_airflow():
        from fsm_provider.user_errors import text_of
        from fsm_provider.writes import admin
    conn_ids = all_conn_ids() if options.all else [options.conn_id]
    found = []
    exit_code = 0
    for conn_id in conn_ids:
        try:
            with quiet_airflow(), admin.open_ledgers(conn_id) as ledgers:
                selected = ledgers.entries(_filter_from(options), options.limit)
        except Exception as error:
            text = text_of(error)
            if text is None or not options.all:
                raise
            exit_code = fail(2, f"{conn_id}: {text}")
            continue
        found += [(conn_id, entry) for _, entry in selected]
    if options.json:
        records = [{**asdict(entry), "result_id": entry.result_id} for _, entry in found]
        print(json.dumps(records, indent=2))
    elif found:
        first_column = 0 if options.all else 1
        rows = [(conn_id, *_cells_for(entry))[first_column:] for conn_id, entry in found]
        print_table(HEAD[first_column:], rows)
    if exit_code or found:
        return exit_code
    uncertain = " uncertain" if options.uncertain else ""
    return fail(1, NOTHING_FOUND.format(uncertain, " or ".join(conn_ids)))


def _settle(options: argparse.Namespace) -> int:
    with quiet_airflow():
        from fsm_provider.writes import admin

        # If it is neither --not-created nor an id, it is --done.
        settlement = admin.Settlement(not options.not_created, options.job_id)
        with admin.open_ledgers(options.conn_id) as ledgers:
            entry = admin.find_only(ledgers, _filter_from(options))
            admin.settle(ledgers, entry, settlement, options.by, options.why)
    print(printable(f"'{options.key}' is settled: {settlement}"))
    return 0


def _forget(options: argparse.Namespace) -> int:
    with quiet_airflow():
        from fsm_provider.writes import admin

        with admin.open_ledgers(options.conn_id) as ledgers:
            entry = admin.find_only(ledgers, _filter_from(options))
            admin.forget(entry, options.by, options.why)
    print(printable(f"'{options.key}' is forgotten: it may be sent again"))
    return 0


def _add_service(options: argparse.Namespace) -> int:
    with _open_services(options) as ledgers:
        is_new = ledgers.add_service(options.new)
    if not is_new:
        text = "is a service of this ledger, maybe renamed: nothing was added"
        print(f"'{options.new}' {text}", file=sys.stderr)
    return _show_services(options)


def _rename_service(options: argparse.Namespace) -> int:
    with _open_services(options) as ledgers:
        ledgers.rename_service(options.old, options.new)
    return _show_services(options)


def _show_services(options: argparse.Namespace) -> int:
    with _open_services(options) as ledgers:
        services = ledgers.services()
    print_table(HEAD_OF_SERVICES, services)
    return 0


@contextmanager
def _open_services(options: argparse.Namespace) -> Iterator[SqlLedgers]:
    """Open the ledgers that tell services apart: those in a database."""
    with quiet_airflow():
        from fsm_provider.writes import admin, sql_ledger

        with admin.open_ledgers(options.conn_id) as ledgers:
            if not isinstance(ledgers, sql_ledger.SqlLedgers):
                raise FsmRefusedError(NO_SERVICES.format(options.conn_id))
            yield ledgers


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "settle": _settle,
    "forget": _forget,
    "services": _show_services,
    "add-service": _add_service,
    "rename-service": _rename_service,
}


def _filter_from(options: argparse.Namespace) -> EntryFilter:
    from fsm_provider.writes.ledger import EntryFilter

    given = vars(options)
    sent_by = {name: [given[name]] for _, name in TASK_OPTIONS if given[name] is not None}
    is_open = options.command == "list" and options.uncertain
    return EntryFilter(key=options.key, sent_by=sent_by, is_open=is_open)


def _cells_for(entry: LedgerEntry) -> tuple[str, ...]:
    """Return the cells of an entry, in the columns of ``HEAD`` but the first."""
    sent = datetime.fromtimestamp(entry.sent_at / 1000, UTC)
    sent_at = f"{sent:%F %T}" if entry.sent_at else "-"
    result_id = str(entry.result_id or "-")
    return entry.key, entry.state, result_id, str(entry.sent_by), sent_at, str(entry)


def _make_parser(prog: str) -> argparse.ArgumentParser:
    parser = SubcommandParser(prog, DESCRIPTION, EXAMPLES)
    # They narrow what is shown or changed to that of a task.
    task_options = argparse.ArgumentParser(add_help=False)
    for option, field in TASK_OPTIONS:
        text = f"only of tasks with this {field}"
        task_options.add_argument(option, dest=field, metavar="ID", help=text)
    person_options = _make_person_options()

    listing = parser.subcommand("list", "show what was sent", task_options)
    listing.add_argument("--key", type=str.strip, help="only of this key")
    listing.add_argument("--uncertain", action="store_true", help="only what may exist or not")
    listing.add_argument(
        "--limit", type=_positive, metavar="N", help="only the N that were sent last"
    )
    listing.add_argument("--json", action="store_true", help="as JSON, with all that is known")
    listing.add_argument("--all", action="store_true", help=ALL_HELP)

    text = "record what became of a write that is uncertain, after a look into the service"
    settling = parser.subcommand("settle", text, task_options, person_options)
    settlement = settling.add_mutually_exclusive_group(required=True)
    settlement.add_argument(
        "--job-id", "--id", type=_positive, metavar="N", help="it exists, with this id"
    )
    settlement.add_argument("--done", action="store_true", help="it was carried out, and has no id")
    settlement.add_argument(
        "--not-created", action="store_true", help="nothing was written: send it again"
    )

    text = "have a write that is done sent again by the next attempt"
    parser.subcommand("forget", text, task_options, person_options)

    parser.subcommand("services", "show the services that the ledger tells apart")
    text = "say that a service is none of those that the ledger knows"
    adding = parser.subcommand("add-service", text)
    adding.add_argument("new", type=_service_name, metavar="NAME")
    text = "say that a service has another host or login now: what was sent to it counts as sent"
    renaming = parser.subcommand("rename-service", text)
    renaming.add_argument("old", metavar="OLD")
    renaming.add_argument("new", type=_service_name, metavar="NEW")
    return parser


def _make_person_options() -> argparse.ArgumentParser:
    """Return the arguments that say what a person changes, who that is, and why."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("key", type=str.strip, metavar="KEY")
    user = None
    with suppress(ImportError, KeyError, OSError):  # a container's user may have no name
        user = getuser()
    options.add_argument(
        "--by", metavar="NAME", default=user, required=user is None, help="who you are"
    )
    options.add_argument(
        "--why", type=str.strip, metavar="TEXT", required=True, help="kept with the row"
    )
    return options


def _service_name(text: str) -> str:
    name = text.strip()
    if not name:
        raise argparse.ArgumentTypeError("is empty")
    return name


def _positive(text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"should be a whole number, 1 or more, not {text!r}")
    return int(text)
