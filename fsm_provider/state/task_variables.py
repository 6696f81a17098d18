"""The Variables of a task whose ledger is in Variables, and how damage to them shows."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import count, product, takewhile
from typing import Any, NamedTuple, Self

from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.state.digest import digest_for
from fsm_provider.state.task import Task
from fsm_provider.state.variables import delete_variable, read_stored_variable, write_variable

PREFIX = "fsm_ledger"
DIGITS = 32
ROWS = ("", "b")
"""What follows the number in the name of a slot."""
KEYS = "keys"
"""What the keys that an attempt has set are stored under, so that all can be deleted."""


class LedgerDamagedError(AirflowFailException):
    """Variables of the ledger were deleted or changed, so what was sent is not known."""


class Slot(NamedTuple):
    """The attempts that took the slot of a try number.

    :param attempt: the last one.
    :param earlier: all before it.
    :param at: when the last one took it, ISO 8601.
    """

    attempt: str
    earlier: list[str]
    at: str


class TaskVariables:
    """The Variables of a task instance.

    :param digest: of its identity.
    """

    def __init__(self, digest: str, description: str = "") -> None:
        self.digest = digest
        self.prefix = f"{PREFIX}.{digest}"
        self._description = description

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """Return those of a task."""
        digest = digest_for((task.dag_id, task.run_id, task.task_id, task.map_index), DIGITS)
        description = (
            f"What task {task.task_id} of DAG {task.dag_id} has sent in run {task.run_id}. Do not edit"
        )
        return cls(digest, description)

    def slot(self, number: int, row: str = ROWS[0]) -> Slot | None:
        """Return the slot of a try number, None if no attempt has taken it.

        :raises LedgerDamagedError: if it is not what was written.
        """
        name = self._name(f"{number}{row}")
        fields = read_list(name)
        if fields is None:
            return None
        if len(fields) != len(Slot._fields):
            raise _damaged(name)
        return Slot(*fields)

    def take(self, number: int, row: str, slot: Slot) -> None:
        """Write the slot of a try number."""
        self._write(self._name(f"{number}{row}"), slot)

    def keys(self, attempt: str) -> list[str]:
        """Return the keys that an attempt has set."""
        return read_list(self._name(attempt, KEYS)) or []

    def read(self, attempt: str, key: str) -> Any:
        """Return a value that an attempt has set.

        :raises LedgerDamagedError: if it is not there.
        """
        if (value := _read_json(name := self._name(attempt, key))) is None:
            raise _damaged(name)
        return value

    def write(self, attempt: str, key: str, value: Any) -> None:
        """Set a JSON value of an attempt."""
        self._write(self._name(attempt, key), value)

    def delete(self, before: datetime) -> None:
        """Delete all of them, unless an attempt has begun since ``before``."""
        slots = [slot for slot in takewhile(bool, map(self.slot, count(1))) if slot]
        if any(datetime.fromisoformat(slot.at) >= before for slot in slots):
            return
        for attempt in {attempt for slot in slots for attempt in (slot.attempt, *slot.earlier)}:
            for key in (*self.keys(attempt), KEYS):
                delete_variable(self._name(attempt, key))
        for number, row in product(range(len(slots), 0, -1), ROWS):
            delete_variable(self._name(f"{number}{row}"))

    def _write(self, name: str, value: Any) -> None:
        write_variable(name, json.dumps(value), self._description)

    def _name(self, *parts: object) -> str:
        return ".".join(map(str, (self.prefix, *parts)))


def _read_json(name: str) -> Any:
    text = read_stored_variable(name)
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        raise _damaged(name) from None


def read_list(name: str) -> list[Any] | None:
    """Return the list that a Variable holds, None if there is none.

    :raises LedgerDamagedError: if it holds anything else.
    """
    value = _read_json(name)
    if value is None or isinstance(value, list):
        return value
    raise _damaged(name)


def _damaged(name: str) -> LedgerDamagedError:
    return LedgerDamagedError(
        f"Variable {name} was deleted or changed, so what this task has sent is not known. Look in the "
        "service, and start another run for what is missing"
    )
