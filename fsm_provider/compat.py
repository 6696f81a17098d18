"""What Airflow's versions do in different ways, or badly, and common.compat does not cover."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

UNREADABLE = "is set, but cannot be read: it should be JSON, with double quotes, or a URI"


def context_for_current_task() -> Context | None:
    from airflow.providers.common.compat.sdk import get_current_context

    with suppress(AirflowException, RuntimeError):  # of Airflow 2, and of Airflow 3
        return get_current_context()
    return None


def first_poll_of(context: Context) -> datetime | None:
    """Return when a sensor in reschedule mode began, None at its first poll."""
    if not AIRFLOW_V_3_0_PLUS:
        return _first_poll_in_database(context)
    at: datetime | str | None = context["ti"].get_first_reschedule_date(context)
    if isinstance(at, str):  # in dag.test() of Airflow 3.0
        return datetime.fromisoformat(at)
    return at


def _first_poll_in_database(context: Context) -> datetime | None:
    """Return when a sensor began, on Airflow 2, whose tasks have the database."""
    from airflow.models import TaskReschedule
    from airflow.utils.session import create_session

    ti = context["ti"]
    # Clearing a task raises max_tries: the tries before that are not of this wait.
    first_try = ti.max_tries - (context["task"].retries or 0) + 1
    with create_session() as session:
        first = (
            session.query(TaskReschedule.start_date)
            .filter_by(
                dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index
            )
            .filter(TaskReschedule.try_number >= first_try)
            .order_by(TaskReschedule.id)
            .first()
        )
    return None if first is None else first.start_date


def explain_not_found(conn_id: str) -> AirflowNotFoundException:
    """Return why Airflow does not find a connection: its environment variable may be malformed."""
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    why = f"is not defined, or not readable, where this runs: add it in Airflow, or set {variable}"
    if os.environ.get(variable):
        why = f"{variable} {UNREADABLE}"
    return AirflowNotFoundException(f"connection '{conn_id}': {why}")
