"""Airflow Variables, read strictly: one that cannot be read is not taken for one that does not exist.

Airflow says "not found" also where its database is away, and does so on every version. So where a Variable
seems absent, a task of Airflow 3.3 lists names, which fails then; before 3.3, it reads a witness, another
Variable, and then looks again.

For tasks; :func:`read_variable_in_server` is for processes that have a database.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from threading import RLock
from typing import Any
from uuid import uuid4

from airflow.providers.common.compat.sdk import AirflowException, Variable
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_2_PLUS
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

WITNESS = "fsm_provider_witness"
"""A Variable that exists: where it cannot be read either, nothing is known of others. Airflow 3.0 to 3.2."""
WITNESS_DESCRIPTION = "Shows the FSM provider that Variables can be read"
WRITE_ATTEMPTS = 5
SUPERVISOR_LOCK = nullcontext() if AIRFLOW_V_3_2_PLUS else RLock()
"""Held while a thread talks to the task's supervisor: before Airflow 3.2, two at once mix up responses."""


retried_write = retry(
    stop=stop_after_attempt(WRITE_ATTEMPTS), wait=wait_random_exponential(0.1, max=1.0), reraise=True
)
"""Repeats a write that failed: versions before 3.1 refuse concurrent writes."""


class VariableUnreadableError(AirflowException):
    """A Variable could not be read, so whether it exists is unknown."""


def read_variable(key: str) -> str | None:
    """Return a Variable, from a secrets backend or from Airflow's database; None if it does not exist.

    Before it returns None, Airflow 3.0 to 3.2 reads back a value that was just written: neither a cache nor a
    replica of the database that lags behind can return it. That is a write for each Variable that is absent.

    :raises VariableUnreadableError: if that is unknown.
    :raises Exception: what Airflow raises.
    """
    if not AIRFLOW_V_3_0_PLUS:
        return read_variable_in_server(key)
    return _read_strictly(key, lambda: Variable.get(key, default=None), _check_write_is_read)


def read_stored_variable(key: str) -> str | None:
    """Return a Variable from Airflow's database alone; None if it does not exist there.

    It writes only where no witness can be read: the ledger reads Variables often.

    :raises VariableUnreadableError: if that is unknown.
    :raises Exception: what Airflow raises.
    """
    if not AIRFLOW_V_3_0_PLUS:
        return _read_database(key)
    return _read_strictly(key, lambda: _get_stored(key), _check_witness)


@retried_write
def write_variable(key: str, value: str, description: str | None = None) -> None:
    """Set a Variable in Airflow's database. If tasks set it at the same time, the last one wins.

    :raises Exception: what Airflow raises, after some attempts. ``Variable.set`` of Airflow 3 would only
        log it.
    """
    if AIRFLOW_V_3_0_PLUS:
        from airflow.sdk.execution_time.comms import PutVariable

        _ask_supervisor(PutVariable(key=key, value=value, description=description))
    else:
        Variable.set(key, value, description=description)


@retried_write
def delete_variable(key: str) -> None:
    """Delete a Variable; one that does not exist is no error.

    :raises Exception: what Airflow raises, after some attempts. ``Variable.delete`` would only log it.
    """
    if AIRFLOW_V_3_0_PLUS:
        from airflow.sdk.execution_time.comms import DeleteVariable

        _ask_supervisor(DeleteVariable(key=key))
    else:
        Variable.delete(key)


def variable_keys(prefix: str) -> list[str] | None:
    """List the Variables in Airflow's database whose names start with ``prefix``, None before Airflow 3.3."""
    keys = getattr(Variable, "keys", None)
    return None if keys is None else list(keys(prefix=prefix))


def read_variable_in_server(key: str) -> str | None:
    """Return a Variable in a process with a database (the API server, or any of Airflow 2).

    :raises VariableUnreadableError: if it exists, but cannot be read.
    :raises Exception: if the database is not available.
    """
    from airflow.models import Variable as StoredVariable

    # Query the database first: if it is down, Variable.get would log a traceback.
    stored = _read_database(key)
    value: str | None = StoredVariable.get(key, default_var=None)
    if value is None and stored is not None:
        raise unreadable(key)
    return value


def variables_in_server(prefix: str) -> list[tuple[str, str]]:
    """Return names and values of the Variables in Airflow's database whose names begin with ``prefix``.

    One that cannot be decrypted is left out.

    :raises Exception: if the database is not available.
    """
    from airflow.models import Variable as StoredVariable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(StoredVariable).where(StoredVariable.key.startswith(prefix, autoescape=True))
        return [(one.key, str(one.val)) for one in session.scalars(query) if one.val is not None]


def _read_database(key: str) -> str | None:
    from airflow.models import Variable as StoredVariable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        stored = session.scalar(select(StoredVariable).where(StoredVariable.key == key))
        if stored is None:
            return None
        if (value := stored.val) is None:  # encrypted with another Fernet key
            raise unreadable(key)
        return str(value)


def _read_strictly(
    key: str, read: Callable[[], str | None], check_readable: Callable[[str], None]
) -> str | None:
    """Read in a task of Airflow 3, which reads through the API server.

    :param check_readable: raises, naming the key, if other Variables cannot be read either.
    """
    with SUPERVISOR_LOCK:
        if (value := read()) is not None:
            return value
        if (keys := variable_keys(key)) is None:
            check_readable(key)
            return _get_stored(key)  # which may have been unreadable before that
        if key not in keys:
            return None
        if (value := read()) is None:  # unless another task has written it since
            raise unreadable(key)
        return value


def unreadable(key: str) -> VariableUnreadableError:
    """Make the error of a Variable that exists."""
    return VariableUnreadableError(f"Variable {key} exists, but could not be read")


def nothing_readable(key: str) -> VariableUnreadableError:
    """Make the error of a Variable that may exist, as no other can be read either."""
    return VariableUnreadableError(
        f"Variable {key} could not be read, nor could {WITNESS}, which was just written"
    )


def checked_response(response: Any) -> Any:
    """Return the supervisor's response to a message; None and "not found" are responses.

    :raises AirflowRuntimeError: if it is another error.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    if isinstance(response, ErrorResponse) and response.error != ErrorType.VARIABLE_NOT_FOUND:
        raise AirflowRuntimeError(response)
    return response


def _check_witness(key: str) -> None:
    if _get_stored(WITNESS) is None:
        write_variable(WITNESS, "1", WITNESS_DESCRIPTION)
        if _get_stored(WITNESS) is None:
            raise nothing_readable(key)


@retry(
    retry=retry_if_exception_type(VariableUnreadableError),  # as another task may write at the same time
    stop=stop_after_attempt(WRITE_ATTEMPTS),
    wait=wait_random_exponential(0.1, max=1.0),
    reraise=True,
)
def _check_write_is_read(key: str) -> None:
    write_variable(WITNESS, value := uuid4().hex, WITNESS_DESCRIPTION)
    if _get_stored(WITNESS) != value:
        raise nothing_readable(key)


def _get_stored(key: str) -> str | None:
    from airflow.sdk.execution_time.comms import GetVariable, VariableResult

    response = _ask_supervisor(GetVariable(key=key))
    return response.value if isinstance(response, VariableResult) else None


def _ask_supervisor(message: Any) -> Any:
    from airflow.sdk.execution_time import task_runner

    with SUPERVISOR_LOCK:
        return checked_response(task_runner.SUPERVISOR_COMMS.send(message))
