"""Airflow Variables, in tasks and in processes that have a database.

Airflow says "not found" also where its database is away. So where a Variable seems absent, a task
of Airflow 3.3 lists names, which fails then. Before 3.3, one that is not found may be unreadable:
nothing rests on its absence.
"""

from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, Variable
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS
from tenacity import retry, stop_after_attempt, wait_random_exponential

WRITE_ATTEMPTS = 5


class VariableUnreadableError(AirflowException):
    def __init__(self, key: str) -> None:
        super().__init__(f"Variable {key} exists, but could not be read")


def read_variable(key: str) -> str | None:
    """Return a Variable in a task; None if it does not exist."""
    if not AIRFLOW_V_3_0_PLUS:
        return read_stored_variable(key)
    value: str | None = Variable.get(key, default=None)
    if value is not None:
        return value
    # Airflow lists names since 3.3.
    is_listed = hasattr(Variable, "keys") and key in Variable.keys(prefix=key)
    if not is_listed:
        return None
    value = Variable.get(key, default=None)  # another task may have written it since
    if value is None:
        raise VariableUnreadableError(key)
    return value


@retry(
    stop=stop_after_attempt(WRITE_ATTEMPTS),
    wait=wait_random_exponential(0.1, max=1.0),
    reraise=True,
)
def write_variable(key: str, value: str) -> None:
    """Set a Variable, and read it: some versions of Airflow only log that they could not set it."""
    Variable.set(key, value)
    if read_variable(key) != value:
        raise AirflowException(f"Variable {key} could not be set")


def read_stored_variable(key: str) -> str | None:
    """Return a Variable from Airflow's own database, in a process that may use it."""
    from airflow.models import Variable as StoredVariable

    # Query the database first: if it is down, Variable.get would log a traceback.
    stored = _select_variables(StoredVariable.key == key)
    value: str | None = StoredVariable.get(key, default_var=None)
    # The database may have compared keys regardless of case.
    if value is None and key in [variable.key for variable in stored]:
        raise VariableUnreadableError(key)
    return value


def stored_variable_values(prefix: str) -> list[str]:
    """Return the values of Variables by a prefix of their names, but those that no key decrypts."""
    from airflow.models import Variable as StoredVariable

    stored = _select_variables(StoredVariable.key.startswith(prefix, autoescape=True))
    return [str(variable.val) for variable in stored if variable.val is not None]


def _select_variables(condition: Any) -> list[Any]:
    """Return the Variables in Airflow's database for which a condition holds."""
    from airflow.models import Variable as StoredVariable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        variables = list(session.scalars(select(StoredVariable).where(condition)))
        session.expunge_all()
        return variables
