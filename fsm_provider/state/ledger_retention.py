"""How long ledgers in Variables stay: ``ledger_retention_days`` of ``[fsm]`` in airflow.cfg."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.digest import digest_for
from fsm_provider.state.task import Task
from fsm_provider.state.task_variables import DIGITS, PREFIX, TaskVariables, read_list
from fsm_provider.state.variables import delete_variable, write_variable

logger: logging.Logger = logging.getLogger(__name__)

RETENTION_DAYS = 90
MIN_RETENTION_DAYS = 7
MAX_DELETIONS = 50
"""Runs whose Variables one attempt deletes."""
LIST_ATTEMPTS = 3
"""How often an item is added to a list that another task changes at the same time."""
DESCRIPTION = "Runs whose ledger is in Variables, so that it can be deleted one day"


class RunList:
    """The runs of a task that have Variables, by week, so that they can be deleted one day."""

    def __init__(self, task: Task) -> None:
        self._digest = digest_for((task.dag_id, task.task_id, task.map_index), DIGITS)

    def add(self, variables: TaskVariables) -> None:
        """Add a run, and delete some whose time has come."""
        now = datetime.now(UTC)
        before, week = now - _retention(), _week(now)
        self._add(week, variables.digest)
        self._add("weeks", week)
        expired = [week for week in self._read("weeks") if week < _week(before)]
        if expired:
            try:
                self._delete(min(expired), before)
            except Exception as error:  # noqa: BLE001 - the next attempt tries again
                logger.warning("What the task sent in week %s could not be deleted: %r", min(expired), error)

    def _delete(self, week: str, before: datetime) -> None:
        runs = self._read(week)
        logger.info(
            "Deleting what this task sent in week %s (ledger_retention_days): %d runs", week, len(runs)
        )
        for digest in runs[:MAX_DELETIONS]:
            TaskVariables(digest).delete(before)
        if left := runs[MAX_DELETIONS:]:
            self._write(week, left)
        else:
            delete_variable(self._name(week))
            self._write("weeks", [other for other in self._read("weeks") if other != week])

    def _add(self, name: str, item: str) -> None:
        for _ in range(LIST_ATTEMPTS):
            if item in (items := self._read(name)):
                return
            self._write(name, [*items, item])

    def _read(self, name: str) -> list[str]:
        return read_list(self._name(name)) or []

    def _write(self, name: str, items: list[str]) -> None:
        write_variable(self._name(name), json.dumps(items), DESCRIPTION)

    def _name(self, name: str) -> str:
        return f"{PREFIX}.{self._digest}.{name}"


def _retention() -> timedelta:
    try:
        days = int(conf.get("fsm", "ledger_retention_days", fallback=str(RETENTION_DAYS)))
    except ValueError:
        days = 0
    if days < MIN_RETENTION_DAYS:
        raise FsmInputError(
            "airflow.cfg: ledger_retention_days of [fsm] is not a number of days, at least "
            f"{MIN_RETENTION_DAYS}"
        )
    return timedelta(days=days)


def _week(time: datetime) -> str:
    return "{}-W{:02}".format(*time.isocalendar())
