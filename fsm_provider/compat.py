"""The one place for differences between Airflow versions that common.compat does not cover."""

from __future__ import annotations

from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Variable
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


def start_of_run(context: Context) -> datetime:
    """Give the start of the run's data interval, else the time it was to run after.

    A run without a logical date (Airflow 3: triggered by an asset or by hand) has no interval;
    ``run_after`` exists since Airflow 3, where that is possible.
    """
    start: datetime | None = context.get("data_interval_start")
    if start is not None:
        return start
    run_after: datetime = context["dag_run"].run_after
    return run_after


def task_state_store(context: Context) -> Any:
    """Give the task's state store, None before Airflow 3.3, which has none."""
    return context.get("task_state_store")


def never_expire() -> timedelta:
    """Give the retention with which a state store keeps a value as long as its DAG run."""
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    return NEVER_EXPIRE


def read_variable(key: str) -> str | None:
    """Give an Airflow Variable, None where there is none. The default's name changed in Airflow 3."""
    default: dict[str, Any] = {"default" if AIRFLOW_V_3_0_PLUS else "default_var": None}
    value: str | None = Variable.get(key, **default)
    return value


def has_shared_streams() -> bool:
    """Tell whether triggers can share a stream, and watchers learn what is stored: since Airflow 3.3."""
    return find_spec("airflow.triggers.shared_stream") is not None


def asset_state_store(name: str) -> Any:
    """Give the state store of an active asset; it exists since Airflow 3.3."""
    from airflow.sdk.execution_time.context import AssetStateStoreAccessor

    return AssetStateStoreAccessor(name=name)
