"""The writes of a task and their results, in the task's state store, so that each is sent once.

Before a write is sent, its entry is stored as uncertain. Afterwards the entry holds the result; if nothing
was written, the previous entry is restored. A conflict (409) is recorded but does not block another attempt.
A retry, a cleared task or a restarted worker reads the entry and knows what its predecessors knew. The key of
an entry comes from what is written, not from its position in the input.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from threading import Event, local
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fsm_provider.api.errors import (
    FsmConflictError,
    FsmError,
    FsmInputError,
    FsmUncertainWriteError,
    describe,
    error_from_dict,
)
from fsm_provider.state.digest import digest_for
from fsm_provider.state.task_store import Entry, LedgerStore, StateStore
from fsm_provider.state.variable_store import NoStateStore, state_store_for

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

logger: logging.Logger = logging.getLogger(__name__)

LONG_WAIT = 1.0
"""Seconds. Before a wait this long the withdrawal of an intent is stored, so that a kill leaves no doubt."""


class NothingSentError(Exception):
    """Raised by ``send`` when it stops before it sends anything."""


@dataclass(frozen=True)
class Write:
    """One write, to be sent once.

    :param content: what is written, as JSON values. Method, path and content identify the write.
    :param subject: what it is about, so that a person can look it up in the service.
    :param given_key: identifies the write instead, whatever its content.
    """

    method: str
    path: str
    content: Any
    subject: dict[str, Any] = field(default_factory=dict)
    given_key: str | None = None

    @cached_property
    def digest(self) -> str:
        """The digest of method, path and content."""
        return digest_for([self.method, self.path, self.content], 32)

    @property
    def key(self) -> str:
        """The key of its entry."""
        return self.given_key or self.digest

    def __str__(self) -> str:
        return _describe(self.method, self.path, self.subject)


@dataclass(frozen=True)
class WriteOutcome:
    """What the ledger knows of a write that was sent, or was about to be.

    :param result: its result; None if unknown.
    :param error: why the result is unknown, or the conflict (409) that the service returned.
    :param repeat: whether to send it again nevertheless.
    """

    result: Any = None
    error: FsmError | None = None
    repeat: bool = False


class Ledger:
    """The writes of one task instance: a context manager, thread-safe.

    :param store: where the entries are stored.
    :param generation: changes when the task is cleared, not when it is retried.
    :param mapped: whether the task instance is mapped: input in another order then reaches the ledger of
        another map index.
    :param repeat_uncertain: send writes again whose outcome is unknown.
    :param repeat_done: send writes again that were done before the task was cleared. A retry never does.
    :raises Exception: what the store raises. Nothing is known then.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        generation: int = 0,
        mapped: bool = False,
        repeat_uncertain: bool = False,
        repeat_done: bool = False,
    ) -> None:
        self._entries = LedgerStore(store)
        self._generation = generation
        self._mapped = mapped
        self._repeat_uncertain = repeat_uncertain
        self._repeat_done = repeat_done
        self._sending = local()

    @classmethod
    def from_context(
        cls, context: Context, *, repeat_uncertain: bool = False, repeat_done: bool = False
    ) -> Self:
        """Open the ledger of the running task."""
        store = state_store_for(context)
        if isinstance(store, NoStateStore):
            return cls(store)
        task_instance = context["ti"]
        return cls(
            store,
            # Airflow sets max_tries when it creates a task instance and again when it clears it.
            generation=task_instance.max_tries,
            mapped=task_instance.map_index not in (None, -1),
            repeat_uncertain=repeat_uncertain,
            repeat_done=repeat_done,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.store()

    def store(self) -> None:
        """Store all changes made before the call."""
        self._entries.store()

    def check_current(self) -> None:
        """Store all changes; fails in an attempt that Airflow has replaced, whose data is out of date."""
        self._entries.check_current()

    def expect(self, writes: Collection[Write]) -> None:
        """Check that this attempt is given the same writes as earlier ones.

        :raises FsmInputError: in a retry, if an earlier attempt sent writes that are not given now. After a
            clear, if it did and a new write may be the same, changed: any may, unless both have keys of their
            own. In a mapped task a key does not help, as a write may have moved to another map index.
        """
        sent = {key: entry for key, entry in self._entries if not _is_conflict(entry)}
        found = {write.key: sent.get(write.key) for write in writes}
        others = [(key, entry) for key, entry in sent.items() if key not in found]
        if retried := [entry for _, entry in others if entry["generation"] == self._generation]:
            raise FsmInputError(
                f"the input has changed since an earlier attempt of this task, which sent {_first(retried)}. "
                "Templates that render differently in each attempt cause this: give each write a key. "
                "If the change is intended, start another run"
            )
        new = [write for write in writes if found[write.key] is None]
        by_key = not self._mapped and all(write.given_key for write in new)
        left = [
            entry
            for key, entry in others
            if not self._repeats(entry) and not (by_key and key != entry["digest"])
        ]
        if new and left:
            raise FsmInputError(
                f"before it was cleared, this task sent {_first(left)}, which is no longer in its input. "
                f"{new[0]} is new, and may be the same, changed{' or of another map index' * self._mapped}. "
                "Restore the input, and start another run for what is to be added. If it is not the same, "
                "set if_already_done='create' (FsmRequestOperator: if_already_done='send'); this also "
                "repeats all else that was done before the clear. If the outcome of the earlier one is "
                "uncertain, set if_uncertain instead"
            )
        for write in writes:
            entry = found[write.key]
            if entry and "result" in entry and entry["digest"] != write.digest and not self._repeats(entry):
                logger.warning(
                    "%s was sent with other content under key '%s'; the change is not sent",
                    _describe_entry(entry),
                    write.key,
                )

    def get(self, write: Write) -> WriteOutcome | None:
        """Return what is known of a write; None if, as far as the ledger knows, it was never sent."""
        entry = self._entries.get(write.key)
        if entry is None:
            return None
        if "result" in entry:
            return WriteOutcome(result=entry["result"], repeat=self._repeats(entry))
        return WriteOutcome(error=_error_from(entry), repeat=self._repeats(entry))

    def run_once(
        self,
        write: Write,
        send: Callable[[], Any],
        *,
        prepare: Callable[[], Any] = lambda: None,
        keep: Callable[[Any], Any] = lambda result: result,
    ) -> Any:
        """Send a write, or return the result of an earlier attempt that sent it.

        The intent is stored first; the result is stored by the next :meth:`store`.

        :param send: returns the result, JSON and not None.
        :param prepare: called before the intent is stored, if there is something to send.
        :param keep: returns the part of the result that is stored, and that later attempts return.
        :raises FsmUncertainWriteError: if an earlier attempt sent it without learning the outcome; also if it
            was then sent again and refused.
        :raises FsmError: what ``send`` raises.
        """
        known = self.get(write)
        if known is None or known.repeat:
            prepare()
            return self._send(write, send, keep, known.error if known else None)
        if known.error:
            raise known.error
        logger.info("%s %s was sent by an earlier attempt; its result is reused", write.method, write.path)
        return known.result

    def record(self, write: Write, result: Any) -> None:
        """Record the result, JSON and not None, of a write whose outcome a person has found out."""
        self._entries.put(write.key, {**self._intent(write), "result": result})

    def wait(self, seconds: float, stopping: Event) -> None:
        """Wait before a request, inside ``send``. The intent is withdrawn meanwhile, as nothing is in flight.

        :param seconds: how long.
        :param stopping: ends the wait.
        :raises NothingSentError: if it ended the wait.
        """
        sending: tuple[Write, Entry | None] | None = getattr(self._sending, "write", None)
        withdrawn = sending if seconds > 0 else None
        if withdrawn:
            write, before = withdrawn
            self._entries.put(write.key, before)
            if seconds >= LONG_WAIT:
                self.store()
        if stopping.wait(seconds):
            raise NothingSentError("stopped before anything was sent")
        if withdrawn:
            self._store_intent(*withdrawn)

    def _send(
        self, write: Write, send: Callable[[], Any], keep: Callable[[Any], Any], uncertain: FsmError | None
    ) -> Any:
        before = self._entries.get(write.key)
        self._store_intent(write, before)
        self._sending.write = write, before
        try:
            result = send()
        except FsmError as error:
            if error.may_have_written:
                entry = {**self._sent(write), "error": error.as_dict()}
                self._entries.put(write.key, entry)
                if before:
                    raise _error_from(entry) from error
                raise
            if isinstance(error, FsmConflictError) and (before is None or _is_conflict(before)):
                before = {**self._intent(write), "error": error.as_dict()}
            self._entries.put(write.key, before)
            if isinstance(uncertain, FsmUncertainWriteError) and error.permanent:
                raise still_uncertain(write, uncertain, error) from error
            raise
        except NothingSentError:
            self._entries.put(write.key, before)
            raise
        finally:
            self._sending.write = None
        self._entries.put(write.key, {**self._sent(write), "result": keep(result)})
        return result

    def _store_intent(self, write: Write, before: Entry | None) -> None:
        self._entries.put(write.key, {**self._intent(write), **({"before": before} if before else {})})
        try:
            self.store()
        except BaseException:
            self._entries.put(write.key, before)
            raise

    def _intent(self, write: Write) -> Entry:
        attempted_at = datetime.now(UTC).isoformat(timespec="seconds")
        return {
            "generation": self._generation,
            "digest": write.digest,
            "sent": [write.method, write.path, attempted_at, write.subject],
        }

    def _sent(self, write: Write) -> Entry:
        return self._entries.get(write.key) or self._intent(write)

    def _repeats(self, entry: Entry) -> bool:
        if _is_conflict(entry):
            return True
        if "result" in entry:
            return self._repeat_done and entry["generation"] != self._generation
        return self._repeat_uncertain


def still_uncertain(write: Write, uncertain: FsmError, error: FsmError) -> FsmUncertainWriteError:
    """Return the error of a write that may have happened before another attempt at it failed."""
    reason, attempted_at = str(uncertain), "an earlier time"
    if isinstance(uncertain, FsmUncertainWriteError):
        reason, attempted_at = uncertain.reason, uncertain.attempted_at
    reason = f"{reason}; another attempt at it failed: {error}"
    return FsmUncertainWriteError(write.method, write.path, reason, attempted_at, write.subject)


def _is_conflict(entry: Entry) -> bool:
    return bool(entry.get("error", {}).get("type") == FsmConflictError.__name__)


def _error_from(entry: Entry) -> FsmError:
    if "error" in entry:
        error = error_from_dict(entry["error"])
    else:
        method, path, attempted_at, subject = entry["sent"]
        reason = "an earlier attempt of this task ended before a response was recorded"
        error = FsmUncertainWriteError(method, path, reason, attempted_at, subject)
    if "before" in entry and isinstance(error, FsmUncertainWriteError):
        sent_at, result = entry["before"]["sent"][2], entry["before"].get("result")
        made = f"made: {result.get('jobID', result.get('id', 'see the service'))}" if result else ""
        refused = "refused with 409: it may exist already" if _is_conflict(entry["before"]) else ""
        outcome = made or refused or "uncertain as well"
        return replace(error, reason=f"{error.reason}; what was sent before, at {sent_at}, is {outcome}")
    return error


def _first(entries: list[Entry]) -> str:
    more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
    return f"{_describe_entry(entries[0])}{more}"


def _describe_entry(entry: Entry) -> str:
    method, path, _, subject = entry["sent"]
    return _describe(method, path, subject)


def _describe(method: str, path: str, subject: dict[str, Any]) -> str:
    about = describe(subject)
    return f"{method} {path}{f' ({about})' if about else ''}"
