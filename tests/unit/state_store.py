"""Where a task's ledger is, without an Airflow behind it: a state store, or a database."""

import json
from datetime import datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy

from fsm_provider.state.sql_tables import LEDGER
from fsm_provider.state.task_store import CURRENT

_attempts = count(1)
IN_AIRFLOW = pytest.mark.parametrize("store", ["in Airflow"], indirect=True)
"""Of tests that look at what is in Airflow's store, or change it."""


class MemoryStateStore:
    """``context["task_state_store"]``, kept by the test from one attempt to the next."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.sets = 0

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self.kept[key]) if key in self.kept else default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        assert value is not None
        self.sets += 1
        self.kept[key] = json.dumps(value)

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)

    @property
    def entries(self) -> dict[str, Any]:
        pages = [json.loads(page) for name, page in list(self.kept.items()) if name != CURRENT]
        return {key: entry for page in pages for key, entry in page.items()}


class DatabaseStore:
    """A SQLite file, which a test's attempts share."""

    CONN_ID = "ledger"

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ledger.db"
        self.engine = sqlalchemy.create_engine(f"sqlite:///{self.file}")

    @property
    def connection(self) -> str:
        """The Airflow connection, as JSON."""
        return json.dumps({"conn_type": "sqlite", "host": str(self.file)})

    @property
    def entries(self) -> dict[str, Any]:
        """What is stored, by key, without what changes when it is stored again."""
        if not sqlalchemy.inspect(self.engine).has_table(LEDGER.name):
            return {}
        with self.engine.connect() as connection:
            entries = [json.loads(row.entry) for row in connection.execute(sqlalchemy.select(LEDGER))]
        return {entry.pop("key"): entry for entry in entries}

    def refuse(self, statement: str) -> None:
        """Have all such statements fail from now on."""
        with self.engine.begin() as connection:
            connection.execute(
                sqlalchemy.text(
                    f"CREATE TRIGGER no_{statement} BEFORE {statement} ON {LEDGER.name} "
                    "BEGIN SELECT RAISE(FAIL, 'refused by the test'); END"
                )
            )


class TaskInstance:
    """What the operators and sensors ask of ``context["ti"]``."""

    def __init__(
        self,
        cleared: int = 0,
        map_index: int | None = -1,
        run_id: str = "run",
        task_id: str = "task",
        try_number: int = 1,
    ) -> None:
        self.id = f"{next(_attempts):08}"
        self.max_tries = 2 + 3 * cleared
        self.try_number = try_number
        self.dag_id = "dag"
        self.run_id = run_id
        self.task_id = task_id
        self.map_index = map_index
        self.pushed: dict[str, Any] = {}
        self.first_reschedule: datetime | None = None

    def get_first_reschedule_date(self, context: Any) -> datetime | None:
        return self.first_reschedule

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = json.loads(json.dumps(value))


def context_for(
    store: MemoryStateStore | DatabaseStore | None,
    *,
    cleared: int = 0,
    map_index: int = -1,
    run_id: str = "run",
    task_id: str = "task",
    try_number: int = 1,
) -> Any:
    """Make the context of one attempt; ``cleared`` counts how often the task was cleared before it."""
    context: dict[str, Any] = {"ti": TaskInstance(cleared, map_index, run_id, task_id, try_number)}
    if isinstance(store, DatabaseStore):
        # By which Airflow 2 tells attempts apart.
        dag_run = SimpleNamespace(id=int(context["ti"].id))
        return {**context, "dag_run": dag_run, "task_state_store": MemoryStateStore()}
    return context if store is None else {**context, "task_state_store": store}
