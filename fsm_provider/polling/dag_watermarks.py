"""The watermarks of DAGs for commands, which have Airflow's database: see :mod:`fsm_provider.watermark`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from fsm_provider.api.validation import parse_time
from fsm_provider.compat import hook_outside_of_tasks
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.state.sql_tables import engine_for, has_tables
from fsm_provider.state.sql_watermarks import SqlWatermark, sql_watermarks
from fsm_provider.state.variables import read_variable_in_server
from fsm_provider.terminal import RefusedError

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine


@dataclass(frozen=True)
class DagWatermark:
    """The watermark of a DAG.

    :param place: what it is in, as ``--in`` says it.
    :param replace: replaces a time by another; returns whether it was that time, and is replaced.
    :param remarks: what is worth knowing besides.
    """

    name: str
    place: str
    at: datetime
    replace: Callable[[datetime, datetime], bool]
    remarks: Sequence[str] = ()


def watermarks_in_database(fsm_conn_id: str) -> list[DagWatermark]:
    """Return the watermarks in the database that a connection names; none if it names none.

    :raises AirflowException: if the connection is not defined.
    :raises FsmInputError: if ``state_conn_id`` names no database.
    :raises sqlalchemy.exc.SQLAlchemyError: if the database fails.
    """
    with _database(fsm_conn_id) as database:
        if database is None or not has_tables(database[0]):
            return []
        times = sql_watermarks(*database)
    replace = partial(_replace_in_database, fsm_conn_id)
    remarks = [f"of connection {fsm_conn_id}"]
    return [DagWatermark(name, "database", at, partial(replace, name), remarks) for name, at in times.items()]


@contextmanager
def _database(fsm_conn_id: str) -> Iterator[tuple[Engine, str] | None]:
    """Open the database that a connection names; yield it and the service, or None."""
    hook = FsmHook.outside_of_tasks(fsm_conn_id)
    if (state_conn_id := hook.state_conn_id) is None:
        yield None
        return
    engine = engine_for(state_conn_id, hook_outside_of_tasks)
    try:
        yield engine, hook.service
    finally:
        engine.dispose()


def _replace_in_database(fsm_conn_id: str, name: str, expected: datetime, at: datetime) -> bool:
    with _database(fsm_conn_id) as database:
        return database is not None and SqlWatermark(*database, name).replace(expected, at)


def watermark_in_variable(name: str) -> DagWatermark | None:
    """Return the watermark in a Variable; None if there is none.

    :raises FsmInputError: if the Variable does not hold a time.
    """
    if (text := read_variable_in_server(name)) is None:
        return None
    at = parse_time(f"Variable {name}", text)
    return DagWatermark(name, "variable", at, partial(_replace_in_variable, name))


def _replace_in_variable(name: str, expected: datetime, at: datetime) -> bool:
    from airflow.models import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        stored = session.scalar(select(Variable).where(Variable.key == name))
        if stored is None:
            raise RefusedError(f"Variable {name} is not in Airflow's database")
        if parse_time(name, stored.val) != expected:
            return False
        stored.set_val(at.isoformat())
    return True
