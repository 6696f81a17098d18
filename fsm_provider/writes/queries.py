"""What commands and the page read of a connection's ledger, and what they change in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from fsm_provider.cli import RefusedError
from fsm_provider.writes.ledger import settled

if TYPE_CHECKING:
    from fsm_provider.api.settings import Settings
    from fsm_provider.writes.ledger import Change, Row
    from fsm_provider.writes.sql_ledger import SqlLedger, SqlLedgers
    from fsm_provider.writes.task_ledger import AirflowLedgers, TaskLedger

    Ledgers = SqlLedgers | AirflowLedgers
    Entry = tuple[SqlLedger | TaskLedger, Row]

UNCERTAIN = ("sending", "uncertain")


@contextmanager
def opened(settings: Settings) -> Iterator[Ledgers]:
    """Open the ledgers of a connection's service, in a process that has Airflow's database."""
    if settings.state_conn_id is None:
        from fsm_provider.writes.task_ledger import AirflowLedgers

        yield AirflowLedgers(settings.service)
        return
    from fsm_provider.compat import hook_on, read_connection_outside_of_tasks
    from fsm_provider.state.database import open_database
    from fsm_provider.writes.sql_ledger import SqlLedgers

    engine = open_database(settings.state_conn_id, lambda one: hook_on(read_connection_outside_of_tasks(one)))
    try:
        yield SqlLedgers(engine, settings.service)
    finally:
        engine.dispose()


def settle(ledgers: Ledgers, entry: Entry, is_made: bool, job_id: int | None, by: str, why: str) -> str:
    """Record what a person has found out about a write; return a sentence about it.

    :param job_id: of what is made; None if it has none.
    """
    row = entry[1]
    if is_made and job_id is None and row.kind == "job" and row.state != "done":
        raise RefusedError(f"'{row.key}' is a job: give its id with --job-id")
    for _, other in ledgers.rows(("done",), str(job_id)) if is_made and row.kind == "job" else ():
        if other.kind == "job" and other.result_id == job_id and (other.by, other.id) != (row.by, row.id):
            raise RefusedError(f"'{row.key}' was not settled: job {job_id} is that of key '{other.key}'")
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
        raise RefusedError(f"{refused}: a request may be on its way for another {after.lease_left:.0f} s")
    with_id = f", with id {after.result_id}" if after.result_id else ""
    raise RefusedError(f"{refused}: it is {after.state}{with_id}")
