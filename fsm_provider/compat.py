"""The one place for differences between Airflow versions that common.compat does not cover."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, Variable
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from fsm_provider.api.errors import FsmInputError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection, Context


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


def context_of_this_task() -> Context | None:
    """Give the context of the task that runs, None outside of one.

    What is raised there is Airflow's own in Airflow 2, and a RuntimeError in Airflow 3.
    """
    from airflow.providers.common.compat.sdk import get_current_context

    try:
        return get_current_context()
    except (AirflowException, RuntimeError):
        return None


def is_deferral_timeout(error: BaseException) -> bool:
    """Tell whether a deferral ended by its timeout, which Airflow 2 says by its text alone."""
    return type(error).__name__ == "TaskDeferralError" and str(error) == "Trigger/execution timeout"


def task_state_store(context: Context) -> Any:
    """Give the task's state store, None before Airflow 3.3, which has none."""
    return context.get("task_state_store")


def read_connection_outside_of_tasks(conn_id: str) -> Connection:
    """Give a connection in a command; what reads it in a task does not look into Airflow's database there.

    :raises AirflowException: where there is none.
    """
    from airflow.models import Connection as StoredConnection

    return StoredConnection.get_connection_from_secrets(conn_id)


def never_expire() -> timedelta:
    """Give the retention with which a state store keeps a value as long as its DAG run."""
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    return NEVER_EXPIRE


def read_variable(key: str) -> str | None:
    """Give an Airflow Variable, None where there is none. The default's name changed in Airflow 3.

    :raises AirflowException: where there is one that could not be read, which Airflow calls absent too.
    """
    default: dict[str, Any] = {"default" if AIRFLOW_V_3_0_PLUS else "default_var": None}
    value: str | None = Variable.get(key, **default)
    if value is None and key in (variable_keys(key) or ()):
        raise AirflowException(f"Variable {key} is there, but could not be read")
    return value


def has_shared_streams() -> bool:
    """Tell whether triggers can share a stream, and watchers learn what is stored: since Airflow 3.3."""
    return find_spec("airflow.triggers.shared_stream") is not None


def asset_state_store(name: str) -> Any:
    """Give the state store of an active asset; it exists since Airflow 3.3."""
    from airflow.sdk.execution_time.context import AssetStateStoreAccessor

    return AssetStateStoreAccessor(name=name)


def variable_keys(prefix: str) -> list[str] | None:
    """List the Variables in Airflow's database whose names begin with ``prefix``, None before Airflow 3.3."""
    keys = getattr(Variable, "keys", None)
    return None if keys is None else list(keys(prefix=prefix))


def import_function(argument: str, path: str) -> Callable[..., Any]:
    """Import ``package.module.function``.

    :param argument: what the path was given as.
    :raises FsmInputError: naming the argument.
    """
    module, _, name = path.rpartition(".")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise FsmInputError(f"{argument}: {path!r} cannot be imported: {error}") from None
    if not callable(function):
        raise FsmInputError(f"{argument}: {path!r} is not a function")
    return function  # type: ignore[no-any-return]


def read_variable_in_server(key: str) -> str | None:
    """Give an Airflow Variable in a process that has the database (the API server), None where there is none.

    :raises Exception: where the database cannot be asked, which Airflow calls absent too.
    """
    from airflow.models import Variable as StoredVariable

    value: str | None = StoredVariable.get(key, default_var=None)
    if value is None:
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            if session.scalar(select(StoredVariable.id).where(StoredVariable.key == key)) is not None:
                raise AirflowException(f"Variable {key} is there, but could not be read")
    return value


def count(name: str, tags: dict[str, str]) -> None:
    """Count something in Airflow's metrics."""
    try:
        from airflow.observability.stats import Stats
    except ImportError:
        from airflow.stats import Stats  # type: ignore[assignment] # before Airflow 3.2
    Stats.incr(name, tags=tags)
