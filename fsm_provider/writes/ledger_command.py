"""Look at a ledger in a SQL database, and settle what is uncertain: ``python -m fsm_provider ledger``."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fsm_provider.terminal import RefusedError, fail, print_table, printable, quiet_airflow
from fsm_provider.writes.ledger_arguments import make_parser

if TYPE_CHECKING:
    from fsm_provider.writes.ledger_table import LedgerTable, Stored

NESTED = ("subject", "result")
"""What a CSV file holds as JSON."""


def main(arguments: Sequence[str] | None = None, prog: str = "python -m fsm_provider ledger") -> int:
    """Do what the subcommand says; return the exit code described in ``--help``."""
    options = make_parser(prog).parse_args(arguments)
    try:
        with quiet_airflow():
            from airflow.providers.common.compat.sdk import AirflowException
            from sqlalchemy.exc import SQLAlchemyError

            from fsm_provider.api.errors import FsmInputError
            from fsm_provider.compat import hook_outside_of_tasks
            from fsm_provider.hooks.fsm import FsmHook
            from fsm_provider.state.sql_tables import check_tables, engine_for, has_tables, statements
            from fsm_provider.writes.ledger_table import LedgerTable
            from fsm_provider.writes.ledgers import max_flight
    except ImportError as error:
        return fail(2, f"{error}: install airflow-provider-fsm[sql] and the provider of the database")

    state_conn_id, engine = None, None
    try:
        with quiet_airflow():
            hook = FsmHook.outside_of_tasks(options.conn_id)
            service, state_conn_id = hook.service, hook.state_conn_id
            if state_conn_id is None:
                text = f"connection '{options.conn_id}' has no state_conn_id: its ledger is in Airflow"
                return fail(2, text)
            flight = max_flight(hook.valid_settings)
            engine = engine_for(state_conn_id, hook_outside_of_tasks)
        if options.command == "create-tables":
            if options.sql:
                print(statements(engine))
            else:
                with quiet_airflow():
                    check_tables(engine)
                print(f"The database of '{state_conn_id}' has the ledger's tables.")
            return 0
        if not has_tables(engine):
            return fail(1, f"the database of '{state_conn_id}' has no ledger yet: see create-tables")
        table = LedgerTable(engine, service, flight)
        return COMMANDS[options.command](table, options)
    except RefusedError as error:
        return fail(1, str(error))
    except SQLAlchemyError as error:
        # The text of others, such as of a URL that cannot be parsed, may hold a password.
        reason = getattr(error, "orig", None) or type(error).__name__
        return fail(2, f"connection '{state_conn_id}': {reason}")
    except FsmInputError as error:
        first, _, more = str(error).partition("\n")
        return fail(2, first + " what create-tables --sql prints" * bool(more))
    except (AirflowException, ImportError) as error:
        return fail(2, str(error))
    finally:
        if engine is not None:
            engine.dispose()


def _list(table: LedgerTable, options: argparse.Namespace) -> int:
    if options.settled:
        found = table.history(**_filters(options))
        columns = ("at", "action", "key", "who", "why")
    else:
        states = ("sent", "uncertain", "conflict") if options.uncertain else ()
        entries = table.find(**_filters(options), states=states)
        found = [entry.as_json() for entry in entries]
    if options.json:
        print(json.dumps(found, indent=2))
    elif options.settled and found:
        print_table(columns, ([one[name] or "-" for name in columns] for one in found))
    elif found:
        _print_entries(entries)
    return 0 if found else fail(1, "nothing was found")


def _settle(table: LedgerTable, options: argparse.Namespace) -> int:
    if (stored := _find_one(table, options, options.key)) is None:
        return 1
    result: dict[str, Any] | None = None
    if options.job_id is not None:
        result = {"id": options.job_id}
    elif options.answer is not None:
        result = {"answer": options.answer[0]}
    print(printable(table.settle(stored, result, force=options.force, who=options.by, why=options.why)))
    return 0


def _forget(table: LedgerTable, options: argparse.Namespace) -> int:
    found = [_find_one(table, options, key) for key in dict.fromkeys(options.key)]
    entries = [stored for stored in found if stored is not None]
    if len(entries) < len(found):
        return 1
    for stored in entries:
        if stored.row.state != "done":
            return fail(1, f"{stored}: is {stored.row.state}: settle it; nothing was deleted")
    for stored in entries:
        table.forget(stored, who=options.by, why=options.why)
        print(printable(f"{stored}: is forgotten, and would be sent again"))
    return 0


def _prune(table: LedgerTable, options: argparse.Namespace) -> int:
    from fsm_provider.state.sql_rows import utc_now

    before = utc_now() - timedelta(days=options.older_than)
    pruned, attempts = table.prune(
        before,
        with_keys=options.keys,
        dry_run=options.dry_run,
        who=options.by,
        why=f"older than {options.older_than} days{', keys too' * options.keys}",
    )
    for stored in pruned:
        print(printable(str(stored)))
    verb = "would be deleted" if options.dry_run else "were deleted"
    print(f"{len(pruned)} entries and {attempts} attempts {verb}, last written before {before:%F %T} UTC")
    return 0


def _export(table: LedgerTable, options: argparse.Namespace) -> int:
    found = [entry.as_json() for entry in table.find()]
    if options.format == "json":
        print(json.dumps(found, indent=2))
    elif found:
        writer = csv.DictWriter(sys.stdout, list(found[0]))
        writer.writeheader()
        for one in found:
            writer.writerow(one | {name: json.dumps(one[name]) for name in NESTED})
    return 0


def _filters(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("key", "dag_id", "run_id", "task_id", "once_per")}


def _find_one(table: LedgerTable, options: argparse.Namespace, key: str) -> Stored | None:
    """Return the only entry of a key; otherwise say what there is."""
    found = table.find(**{**_filters(options), "key": key})
    if len(found) == 1:
        _ = found[0].entry  # refused if it cannot be read
        return found[0]
    if found:
        _print_entries(found)
        fail(1, f"'{key}': {len(found)} entries have this key: add --dag, --run, --task or --once-per")
    else:
        fail(1, f"'{key}': nothing was found; nothing was changed")
    return None


def _print_entries(entries: Iterable[Stored]) -> None:
    print_table(
        ("key", "state", "job", "once per", "sent by", "at (UTC)", "subject"),
        (
            (
                stored.key,
                f"{stored.row.state}{', perhaps under way' * stored.under_way}",
                "-" if stored.job_id is None else str(stored.job_id),
                "run" if stored.row.scope else "key",
                str(stored.task),
                f"{stored.row.updated_at if stored.is_damaged else stored.sent_at:%F %T}",
                _subject(stored),
            )
            for stored in entries
        ),
    )


def _subject(stored: Stored) -> str:
    from fsm_provider.api.errors import describe

    if stored.is_damaged:
        return "was changed, and cannot be read"
    method, path, _, subject = stored.entry["sent"]
    return describe(subject) or f"{method} {path}"


COMMANDS = {"list": _list, "settle": _settle, "forget": _forget, "prune": _prune, "export": _export}
