"""The entries of a ledger in a database."""

import time

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from fsm_provider.state import sql_entries
from fsm_provider.state.sql_entries import SqlEntries
from fsm_provider.state.sql_tables import check_tables
from fsm_provider.state.task import Task

TASK = Task("dag", "run", "task", -1)
INTENT = {"generation": 0, "digest": "d", "sent": ["POST", "/", "", {}], "kind": "k", "by": TASK.as_dict()}


def test_a_database_that_stays_away_is_waited_for_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sql_entries, "RETRY_SECONDS", 0.3)
    engine = create_engine(f"sqlite:///{tmp_path}/ledger.db")
    check_tables(engine)
    scope = {"base_url": "http://fsm", "scope": "", "load_all": False}
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


def rename(engine, table, name):
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} RENAME TO {name}"))


def seconds_to_fail(function):
    start = time.monotonic()
    with pytest.raises(OperationalError):
        function()
    return time.monotonic() - start
