"""Which task is running. Airflow is imported when one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from uuid import uuid4

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


@dataclass(frozen=True)
class Task:
    """A task of a run: the same for all its attempts, also after it is cleared.

    :param airflow: ``airflow_name`` of ``[fsm]``, where several Airflows write to one database.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    airflow: str = ""

    @classmethod
    def from_context(cls, context: Context, task_id: str = "") -> Self:
        """Return the running task; without one, a task of that name in a run of its own."""
        if (ti := context.get("ti")) is None:
            return cls("", uuid4().hex, task_id)
        from airflow.providers.common.compat.sdk import conf

        map_index = ti.map_index if ti.map_index is not None else -1
        airflow = conf.get("fsm", "airflow_name", fallback="")
        return cls(ti.dag_id, ti.run_id, ti.task_id, map_index, airflow)

    @property
    def place(self) -> str:
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"

    def __str__(self) -> str:
        airflow = f" of Airflow {self.airflow}" if self.airflow else ""
        return f"task {self.place} of run {self.run_id} of DAG {self.dag_id}{airflow}"
