"""The ledgers of a connection, for people: look into them, settle what is uncertain, forget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from fsm_provider.api.errors import FsmRefusedError
from fsm_provider.writes import ledger as rules
from fsm_provider.writes.ledger import Change, Ledger, LedgerEntry, LedgerReader

Entry = tuple[Ledger, LedgerEntry]
"""An entry, and the ledger in which it is changed."""
UNCERTAIN = ("sending", "uncertain")


@contextmanager
def open_ledgers(fsm_conn_id: str, newest: int | None = None) -> Iterator[LedgerReader]:
    """Open the ledgers of a connection's service, in a process that has Airflow's database."""
    from fsm_provider.hooks.connection import (
        hook_on,
        read_connection_outside_of_tasks,
        settings_from,
    )

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


def settle(
    ledgers: LedgerReader, entry: Entry, is_made: bool, job_id: int | None, by: str, why: str
) -> str:
    """Record what a person has found out about a write; return a sentence about it.

    :param job_id: of what is made; None if it has none.
    """
    row = entry[1]
    if is_made and job_id is None and row.kind == "job" and row.state != "done":
        raise FsmRefusedError(f"'{row.key}' is a job: give its id")
    for _, other in (
        ledgers.entries(("done",), str(job_id)) if is_made and row.kind == "job" else ()
    ):
        if (
            other.kind == "job"
            and other.result_id == job_id
            and (other.sent_by, other.id) != (row.sent_by, row.id)
        ):
            raise FsmRefusedError(
                f"'{row.key}' was not settled: job {job_id} is that of key '{other.key}'"
            )
    who = says("made" if is_made else "not created", by, why)
    result = None if not is_made else {} if job_id is None else {"id": job_id}
    change(entry, partial(rules.settle, row, result, who), who, "settled")
    return f"'{row.key}' is settled: {'it exists' if is_made else 'nobody has made it'}"


def says(what: str, by: str, why: str) -> str:
    if not why.strip():
        raise FsmRefusedError("--why: is empty")
    return f"{what}, says {by} at {datetime.now(UTC):%F %T} UTC: {why.strip()}"


def change(entry: Entry, apply: Change, who: str, done: str) -> None:
    """Change a row, which notes who did so; a FsmRefusedError says why it was not changed."""
    ledger, row = entry
    refused = f"'{row.key}' was not {done}"
    try:
        after = ledger.change({row.id: apply})[row.id]
    except FsmRefusedError as error:
        raise FsmRefusedError(f"{refused}: {error}") from None
    if who in (after.note or ""):
        return
    if after.lease_left > 0 and (after.state == "done") == (done == "forgotten"):
        raise FsmRefusedError(
            f"{refused}: a request may be on its way for another {after.lease_left:.0f} s"
        )
    with_id = f", with id {after.result_id}" if after.result_id else ""
    raise FsmRefusedError(f"{refused}: it is {after.state}{with_id}")
