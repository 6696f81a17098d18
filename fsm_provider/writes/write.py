"""A write, and what a ledger's entry says of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from fsm_provider.api.errors import (
    FsmError,
    FsmInputError,
    FsmRepeatableWriteError,
    FsmUncertainWriteError,
    describe,
    error_from_dict,
)
from fsm_provider.state.digest import digest_for
from fsm_provider.state.entries import Entry, is_conflict
from fsm_provider.state.task import Task


@dataclass(frozen=True)
class Write:
    """One write, to be sent once.

    :param content: what is written, as JSON values. Method, path and content identify the write.
    :param subject: what it is about, so that a person can look it up in the service.
    :param given_key: identifies the write instead, whatever its content.
    :param given_kind: what writes of one key have in common, whatever their path; default: method and path.
    """

    method: str
    path: str
    content: Any
    subject: dict[str, Any] = field(default_factory=dict)
    given_key: str | None = None
    given_kind: str | None = None

    @cached_property
    def digest(self) -> str:
        """The digest of method, path and content.

        :raises FsmInputError: if the content cannot be written as JSON.
        """
        try:
            return digest_for([self.method, self.path, self.content], 32)
        except (ValueError, TypeError, RecursionError) as error:
            raise FsmInputError(
                f"{self.method} {self.path}: its content cannot be written as JSON: {error}"
            ) from None

    @property
    def key(self) -> str:
        """The key of its entry."""
        return self.given_key or self.digest

    @property
    def kind(self) -> str:
        """What has to be the same for all writes of its key."""
        return self.given_kind or f"{self.method} {self.path}"

    def __str__(self) -> str:
        return _describe(self.method, self.path, self.subject)


@dataclass(frozen=True)
class WriteOutcome:
    """What the ledger knows of a write that was sent, or is about to be.

    :param result: its result; None if unknown.
    :param error: why the result is unknown, or the conflict (409) that the service returned.
    :param repeat: whether to send it again nevertheless.
    :param under_way: whether another task may be sending it at this moment.
    :param by: the task that has sent it, where that may be another one.
    """

    result: Any = None
    error: FsmError | None = None
    repeat: bool = False
    under_way: bool = False
    by: Task | None = None


def uncertain_now(write: Write, reason: str) -> FsmUncertainWriteError:
    """Return the error of a write whose response, which has just come, leaves its outcome unknown."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return FsmUncertainWriteError(write.method, write.path, reason, now, write.subject)


def still_uncertain(
    write: Write, uncertain: FsmUncertainWriteError, error: FsmError
) -> FsmUncertainWriteError:
    """Return the error of a write that may have happened before another attempt at it failed."""
    reason = f"{uncertain.reason}; another attempt at it failed: {error}"
    return FsmUncertainWriteError(write.method, write.path, reason, uncertain.attempted_at, write.subject)


def repeatable(error: FsmUncertainWriteError) -> FsmRepeatableWriteError:
    """Return the error of a write that the service recognises if it is sent again."""
    return FsmRepeatableWriteError(error.method, error.path, error.reason, error.attempted_at, error.subject)


def task_of(entry: Entry) -> Task | None:
    """Return the task that has sent a write, None where only this one can have."""
    return Task(**entry["by"]) if "by" in entry else None


def error_from(entry: Entry, task: Task | None = None, *, under_way: bool = False) -> FsmError:
    """Return why the result of a write is unknown.

    :param task: the running task, to name another one.
    :param under_way: whether the other one may be sending it at this moment.
    """
    if "error" in entry:
        error = error_from_dict(entry["error"])
    else:
        method, path, attempted_at, subject = entry["sent"]
        by = task_of(entry)
        who = "an earlier attempt of this task" if by == task else by
        reason = f"{who} {'may be sending it' if under_way else 'has recorded no response'}"
        error = FsmUncertainWriteError(method, path, reason, attempted_at, subject)
    if "before" in entry and isinstance(error, FsmUncertainWriteError):
        sent_at, result = entry["before"]["sent"][2], entry["before"].get("result")
        made = f"made: {result.get('id', 'see the service')}" if result else ""
        refused = "refused with 409: it may exist already" if is_conflict(entry["before"]) else ""
        outcome = made or refused or "uncertain as well"
        return replace(error, reason=f"{error.reason}; what was sent before, at {sent_at}, is {outcome}")
    return error


def describe_key(key: str, entry: Entry) -> str:
    """Describe a key, and the task that has sent it, where that may be another one."""
    return f"'{key}', by {by}" if (by := task_of(entry)) else f"'{key}'"


def describe_first(entries: list[Entry]) -> str:
    """Describe the first of several writes, and how many more there are."""
    more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
    return f"{describe_entry(entries[0])}{more}"


def describe_entry(entry: Entry) -> str:
    """Describe the write of an entry."""
    method, path, _, subject = entry["sent"]
    return _describe(method, path, subject)


def _describe(method: str, path: str, subject: dict[str, Any]) -> str:
    about = describe(subject)
    return f"{method} {path}{f' ({about})' if about else ''}"
