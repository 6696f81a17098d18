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
        ti = context.get("ti")
        if ti is None:
            return cls(dag_id="", run_id=uuid4().hex, task_id=task_id)
        from airflow.providers.common.compat.sdk import conf

        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            airflow=conf.get("fsm", "airflow_name", fallback=""),
        )

    @property
    def place(self) -> str:
        """The task in its run, with the map index if it is mapped."""
        return f"{self.task_id}[{self.map_index}]" if self.map_index >= 0 else self.task_id

    def __str__(self) -> str:
        airflow = f" of Airflow {self.airflow}" if self.airflow else ""
        return f"task {self.place} of run {self.run_id} of DAG {self.dag_id}{airflow}"
