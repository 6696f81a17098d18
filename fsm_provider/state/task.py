"""Which task is running, and which of its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


@dataclass(frozen=True)
class Task:
    """A task of a run: the same for all its attempts, also after it is cleared."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @classmethod
    def from_context(cls, context: Context) -> Self:
        """Return the running task."""
        ti = context["ti"]
        return cls(ti.dag_id, ti.run_id, ti.task_id, ti.map_index if ti.map_index is not None else -1)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return dict(vars(self))

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"task {self.task_id}{mapped} of run {self.run_id} of DAG {self.dag_id}"


def attempt_id(context: Context) -> str:
    """Return what identifies an attempt, and sorts after all attempts that were begun before."""
    if AIRFLOW_V_3_0_PLUS:
        return str(context["ti"].id)  # a UUID that begins with the time
    dag_run: Any = context["dag_run"]
    return f"{dag_run.id:012}.{context['ti'].try_number:06}"
