"""Which task is running, and which of its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

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
    map_index: int
    airflow: str = ""

    @classmethod
    def from_context(cls, context: Context) -> Self:
        """Return the running task."""
        ti = context["ti"]
        map_index = ti.map_index if ti.map_index is not None else -1
        airflow = conf.get("fsm", "airflow_name", fallback="")
        return cls(ti.dag_id, ti.run_id, ti.task_id, map_index, airflow)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {name: value for name, value in vars(self).items() if value != "" or name != "airflow"}

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        airflow = f" of Airflow {self.airflow}" if self.airflow else ""
        return f"task {self.task_id}{mapped} of run {self.run_id} of DAG {self.dag_id}{airflow}"


def attempt_id(context: Context) -> str:
    """Return what identifies an attempt, and sorts after all attempts that were begun before."""
    values: Any = context
    ti = values["ti"]
    # The id of a task instance is a UUID that begins with the time.
    began = ti.id if AIRFLOW_V_3_0_PLUS else f"{values['dag_run'].id:012}"
    return f"{began}.{ti.try_number:06}"


def began_after(attempt: str, other: str) -> bool:
    """Return whether an attempt began after another one of the same task.

    One with a higher number did, even if the clock of the scheduler that began it was behind. In a run that
    was deleted and triggered again the numbers begin anew.
    """
    return attempt > other and attempt.partition(".")[2] >= other.partition(".")[2]
