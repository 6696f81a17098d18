"""Differences between Airflow versions that common.compat does not cover."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


def context_for_current_task() -> Context | None:
    from airflow.providers.common.compat.sdk import get_current_context

    with suppress(AirflowException, RuntimeError):  # of Airflow 2, and of Airflow 3
        return get_current_context()
    return None


def first_poll_of(context: Context) -> datetime | None:
    """Return when a sensor in reschedule mode began, None at its first poll."""
    ti = context["ti"]
    if AIRFLOW_V_3_0_PLUS:
        at: datetime | str | None = ti.get_first_reschedule_date(context)
        return (
            datetime.fromisoformat(at) if isinstance(at, str) else at
        )  # text in dag.test() of 3.0
    from airflow.models import TaskReschedule
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(TaskReschedule.start_date).filter_by(
            dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index
        )
        since = ti.max_tries - (context["task"].retries or 0) + 1
        first = rows.filter(TaskReschedule.try_number >= since).order_by(TaskReschedule.id).first()
    return first and first.start_date


def unreadable_variable(conn_id: str, error: AirflowNotFoundException) -> AirflowNotFoundException:
    """Return why Airflow does not find a connection: an environment variable that is set cannot be
    read.
    """
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if not os.environ.get(variable):
        return error
    problem = (
        f"{variable} is set, but cannot be read: it should be JSON, with double quotes, or a URI"
    )
    return AirflowNotFoundException(f"connection '{conn_id}': {problem}")
