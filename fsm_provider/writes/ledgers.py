"""Where the ledger of a task is: in Airflow itself, or in the database that the connection names."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.database import open_database
from fsm_provider.state.digest import digest_for
from fsm_provider.state.task import Task, attempt_id
from fsm_provider.state.task_store import TaskEntries
from fsm_provider.state.variable_store import has_state, state_store_for
from fsm_provider.writes.idempotency import Idempotency
from fsm_provider.writes.ledger import Ledger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.settings import Settings
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.state.entries import LedgerEntries

logger: logging.Logger = logging.getLogger(__name__)

OncePer = Literal["run", "key"]
MIN_FLIGHT = 120.0
"""Seconds in which what another task has sent counts as under way, at least."""
FLIGHT_TIMEOUTS = 4
"""And at least so many timeouts: to wait for another request, to connect, to send, to receive."""


def open_ledger(
    context: Context,
    hook: FsmHook,
    *,
    once_per: OncePer = "run",
    repeat_uncertain: bool = False,
    repeat_done: bool = False,
) -> Ledger:
    """Open the ledger of the running task.

    If the connection cannot be read, it is Airflow's own, if there are entries in it.

    :param once_per: what writes are shared by: the tasks of a ``run``, or all that have a ``key``.
    :raises FsmInputError: if a key needs a database, and the connection names none; or names one in the
        middle of a run.
    :raises Exception: if the connection or the entries cannot be read. Nothing is known then.
    """
    try:
        state_conn_id = hook.state_conn_id
    except Exception:
        if once_per == "key" or not has_state(context):
            raise
        state_conn_id = None
    if state_conn_id is None and once_per == "key":
        raise FsmInputError(
            "once_per: 'key' needs a ledger in a database: make an Airflow connection to a SQL database, "
            f"such as SQLite, and set its id as state_conn_id in the extra of connection '{hook.fsm_conn_id}'"
        )
    is_task = "ti" in context
    task = Task.from_context(context) if is_task else Task("", uuid4().hex, "", -1)
    entries: LedgerEntries
    if state_conn_id is None:
        entries = TaskEntries(state_store_for(context))
    else:
        entries = _open_in_database(context, hook, state_conn_id, once_per, task)
    settings = hook.valid_settings
    return Ledger(
        entries,
        # Airflow sets max_tries when it creates a task instance and again when it clears it.
        generation=context["ti"].max_tries if is_task else 0,
        mapped=state_conn_id is None and task.map_index >= 0,
        repeat_uncertain=repeat_uncertain,
        repeat_done=repeat_done,
        task=None if state_conn_id is None else task,
        once_per_key=once_per == "key",
        max_flight=max_flight(settings),
        idempotency=None if settings is None else Idempotency.from_settings(settings, hook.service),
    )


def _open_in_database(
    context: Context, hook: FsmHook, state_conn_id: str, once_per: OncePer, task: Task
) -> LedgerEntries:
    if has_state(context):
        raise FsmInputError(
            f"state_conn_id: is new: earlier attempts of this task have recorded in Airflow what they sent, "
            f"not in '{state_conn_id}'. Start another run"
        )
    is_task = "ti" in context
    scope = digest_for([task.dag_id, task.run_id, task.task_id], 32) if once_per == "run" else ""
    engine = open_database(state_conn_id)
    try:
        from fsm_provider.state.sql_entries import SqlEntries

        attempt = attempt_id(context) if is_task else ""
        entries = SqlEntries(engine, base_url=hook.service, scope=scope, task=task, attempt=attempt)
        if is_task and context["ti"].try_number > 1 and entries.has_entries_elsewhere():
            raise FsmInputError(
                f"once_per: is '{once_per}' now, and earlier attempts of this task have sent with another: "
                "what they sent would be sent again. Start another run"
            )
    except BaseException:
        engine.dispose()
        raise
    logger.info("What is sent is recorded in the database of connection '%s'", state_conn_id)
    return entries


def max_flight(settings: Settings | None) -> float:
    """Return the seconds in which what another task has sent counts as under way.

    :param settings: those of the connection; None if they are invalid: nothing is sent then.
    """
    return MIN_FLIGHT if settings is None else max(MIN_FLIGHT, FLIGHT_TIMEOUTS * settings.timeout)
