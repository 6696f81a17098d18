"""Open the ledger of a running task: in Airflow 3.3 itself, or in the database that the connection names."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
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


def open_ledger(context: Context, hook: FsmHook, *, by_key: bool) -> tuple[SqlLedger | TaskLedger, Task]:
    """Open the ledger of the running task; return it and the task.

    :param by_key: each key is written once, whatever run asks.
    :raises FsmInputError: if there is none, or earlier attempts of this task have written to another service
        or recorded elsewhere. Nothing is sent then.
    :raises Exception: if the connection or the ledger cannot be read.
    """
    state_conn_id, service = hook.state_conn_id, hook.service
    if by_key and state_conn_id is None:
        raise FsmInputError(
            f"once_per: 'key' needs a ledger in a SQL database: {_how_to_name(hook.fsm_conn_id)}"
        )
    if "ti" not in context:
        if by_key:
            raise FsmInputError("once_per: 'key' works in a task only, and this is not run as a task")
        logger.warning("This is not run as a task: what it sends is not recorded, and sent again next time")
        return TaskLedger(None, task := Task("", uuid4().hex, "")), task
    task, store = Task.from_context(context), task_state_store(context)
    stored = store.get(SERVICE) if store is not None else None
    if stored is not None and stored["service"] != service:
        raise _is_another(stored["service"], service)
    if state_conn_id is None:
        if store is None:
            raise FsmInputError(
                "state_conn_id: before Airflow 3.3 what is sent is recorded in a SQL database, so that "
                "nothing is "
                f"sent twice: {_how_to_name(hook.fsm_conn_id)}"
            )
        if stored is not None and stored["id"]:
            raise FsmInputError(
                "state_conn_id: is missing: earlier attempts of this task have recorded there"
            )
        if stored is None:
            store.set(SERVICE, {"service": service, "id": ""}, retention=never_expire())
        return TaskLedger(store, task), task
    if stored is not None and not stored["id"]:
        raise FsmInputError(
            "state_conn_id: is new: earlier attempts of this task have recorded in Airflow itself what they "
            "sent. "
            "Start another run"
        )
    from fsm_provider.state.database import open_database
    from fsm_provider.writes.sql_ledger import SqlLedger, register_task

    engine = open_database(state_conn_id)
    try:
        registered, task_id = register_task(engine, task, service)
        if registered != service:
            raise _is_another(registered, service)
        if stored is not None and stored["id"] != task_id:
            raise FsmInputError(
                f"state_conn_id: the database of connection '{state_conn_id}' is not the one in which "
                f"earlier "
                "attempts of this task have recorded what they sent: restore it, or look in the service and "
                "start "
                "another run"
            )
        if stored is None and store is not None:
            store.set(SERVICE, {"service": service, "id": task_id}, retention=never_expire())
    except BaseException:
        engine.dispose()
        raise
    scope = "" if by_key else digest_for([task.airflow, task.dag_id, task.run_id, task.task_id], DIGITS)
    return SqlLedger(engine, service, scope), task


def _is_another(before: str, now: str) -> FsmInputError:
    return FsmInputError(
        f"host: earlier attempts of this task have written to {before}, and the connection leads to {now} "
        f"now. "
        "Nothing was sent: start another run, or restore the connection's host and login"
    )


def _how_to_name(fsm_conn_id: str) -> str:
    return (
        f"set state_conn_id in the extra of connection '{fsm_conn_id}' to the id of one, such as "
        f"fsm_ledger. Add it "
        "on one machine with\n"
        "  airflow connections add fsm_ledger --conn-type sqlite --conn-host /var/lib/airflow/fsm_ledger.db\n"
        "and for several workers with\n"
        "  airflow connections add fsm_ledger --conn-uri postgres://user:password@host:5432/database\n"
        "(pip install 'airflow-provider-fsm[sql]')"
    )
