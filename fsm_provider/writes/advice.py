"""What people are told to do next about writes. No other module gives such advice.

A test does what each of these texts says, in every ledger, and counts the jobs. None of them has a
run started that sends again what was sent: what is uncertain is settled, and the task is cleared.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsm_provider.writes.ledger import LedgerEntry

COMMAND = "python -m fsm_provider ledger"
TASK_OPTIONS = (
    ("--dag", "dag_id"),
    ("--run", "run_id"),
    ("--task", "task_id"),
    ("--map-index", "map_index"),
    ("--airflow", "airflow"),
)
"""Options of the command that narrow it to a task, and the field of the task that each is for."""
ONLY_WHAT_IS_MISSING = (
    "look each write up in the service, and put only what is missing into another run"
)
SERVICE_CHANGED = "Restore its host and login, and clear the task"
SERVICE_IS_THERE = (
    "If nothing was sent to it, rename it first, to any text; else they cannot become one"
)
SERVICE_IS_NOT_THERE = f"'{COMMAND} services' shows those that it knows"
LEDGER_CHANGED = (
    "restore state_conn_id and airflow_name, and clear the task; or, if that ledger is gone, "
    f"{ONLY_WHAT_IS_MISSING}"
)
PAGE_DAMAGED = (
    f"restore a backup of Airflow's database, and clear the task; or {ONLY_WHAT_IS_MISSING}"
)
NEWER_VERSION = "install that version again, and clear the task"
ROWS_GONE = (
    f"restore a backup of that database before the task is cleared; or {ONLY_WHAT_IS_MISSING}"
)
KEY_UNKNOWN = f"'{COMMAND} list' shows what was sent to the service of the connection"
KEY_AMBIGUOUS = "narrow it with --dag, --run, --task, --map-index, --airflow"
CHANGED_MEANWHILE = "look again"
TASK_IS_AT_WORK = "wait until it has ended"
LEASE_LASTS = "repeat this then"
ID_OF_ANOTHER = (
    "if that is wrong, pause the DAG of that key, forget it and settle it with its own id, and "
    "repeat this"
)
AFTER_REFUSAL = {
    "free": "the next attempt sends it",
    "sending": "wait until it is done or uncertain",
    "done": "clear its task to go on; to correct its id, pause its DAG, forget it and settle it",
    "uncertain": "settle it",
}
"""What to do about an entry that could not be changed, by the state that it is in."""


def for_unknown_service(fsm_conn_id: str, known: Iterable[str], new: str) -> str:
    """Return what to do where a service may be one that the ledger knows by another name."""
    add = f"{COMMAND} add-service {shlex.join(['--conn-id', fsm_conn_id, new])}"
    text = "\n"
    for name in known:
        text += f"If it is {name}, whose host and login are right: give them to the connection.\n"
        text += f"If it is {name}, which has another host or login now:\n"
        text += f"  {_rename(fsm_conn_id, name, new)}\n"
    return f"{text}If it is another service:\n  {add}\nThen clear the task."


def for_changed_service(fsm_conn_id: str, before: str, now: str) -> str:
    """Return what to do where a task has written to a service by another name."""
    return (
        "If they are one service, which has another host or login now, say so and clear the task:\n"
        f"  {_rename(fsm_conn_id, before, now)}\n"
        f"Else: {SERVICE_CHANGED}"
    )


def _rename(fsm_conn_id: str, old: str, new: str) -> str:
    return f"{COMMAND} rename-service {shlex.join(['--conn-id', fsm_conn_id, old, new])}"


@dataclass(frozen=True)
class Advice:
    """What whoever looks after a task is told about its writes.

    :param fsm_conn_id: the Airflow connection.
    :param is_shared: all map indexes of the task have this ledger: a key of theirs is known.
    """

    fsm_conn_id: str
    is_mapped: bool
    is_shared: bool

    @property
    def key_is_enough(self) -> bool:
        """Whether a key says that a write is new: no other map index has sent it unseen."""
        return self.is_shared or not self.is_mapped

    @property
    def restore_or_separate(self) -> str:
        """What to do where a write may be one that was sent, edited or moved."""
        restore = "If it is, restore the input; if it is another,"
        if self.is_mapped:
            restore = (
                "If it is, or if it has moved here from another map index, restore the order of "
                "the input, with new rows at its end; if it was never sent,"
            )
        separate = "give it a key of its own"
        if not self.key_is_enough:
            separate = "move it to a task of its own"
        return f"{restore} {separate}. Then clear the task"

    def settle(self, entry: LedgerEntry, found: str) -> str:
        """Return what a person types once a write has been looked up.

        :param found: the option that says what was found.
        """
        words = ["--conn-id", self.fsm_conn_id]
        for option, field in TASK_OPTIONS:
            value = getattr(entry.sent_by, field)
            if value not in ("", -1):  # no Airflow's name, and not mapped
                words.append(f"{option}={value}")  # it may begin with a hyphen
        key = shlex.quote(entry.key)
        if entry.key.startswith("-"):
            key = f"-- {key}"
        return f"{COMMAND} settle {shlex.join(words)} --why ... {found} {key}"

    def settle_if_uncertain(self, entry: LedgerEntry) -> str:
        """Return what to do once a write that is uncertain has been looked up."""
        if not entry.sent_by.dag_id:  # outside of a task, where nothing is recorded
            return ""
        return (
            "Then record what you found (--job-id N, --not-created, or --done for what is no job), "
            f"and clear the task: {self.settle(entry, '--job-id N')}"
        )

    def settle_if_not_created(self, entry: LedgerEntry) -> str:
        """Return what to do where a write that is uncertain has been edited."""
        command = self.settle(entry, "--not-created")
        return f". Or, if the first does not exist, record that and clear the task: {command}"

    def settle_as_made(self, entry: LedgerEntry, result_id: int | str | None) -> str:
        """Return what to do where the service has made what the ledger could not record."""
        found = f"--id {result_id}" if isinstance(result_id, int) else "--done"
        return f"record that before its task is cleared: {self.settle(entry, found)}"
