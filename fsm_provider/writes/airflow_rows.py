"""The rows of :mod:`fsm_provider.writes.task_ledger` in Airflow's own database, for commands."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from airflow.providers.common.compat.sdk import conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.task import Task
from fsm_provider.terminal import RefusedError
from fsm_provider.writes.ledger import Change, Row, seen_at
from fsm_provider.writes.task_ledger import PAGE, SERVICE, row_in, stored

ACTIVE = ("scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule")


class Page(NamedTuple):
    """A page of rows: its id in Airflow's table, and its text."""

    id: int
    text: str


def rows_in_airflow(service: str) -> Iterator[tuple[Page, Row]]:
    """Yield the rows of a service.

    :raises FsmInputError: if this Airflow has none, or only workers read them.
    """
    from airflow.utils.session import create_session
    from sqlalchemy import select

    model = _model()
    is_ours = model.key.startswith(PAGE, autoescape=True) | (model.key == SERVICE)
    with create_session() as session:
        found = list(session.scalars(select(model).where(is_ours).order_by(model.id)))
        services = {_task(one): json.loads(one.value)["service"] for one in found if one.key == SERVICE}
        for one in found:
            if one.key == SERVICE or services.get(task := _task(one)) != service:
                continue
            for values in json.loads(one.value).values():
                yield Page(one.id, one.value), seen_at(row_in(values, task), _now())


def change_row(page: Page, row: Row, change: Change) -> Row:
    """Change a row, unless its task may be at work; return it as it is then.

    :raises RefusedError: if it may be, or the page has changed since it was read.
    """
    from airflow.models import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select, update

    model, by = _model(), row.by
    with create_session() as session:
        task = {"dag_id": by.dag_id, "run_id": by.run_id, "task_id": by.task_id, "map_index": by.map_index}
        state = session.scalar(select(TaskInstance.state).filter_by(**task))
        if state in ACTIVE:
            raise RefusedError(f"'{row.key}': its task is {state}: wait until it has ended")
        rows = json.loads(page.text)
        after = change(row_in(rows[row.id], by), _now())
        rows[row.id] = stored(after)
        is_same = (model.id == page.id) & (model.value == page.text)
        changed: Any = session.execute(update(model).where(is_same).values(value=json.dumps(rows)))
        if changed.rowcount != 1:
            raise RefusedError(f"'{row.key}' has changed meanwhile: look again")
    return seen_at(after, _now())


def _model() -> Any:
    if conf.get("workers", "state_store_backend", fallback=""):
        raise FsmInputError("only workers read what is in state_store_backend of airflow.cfg")
    try:
        from airflow.models.task_state_store import TaskStateStoreModel
    except ImportError:
        raise FsmInputError(
            "state_conn_id: is missing: before Airflow 3.3 the ledger is in the SQL database that it names"
        ) from None
    return TaskStateStoreModel


def _task(one: Any) -> Task:
    return Task(one.dag_id, one.run_id, one.task_id, one.map_index)


def _now() -> int:
    return int(time.time() * 1000)
