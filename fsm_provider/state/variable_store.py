"""A task's state store for Airflow before 3.3, in Variables.

Any attempt can overwrite a Variable, also one that wakes up after its successor. So each attempt of a task
writes values of its own, and reads those of earlier attempts.

Slots decide which attempt is the current one: one for each try number, with the attempt that took it last.
An attempt that begins takes all slots, from the last to the first, and only then reads the values of those
that held them. After each write, an attempt checks that it still holds its slot. So if two are alive, the
later one reads what the earlier one wrote before its check, or the check fails.

Attempts of two runs with one ID can have the same try number, and one can overwrite the other in its slot.
So there are two rows of slots, which are taken one after the other: it finds the other in the second row, or
the other one finds it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from itertools import count, product, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from airflow.providers.common.compat.sdk import AirflowFailException, conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from fsm_provider.api.errors import FsmInputError
from fsm_provider.compat import task_state_store
from fsm_provider.state.digest import digest_for
from fsm_provider.state.entries import superseded
from fsm_provider.state.task import Task, attempt_id
from fsm_provider.state.task_store import StateStore, page_key
from fsm_provider.state.variables import (
    delete_variable,
    read_stored_variable,
    write_variable,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

logger: logging.Logger = logging.getLogger(__name__)

PREFIX = "fsm_ledger"
DIGITS = 32
ROWS = ("", "b")
"""What follows the number in the name of a slot."""
KEYS = "keys"
"""What the keys that an attempt has set are stored under, so that all can be deleted."""
RETENTION_DAYS = 90
"""Unless ``ledger_retention_days`` of ``[fsm]`` in airflow.cfg says otherwise."""
MIN_RETENTION_DAYS = 7
MAX_DELETIONS = 50
"""Runs whose Variables one attempt deletes."""
LIST_ATTEMPTS = 3
"""How often an item is added to a list that another task changes at the same time."""
DESCRIPTION = "Runs whose ledger is in Variables, so that it can be deleted one day"


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


def state_store_for(context: Context) -> StateStore:
    """Return the task's state store: Airflow's own, before 3.3 one in Variables; none outside of a task."""
    store: StateStore | None = task_state_store(context)
    if store is not None:
        return store
    if AIRFLOW_V_3_3_PLUS or "ti" not in context:
        logger.warning("This is not run as a task: what it sends is not recorded, and sent again next time")
        return NoStateStore()
    return VariableStateStore.from_context(context)


def has_state(context: Context) -> bool:
    """Return whether an attempt of the running task has recorded writes in Airflow."""
    if "ti" not in context:
        return False
    store = task_state_store(context)
    if store is not None:
        return store.get(page_key(0)) is not None
    return not AIRFLOW_V_3_3_PLUS and VariableStateStore.has_writes(Task.from_context(context))


class NoStateStore:
    """Stores nothing."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the default."""
        return default

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        """Do nothing."""


class VariableStateStore:
    """The state of a task instance as one of its attempts sees it.

    :param task: the task.
    :param try_number: which no other attempt of the run has.
    :param attempt: sorts after all attempts that were begun before.
    :raises SupersededError: if a later attempt has begun; by each :meth:`set`, too.
    :raises VariableUnreadableError: if Variables cannot be read; by :meth:`get` and :meth:`set`, too.
    :raises LedgerDamagedError: if some were deleted or changed, where that can be seen; by both, too.
    """

    def __init__(self, task: Task, try_number: int, attempt: str) -> None:
        self._variables = _TaskVariables.from_task(task)
        self._try_number = try_number
        self._attempt = attempt
        _RunList(task).add(self._variables)
        attempts = [attempt, *self._take_slots()]
        self._keys: dict[str, list[str]] = {name: self._variables.keys(name) for name in attempts}

    @classmethod
    def from_context(cls, context: Context) -> Self:
        """Return the store of the running task."""
        store = cls(Task.from_context(context), context["ti"].try_number, attempt_id(context))
        logger.info(
            "Before Airflow 3.3 a task has no state store. What it sends is recorded in the Variables %s.*",
            store.prefix,
        )
        return store

    @staticmethod
    def has_writes(task: Task) -> bool:
        """Return whether an attempt of a task has recorded writes."""
        variables = _TaskVariables.from_task(task)
        slot = variables.slot(1)
        attempts = [slot.attempt, *slot.earlier] if slot else []
        return any(page_key(0) in variables.keys(attempt) for attempt in attempts)

    @property
    def prefix(self) -> str:
        """What the names of its Variables begin with."""
        return self._variables.prefix

    def get(self, key: str, default: Any = None) -> Any:
        """Return a JSON value: this attempt's, else that of the latest one that has set it."""
        for attempt, keys in self._keys.items():
            if key in keys:
                return self._variables.read(attempt, key)
        return default

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        """Store a JSON value, and check that this is still the current attempt.

        :param retention: ignored; what is stored is deleted as :data:`RETENTION_DAYS` says.
        """
        self._variables.write(self._attempt, key, value)
        if key not in (keys := self._keys[self._attempt]):
            keys.append(key)
            self._variables.write(self._attempt, KEYS, keys)
        slot = self._variables.slot(self._try_number)
        if slot is None:
            raise LedgerDamagedError(
                f"somebody has deleted Variables {self.prefix}.*: what this task has sent is not "
                "recorded any more. Look in the service before you run it again"
            )
        if slot.attempt != self._attempt:
            raise superseded(f"attempt {self._try_number}")

    def _take_slots(self) -> list[str]:
        """Take the slots of all attempts, and return the attempts that held them, latest first."""
        following = takewhile(self._variables.slot, count(self._try_number + 1))
        last = max(following, default=self._try_number)
        earlier: AbstractSet[str] = frozenset()
        for row, number in product(ROWS, range(last, 0, -1)):
            slot = self._variables.slot(number, row)
            if slot and slot.attempt > self._attempt:
                raise superseded(f"attempt {self._try_number}")
            held = {slot.attempt, *slot.earlier} - {self._attempt} if slot else set()
            earlier |= held
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._variables.take(number, row, Slot(self._attempt, sorted(held), now))
        # A later attempt that had not found this one has taken the next slot before.
        next_slot = self._variables.slot(self._try_number + 1)
        if next_slot and next_slot.attempt != self._attempt:
            raise superseded(f"attempt {self._try_number}")
        return sorted(earlier, reverse=True)


class _TaskVariables:
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
        name = self._name(f"{number}{row}")
        fields = _read_list(name)
        if fields is None:
            return None
        if len(fields) != len(Slot._fields):
            raise _damaged(name)
        return Slot(*fields)

    def take(self, number: int, row: str, slot: Slot) -> None:
        self._write(self._name(f"{number}{row}"), slot)

    def keys(self, attempt: str) -> list[str]:
        return _read_list(self._name(attempt, KEYS)) or []

    def read(self, attempt: str, key: str) -> Any:
        """Return a value that was written."""
        if (value := _read_json(name := self._name(attempt, key))) is None:
            raise _damaged(name)
        return value

    def write(self, attempt: str, key: str, value: Any) -> None:
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


class _RunList:
    """The runs of a task that have Variables, by week, so that they can be deleted one day."""

    def __init__(self, task: Task) -> None:
        self._digest = digest_for((task.dag_id, task.task_id, task.map_index), DIGITS)

    def add(self, variables: _TaskVariables) -> None:
        """Add a run, and delete some whose time has come."""
        before = datetime.now(UTC) - _retention()
        week = _week(datetime.now(UTC))
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
            _TaskVariables(digest).delete(before)
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
        return _read_list(self._name(name)) or []

    def _write(self, name: str, items: list[str]) -> None:
        write_variable(self._name(name), json.dumps(items), DESCRIPTION)

    def _name(self, name: str) -> str:
        return f"{PREFIX}.{self._digest}.{name}"


def _read_json(name: str) -> Any:
    text = read_stored_variable(name)
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        raise _damaged(name) from None


def _read_list(name: str) -> list[Any] | None:
    value = _read_json(name)
    if value is None or isinstance(value, list):
        return value
    raise _damaged(name)


def _damaged(name: str) -> LedgerDamagedError:
    return LedgerDamagedError(
        f"Variable {name} was deleted or changed, so what this task has sent is not known. Look in the "
        "service, and start another run for what is missing"
    )


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
