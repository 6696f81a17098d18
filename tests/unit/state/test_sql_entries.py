"""The entries of a ledger in a database."""

import time
from contextlib import nullcontext

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError

from fsm_provider.state import sql_entries
from fsm_provider.state.entries import SupersededError
from fsm_provider.state.sql_entries import SqlEntries
from fsm_provider.state.sql_tables import check_tables
from fsm_provider.state.task import Task

TASK = Task("dag", "run", "task", -1)
SENT = ["POST", "/", "2026-01-01T00:00:00+00:00", {}]
INTENT = {"generation": 0, "digest": "d", "sent": SENT, "kind": "k", "by": TASK.as_dict()}


def test_a_database_that_stays_away_is_waited_for_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sql_entries, "RETRY_SECONDS", 0.3)
    engine = create_engine(f"sqlite:///{tmp_path}/ledger.db")
    check_tables(engine)
    scope = {"base_url": "http://fsm", "scope": ""}
    entries = SqlEntries(engine, task=TASK, attempt="1", **scope)
    rename(engine, "fsm_ledger", "elsewhere")
    entries.put("key", INTENT)

    assert seconds_to_fail(entries.store) >= 0.3
    assert seconds_to_fail(entries.store) < 0.25
    rename(engine, "elsewhere", "fsm_ledger")
    entries.store()

    later = SqlEntries(engine, task=TASK, attempt="2", **scope)
    later.load(["key"])
    assert later.get("key") == INTENT
    rename(engine, "fsm_ledger", "elsewhere")
    assert seconds_to_fail(lambda: entries.load(["key"])) >= 0.3


def test_what_another_task_claims_while_a_transaction_is_repeated_is_not_replaced(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/ledger.db")
    check_tables(engine)
    scope = {"base_url": "http://fsm", "scope": ""}
    first, second = (SqlEntries(engine, task=TASK_OF[one], attempt=one, **scope) for one in "12")
    claim(first, "a", "1")
    first.store()
    claim(second, "a", "2")
    claim(second, "b", "2")
    failed = []

    @event.listens_for(engine, "before_cursor_execute")
    def fail_once(connection, cursor, statement, *args):
        if statement.startswith("INSERT INTO fsm_ledger ") and not failed:
            failed.append(statement)
            raise OperationalError(statement, {}, Exception("database is locked"))

    second.store()

    assert failed
    assert second.get("a")["by"] == TASK_OF["1"].as_dict()
    first.load(["a", "b"])
    assert [first.get(key)["by"]["run_id"] for key in "ab"] == ["1", "2"]


def test_a_claim_that_is_withdrawn_and_made_again_is_not_replaced(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/ledger.db")
    check_tables(engine)
    scope = {"base_url": "http://fsm", "scope": ""}
    first, second = (SqlEntries(engine, task=TASK_OF[one], attempt=one, **scope) for one in "12")
    claim(first, "a", "1")
    first.store()
    second.load(["a"])
    first.put("a", None)
    first.store()
    second.load(["a"])
    claim(first, "a", "1")
    first.store()

    claim(second, "a", "2")
    second.store()

    assert second.get("a")["by"] == TASK_OF["1"].as_dict()


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        ("b.000001", "c.000002", False),
        ("b.000001", "a.000002", False),  # begun by a scheduler whose clock is behind
        ("b.000003", "c.000001", False),  # the run was deleted and triggered again
        ("b.000002", "a.000001", True),
        ("b", "c.000001", False),  # of an earlier version of this provider
    ],
)
def test_only_an_attempt_that_began_before_the_latest_is_refused(tmp_path, before, after, is_refused):
    engine = create_engine(f"sqlite:///{tmp_path}/ledger.db")
    check_tables(engine)
    scope = {"base_url": "http://fsm", "scope": ""}
    SqlEntries(engine, task=TASK, attempt=before, **scope)

    with pytest.raises(SupersededError) if is_refused else nullcontext():
        SqlEntries(engine, task=TASK, attempt=after, **scope)


TASK_OF = {run: Task("dag", run, "task", -1) for run in "12"}


def claim(entries, key, run):
    entries.put(key, INTENT | {"by": TASK_OF[run].as_dict()})


def rename(engine, table, name):
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} RENAME TO {name}"))


def seconds_to_fail(function):
    start = time.monotonic()
    with pytest.raises(OperationalError):
        function()
    return time.monotonic() - start
