"""Open the ledger of the running task: in a SQL database, or in Airflow's task state store.

A task keeps to the service and the ledger of its first attempt. Both are stored with the ledger,
and on Airflow 3.3 also in the task state store, which outlives a database that is deleted or
restored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.writes.advice import LEDGER_CHANGED, SERVICE_CHANGED, for_changed_service
from fsm_provider.writes.task_ledger import NEVER_EXPIRE, TaskLedger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.state.task import Task
    from fsm_provider.writes.ledger import Ledger

logger: logging.Logger = logging.getLogger(__name__)

FIRST_ATTEMPT = "fsm_ledger"
"""Key of the task state store: the service of the first attempt, and the id of its ledger."""
IN_AIRFLOW = "Airflow"
"""The id of the ledger that is in the task state store."""
NEEDS_DATABASE = """\
is missing: once_per="key", and every write before Airflow 3.3 or with clear_on_success of \
[state_store],
is recorded in a SQL database, so that nothing is sent twice.
Set state_conn_id in the extra of connection '{conn}' to fsm_ledger, and add that connection. \
On one machine:
  airflow connections add fsm_ledger --conn-type sqlite --conn-host /var/lib/airflow/fsm_ledger.db
For several workers:
  airflow connections add fsm_ledger --conn-uri postgres://user:password@host:5432/database
Install it with: pip install 'airflow-provider-fsm[sql]'"""


@contextmanager
def open_ledger(context: Context, hook: FsmHook, task: Task, *, by_key: bool) -> Iterator[Ledger]:
    """Open the ledger of the running task, for the block.

    :param by_key: a key is written once for each service, not for each run.
    :raises FsmInputError: if there is none, or earlier attempts of this task have recorded
        elsewhere.
    """
    if "ti" not in context:
        if by_key:
            raise FsmInputError(
                "once_per: 'key' works in a task only, and this is not run as a task"
            )
        logger.warning(
            "This is not run as a task: nothing is recorded, and the next run sends it again"
        )
        yield TaskLedger(None, task)
        return
    service = hook.settings.service
    state_conn_id = hook.settings.state_conn_id
    store: Any = context.get("task_state_store")
    first: dict[str, str] | None = None if store is None else store.get(FIRST_ATTEMPT)
    if state_conn_id is None:
        is_cleared = conf.getboolean("state_store", "clear_on_success", fallback=False)
        if by_key or store is None or is_cleared:
            raise FsmInputError(f"state_conn_id: {NEEDS_DATABASE.format(conn=hook.fsm_conn_id)}")
        _refuse_another_ledger(first, IN_AIRFLOW)
        if first is None:
            first = {"service": service, "id": IN_AIRFLOW}
            store.set(FIRST_ATTEMPT, first, retention=NEVER_EXPIRE)
        elif first["service"] != service:
            raise _service_changed(first["service"], service, SERVICE_CHANGED)
        yield TaskLedger(store, task)
        return
    from fsm_provider.state.database import open_database
    from fsm_provider.writes.sql_ledger import SqlLedger, register_task, scope_of

    engine = open_database(state_conn_id)
    try:
        recorded = register_task(engine, task, service, hook.fsm_conn_id)
        _refuse_another_ledger(first, recorded["id"])
        before = recorded["service"]  # of the first attempt, by the name that it has now
        if before != service:
            next_step = for_changed_service(hook.fsm_conn_id, before, service)
            raise _service_changed(before, service, next_step)
        if store is not None and first is None:
            store.set(FIRST_ATTEMPT, recorded, retention=NEVER_EXPIRE)
        service_id = recorded["service_id"]
        yield SqlLedger(engine, scope_of(task, service_id, by_key=by_key), service_id)
    finally:
        engine.dispose()


def _refuse_another_ledger(first: dict[str, str] | None, ledger_id: str) -> None:
    """Refuse another ledger than that of the task's first attempt.

    :param first: what that has stored; None: nothing, or before Airflow 3.3, which has no store.
    """
    if first is None or first["id"] == ledger_id:
        return
    elsewhere = "in another database, or under another airflow_name,"
    where = "in Airflow itself" if first["id"] == IN_AIRFLOW else elsewhere
    raise FsmInputError(
        f"state_conn_id: earlier attempts of this task have recorded {where} what they sent. "
        f"Nothing was sent: {LEDGER_CHANGED}"
    )


def _service_changed(before: str, now: str, next_step: str) -> FsmInputError:
    return FsmInputError(
        f"host: earlier attempts of this task have used {before}, and the connection leads to "
        f"{now} now. Nothing was sent. {next_step}"
    )
