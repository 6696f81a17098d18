"""Open the ledger of a running task: in Airflow 3.3 itself, or in the database that the connection names."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsm_provider.api.errors import FsmInputError
from fsm_provider.compat import never_expire, task_state_store
from fsm_provider.state.digest import digest_for
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import DIGITS
from fsm_provider.writes.task_ledger import TaskLedger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.writes.sql_ledger import SqlLedger

logger: logging.Logger = logging.getLogger(__name__)

SERVICE = "fsm_service"
"""Key of the task state store: the service that the task writes to, and the id that its database gave it."""
NEEDS_DATABASE = """\
is missing: once_per="key", and before Airflow 3.3 every write, is recorded in a SQL database, so that
nothing is sent twice. Set state_conn_id in the extra of connection '{conn}' to fsm_ledger, and add that
connection. On one machine:
  airflow connections add fsm_ledger --conn-type sqlite --conn-host /var/lib/airflow/fsm_ledger.db
For several workers:
  airflow connections add fsm_ledger --conn-uri postgres://user:password@host:5432/database
Install it with: pip install 'airflow-provider-fsm[sql]'"""


def open_ledger(context: Context, hook: FsmHook, *, by_key: bool) -> tuple[SqlLedger | TaskLedger, Task]:
    """Open the ledger of the running task; return it and the task.

    :param by_key: each key is written once, whatever run asks.
    :raises FsmInputError: if there is none, or earlier attempts of this task have written to another service
        or recorded elsewhere. Nothing is sent then.
    :raises Exception: if the connection or the ledger cannot be read.
    """
    state_conn_id, service = hook.settings.state_conn_id, hook.settings.service
    store = task_state_store(context)
    if by_key and "ti" not in context:
        raise FsmInputError("once_per: 'key' works in a task only, and this is not run as a task")
    if "ti" not in context:
        logger.warning("This is not run as a task: what it sends is not recorded, and sent again next time")
        return TaskLedger(None, task := Task("", uuid4().hex, "")), task
    if state_conn_id is None and (by_key or store is None):
        raise FsmInputError(f"state_conn_id: {NEEDS_DATABASE.format(conn=hook.fsm_conn_id)}")
    task = Task.from_context(context)
    if state_conn_id is None:
        _check_same(store, service, service, "")
        return TaskLedger(store, task), task
    from fsm_provider.state.database import open_database
    from fsm_provider.writes.sql_ledger import SqlLedger, register_task

    engine = open_database(state_conn_id)
    try:
        _check_same(store, service, *register_task(engine, task, service))
    except BaseException:
        engine.dispose()
        raise
    scope = "" if by_key else digest_for([task.airflow, task.dag_id, task.run_id, task.task_id], DIGITS)
    return SqlLedger(engine, service, scope), task


def _check_same(store: Any, service: str, registered: str, ledger_id: str) -> None:
    """Check that all attempts of the task write to one service, and record in one ledger.

    :param store: the task state store, which remembers both; None before Airflow 3.3.
    :param registered: the service that the task's first attempt has written to, as its database says.
    :param ledger_id: what the database has drawn for the task; empty: the ledger is in Airflow.
    """
    stored = store.get(SERVICE) if store is not None else None
    for before in (registered, stored["service"] if stored else service):
        if before != service:
            raise FsmInputError(
                f"host: earlier attempts of this task have written to {before}, and the connection leads to "
                f"{service} now. Nothing was sent: restore its host and login, or start another run"
            )
    if stored and stored["id"] != ledger_id:
        where = "in another database" if stored["id"] else "in Airflow itself"
        raise FsmInputError(
            f"state_conn_id: earlier attempts of this task have recorded {where} what they sent. Nothing was "
            "sent: restore that, or look in the service and start another run"
        )
    if store is not None and not stored:
        store.set(SERVICE, {"service": service, "id": ledger_id}, retention=never_expire())
