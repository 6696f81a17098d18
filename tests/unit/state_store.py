"""Where a task's ledger is, without an Airflow behind it: a state store, or a database."""

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy

from fsm_provider.state.schema import LEDGER
from fsm_provider.writes.sql_ledger import entry_from
from fsm_provider.writes.task_ledger import PAGE

_attempts = count(1)
IN_AIRFLOW = pytest.mark.parametrize("store", ["in Airflow"], indirect=True)
"""Of tests that look at what is in Airflow's store, or change it."""


class MemoryStateStore:
    """``context["task_state_store"]``, kept by the test from one attempt to the next."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.sets = 0
        self._is_refused: Callable[[Any], bool] | None = None

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self.kept:
            return default
        return json.loads(self.kept[key])

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        assert value is not None
        if self._is_refused is not None and self._is_refused(value):
            self._is_refused = None
            raise RuntimeError("no API server")
        self.sets += 1
        self.kept[key] = json.dumps(value)

    def refuse_once(self, is_refused: Callable[[Any], bool] = lambda _: True) -> None:
        """Refuse the next value of which this is so, as while the API server restarts."""
        self._is_refused = is_refused

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)

    @property
    def rows(self) -> dict[str, Any]:
        """What is stored of each write, by key, without what has its default."""
        rows = {}
        for name, page in list(self.kept.items()):
            if name.startswith(PAGE):
                for row in json.loads(page)["entries"].values():
                    rows[row["key"]] = {"state": "free", **row}
        return rows


class DatabaseStore:
    """A SQLite file, which a test's attempts share."""

    CONN_ID = "ledger"

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ledger.db"
        self.engine = sqlalchemy.create_engine(f"sqlite:///{self.file}")
        self.beside: dict[tuple[str, str, int], MemoryStateStore] = defaultdict(MemoryStateStore)
        """The task state stores, which such tasks have too, by run, task and map index."""

    @property
    def connection(self) -> str:
        """The Airflow connection, as JSON."""
        return json.dumps({"conn_type": "sqlite", "host": str(self.file)})

    @property
    def rows(self) -> dict[str, Any]:
        """What is stored of each write, by key."""
        if not sqlalchemy.inspect(self.engine).has_table(LEDGER.name):
            return {}
        query = sqlalchemy.select(LEDGER, sqlalchemy.literal(0).label("now"))
        with self.engine.connect() as connection:
            rows = map(entry_from, connection.execute(query).mappings().all())
        return {row.key: vars(row) for row in rows}

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
    """Make the context of an attempt.

    :param cleared: how often the task was cleared before it.
    """
    context: dict[str, Any] = {"ti": TaskInstance(cleared, map_index, run_id, task_id, try_number)}
    if isinstance(store, DatabaseStore):
        # By which Airflow 2 tells attempts apart.
        dag_run = SimpleNamespace(id=int(context["ti"].id))
        beside = store.beside[run_id, task_id, map_index]
        return {**context, "dag_run": dag_run, "task_state_store": beside}
    if store is not None:
        context["task_state_store"] = store
    return context
