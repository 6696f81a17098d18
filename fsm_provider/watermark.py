"""The watermark of a DAG that lists at intervals: after a failed run, the next one lists its forms again.

It is the time at which the last successful run started to list, by the worker's clock: forms that arrive
during a listing may be missing from it. An Airflow Variable holds it; or, if the DAG names a connection that
has ``state_conn_id``, that SQL database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import parse_time
from fsm_provider.state.variables import read_variable, write_variable

if TYPE_CHECKING:
    from fsm_provider.state.sql_watermarks import SqlWatermark


def begin(variable: str, look_back: timedelta, fsm_conn_id: str | None = None) -> dict[str, str]:
    """Return ``now``, for :func:`commit`, and ``since``, the time to list from. Call it before listing.

    The first call stores its time, in case its run fails. In a database, it stores the time that the Variable
    of the same name holds, if there is one.

    :param variable: name of the watermark and of the Variable; only this DAG uses it.
    :param look_back: how far before the last listing to start, since phones sync late and clocks differ.
    :param fsm_conn_id: the Airflow connection whose ``state_conn_id`` is used, if it has one.
    :raises FsmInputError: if the Variable does not hold a time, or ``state_conn_id`` names no database.
    :raises Exception: if the connection, the Variable or the database fails. Nothing is changed then.
    """
    now = datetime.now(UTC)
    with _in_database(variable, fsm_conn_id) as stored:
        if stored:
            last = stored.get_or_add(lambda: _read(variable) or now)
        else:
            last = _read(variable) or now
            if last is now:
                write_variable(variable, now.isoformat())
    return {"now": now.isoformat(), "since": (last - look_back).isoformat()}


def commit(variable: str, now: str, fsm_conn_id: str | None = None) -> None:
    """Record that everything listed was handled; a cleared older run does not move the watermark back.

    :param variable: as for :func:`begin`, and so is ``fsm_conn_id``.
    :param now: from :func:`begin`.
    :raises Exception: as of :func:`begin`.
    """
    at = parse_time("now", now)
    with _in_database(variable, fsm_conn_id) as stored:
        if stored:
            stored.get_or_add(lambda: _read(variable) or at)
            stored.advance(at)
        elif (last := _read(variable)) is None or last < at:
            write_variable(variable, now)


@contextmanager
def _in_database(name: str, fsm_conn_id: str | None) -> Iterator[SqlWatermark | None]:
    """Open the watermark in the database that the connection names; None if it names none."""
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.state.database import open_database

    hook = FsmHook(fsm_conn_id) if fsm_conn_id else None
    if hook is None or hook.state_conn_id is None:
        yield None
        return
    engine = open_database(hook.state_conn_id)
    try:
        from fsm_provider.state.sql_watermarks import SqlWatermark

        yield SqlWatermark(engine, hook.service, name)
    finally:
        engine.dispose()


def _read(variable: str) -> datetime | None:
    text = read_variable(variable)
    try:
        return None if text is None else parse_time(variable, text)
    except FsmInputError as error:
        raise FsmInputError(f"Variable {error}") from None
