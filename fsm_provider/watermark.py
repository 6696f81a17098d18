"""How far a DAG that lists at intervals has come: no run that fails loses what it had listed.

An Airflow Variable holds when the listing of the last run that succeeded began, by the worker's clock:
while a listing is read, forms go on arriving behind it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import Variable

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.inputs import read_time
from fsm_provider.compat import read_variable


def begin(variable: str, look_back: timedelta) -> dict[str, str]:
    """Give ``now``, for :func:`commit`, and ``since``, from when to list: call it before anything is listed.

    The time of the very first call is kept, should its run fail.

    :param variable: the Variable's name, of this DAG's own.
    :param look_back: how much before the last listing to begin, as phones sync late and clocks differ.
    :raises FsmInputError: where the Variable holds something else than a time.
    """
    now = datetime.now(UTC)
    last = _read(variable)
    if last is None:
        Variable.set(variable, now.isoformat())
    return {"now": now.isoformat(), "since": ((last or now) - look_back).isoformat()}


def commit(variable: str, now: str) -> None:
    """Note that all that was listed is handled; a run that is cleared takes nothing back.

    :param now: what :func:`begin` gave.
    """
    last = _read(variable)
    if last is None or last < datetime.fromisoformat(now):
        Variable.set(variable, now)


def _read(variable: str) -> datetime | None:
    text = read_variable(variable)
    try:
        return None if text is None else read_time(variable, text)
    except FsmInputError as error:
        raise FsmInputError(f"Variable {error}") from None
