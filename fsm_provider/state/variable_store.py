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

import logging
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from itertools import count, product, takewhile
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from fsm_provider.compat import task_state_store
from fsm_provider.state.entries import superseded
from fsm_provider.state.ledger_retention import RunList
from fsm_provider.state.task import Task, attempt_id
from fsm_provider.state.task_store import StateStore, page_key
from fsm_provider.state.task_variables import KEYS, ROWS, LedgerDamagedError, Slot, TaskVariables

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

logger: logging.Logger = logging.getLogger(__name__)


def state_store_for(context: Context) -> StateStore:
    """Return the task's state store: Airflow's own, before 3.3 one in Variables; none outside of a task."""
    store: StateStore | None = task_state_store(context)
    if store is not None:
        return store
    if AIRFLOW_V_3_3_PLUS or "ti" not in context:
        logger.warning("This is not run as a task: what it sends is not recorded, and sent again next time")
        return NoStateStore()
    return VariableStateStore(Task.from_context(context), context["ti"].try_number, attempt_id(context))


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
        self._variables = TaskVariables.from_task(task)
        self._try_number = try_number
        self._attempt = attempt
        RunList(task).add(self._variables)
        attempts = [attempt, *self._take_slots()]
        self._keys: dict[str, list[str]] = {name: self._variables.keys(name) for name in attempts}
        logger.info(
            "Before Airflow 3.3 a task has no state store. What it sends is recorded in the Variables %s.*",
            self._variables.prefix,
        )

    @staticmethod
    def has_writes(task: Task) -> bool:
        """Return whether an attempt of a task has recorded writes."""
        variables = TaskVariables.from_task(task)
        slot = variables.slot(1)
        attempts = [slot.attempt, *slot.earlier] if slot else []
        return any(page_key(0) in variables.keys(attempt) for attempt in attempts)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a JSON value: this attempt's, else that of the latest one that has set it."""
        for attempt, keys in self._keys.items():
            if key in keys:
                return self._variables.read(attempt, key)
        return default

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        """Store a JSON value, and check that this is still the current attempt.

        :param retention: ignored; what is stored is deleted as ``ledger_retention_days`` says.
        """
        self._variables.write(self._attempt, key, value)
        if key not in (keys := self._keys[self._attempt]):
            keys.append(key)
            self._variables.write(self._attempt, KEYS, keys)
        slot = self._variables.slot(self._try_number)
        if slot is None:
            raise LedgerDamagedError(
                f"somebody has deleted Variables {self._variables.prefix}.*: what this task has sent is not "
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
