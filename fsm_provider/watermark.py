"""The watermark of a DAG that lists at intervals: after a failed run, the next one lists its forms again.

An Airflow Variable holds the time at which the last successful run started to list, by the worker's clock:
forms that arrive during a listing may be missing from it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import parse_time
from fsm_provider.state.variables import read_variable, write_variable


def begin(variable: str, look_back: timedelta) -> dict[str, str]:
    """Return ``now``, for :func:`commit`, and ``since``, the time to list from. Call it before listing.

    The first call stores its time, in case its run fails.

    :param variable: name of a Variable that only this DAG uses.
    :param look_back: how far before the last listing to start, since phones sync late and clocks differ.
    :raises FsmInputError: if the Variable does not hold a time.
    """
    now = datetime.now(UTC)
    last = _read(variable)
    if last is None:
        write_variable(variable, now.isoformat())
    return {"now": now.isoformat(), "since": ((last or now) - look_back).isoformat()}


def commit(variable: str, now: str) -> None:
    """Record that everything listed was handled; a cleared older run does not move the watermark back.

    :param now: from :func:`begin`.
    """
    last = _read(variable)
    if last is None or last < datetime.fromisoformat(now):
        write_variable(variable, now)


def _read(variable: str) -> datetime | None:
    text = read_variable(variable)
    try:
        return None if text is None else parse_time(variable, text)
    except FsmInputError as error:
        raise FsmInputError(f"Variable {error}") from None
