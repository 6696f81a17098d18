"""A task's state store without an Airflow behind it: what is kept is JSON, as there."""

import json
from datetime import datetime
from typing import Any

from fsm_provider.state.task_store import CURRENT


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
    store: MemoryStateStore | None,
    *,
    cleared: int = 0,
    map_index: int = -1,
    run_id: str = "run",
    task_id: str = "task",
    try_number: int = 1,
) -> Any:
    """Make the context of one attempt; ``cleared`` counts how often the task was cleared before it."""
    context: dict[str, Any] = {"ti": TaskInstance(cleared, map_index, run_id, task_id, try_number)}
    return context if store is None else {**context, "task_state_store": store}
