"""A task's state store without an Airflow behind it: what is kept is JSON, as there."""

import json
from typing import Any

from tests.capabilities import STATE_STORE


class MemoryStateStore:
    """``context["task_state_store"]``, kept by the test from one try to the next."""

    def __init__(self) -> None:
        STATE_STORE.require()
        self.kept: dict[str, str] = {}
        self.sets = 0

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self.kept[key]) if key in self.kept else default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        assert value is not None
        self.sets += 1
        self.kept[key] = json.dumps(value)

    @property
    def entries(self) -> dict[str, Any]:
        pages = [json.loads(page) for page in self.kept.values()]
        return {key: entry for page in pages for key, entry in page.items()}


class TaskInstance:
    """What the operators ask of ``context["ti"]``."""

    def __init__(self, max_tries: int, map_index: int | None, run_id: str, task_id: str) -> None:
        self.max_tries = max_tries
        self.dag_id = "dag"
        self.run_id = run_id
        self.task_id = task_id
        self.map_index = map_index
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = json.loads(json.dumps(value))


def context_of(
    store: MemoryStateStore | None,
    *,
    cleared: int = 0,
    map_index: int = -1,
    run_id: str = "run",
    task_id: str = "task",
) -> Any:
    """Make the context of one try; ``cleared`` counts how often the task was cleared before it."""
    context: dict[str, Any] = {"ti": TaskInstance(2 + 3 * cleared, map_index, run_id, task_id)}
    return context if store is None else {**context, "task_state_store": store}
