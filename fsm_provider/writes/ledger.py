"""The writes of a task and their results, so that each is sent once.

Before a write is sent, its entry is stored as uncertain. Afterwards the entry holds the result; if nothing
was written, the previous entry is restored. A conflict (409) is recorded but does not block another attempt,
unless a key is sent once for all runs.
A retry, a cleared task or a restarted worker reads the entry and knows what its predecessors knew. The key of
an entry comes from what is written, not from its position in the input.

In a database, other tasks may write to the same entries: see :mod:`fsm_provider.state.sql_entries`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from threading import Event, local
from types import TracebackType
from typing import Any, Self

from fsm_provider.api.errors import (
    FsmApiError,
    FsmConflictError,
    FsmError,
    FsmInputError,
    FsmUncertainWriteError,
)
from fsm_provider.api.retry import Attempts
from fsm_provider.state.entries import Entry, LedgerEntries, is_intent
from fsm_provider.state.task import Task
from fsm_provider.writes.idempotency import Idempotency
from fsm_provider.writes.write import (
    Write,
    WriteOutcome,
    describe_entry,
    describe_first,
    error_from,
    is_conflict,
    repeatable,
    still_uncertain,
    task_of,
)

logger: logging.Logger = logging.getLogger(__name__)

LONG_WAIT = 1.0
"""Seconds. Before a wait this long the withdrawal of an intent is stored, so that a kill leaves no doubt."""
LOOK_INTERVAL = 0.5
"""Seconds between two looks at what another task is sending."""


class NothingSentError(Exception):
    """Raised by ``send`` when it stops before it sends anything."""


class _ClaimedError(NothingSentError):
    """Another task has claimed the write meanwhile."""


class Ledger:
    """The writes of one task instance: a context manager, thread-safe.

    :param entries: what is known, and where it is stored.
    :param generation: changes when the task is cleared, not when it is retried.
    :param mapped: whether the task instance is mapped, and its entries are its own: input in another order
        then reaches the entries of another map index.
    :param repeat_uncertain: send writes again whose outcome is unknown.
    :param repeat_done: send writes again that were done before the task was cleared, or that another task has
        sent, if ``once_per_key``. A retry never does.
    :param task: the running task, where other tasks write to the same entries.
    :param once_per_key: whether tasks of all runs do.
    :param max_flight: seconds after which what another task has sent and not recorded is uncertain.
    :param idempotency: the keys by which the service recognises a write; None if it does not.
    :raises Exception: what the store raises. Nothing is known then.
    """

    def __init__(
        self,
        entries: LedgerEntries,
        *,
        generation: int = 0,
        mapped: bool = False,
        repeat_uncertain: bool = False,
        repeat_done: bool = False,
        task: Task | None = None,
        once_per_key: bool = False,
        max_flight: float = 0.0,
        idempotency: Idempotency | None = None,
    ) -> None:
        self._entries = entries
        self._generation = generation
        self._mapped = mapped
        self._repeat_uncertain = repeat_uncertain
        self._repeat_done = repeat_done
        self._task = task
        self._once_per_key = once_per_key
        self._max_flight = timedelta(seconds=max_flight)
        self._idempotency = idempotency
        self._sending = local()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.store()
        finally:
            self._entries.close()

    def store(self) -> None:
        """Store all changes made before the call."""
        self._entries.store()

    def check_current(self) -> None:
        """Fail in an attempt that Airflow has replaced, whose data is out of date."""
        self._entries.check_current()

    def load(self, writes: Collection[Write]) -> None:
        """Read what other tasks have stored of these writes.

        :raises FsmInputError: if writes are sent once for each key, and a key is that of another kind.
        """
        self._entries.load([write.key for write in writes])
        for write in writes if self._once_per_key else ():
            if (entry := self._entries.get(write.key)) and entry["kind"] != _kind(write):
                raise FsmInputError(
                    f"key: '{write.key}' is that of {describe_entry(entry)}, by {task_of(entry)}, and cannot "
                    f"be that of {write} too. A key belongs to one write"
                )

    def expect(self, writes: Collection[Write], settled: Collection[str] = ()) -> None:
        """Check that this attempt is given the same writes as earlier ones.

        :param settled: the keys of writes whose outcome a person has found out: they are not new.
        :raises FsmInputError: in a retry, if an earlier attempt sent writes that are not given now. After a
            clear, if it did and a new write may be the same, changed: any may, unless both have keys of their
            own. In a mapped task whose entries are its own a key does not help, as a write may have moved to
            another map index. Never if writes are sent once for each key.
        """
        found = {write.key: self._entries.get(write.key) for write in writes}
        if not self._once_per_key:
            self._expect_earlier([write for write in writes if write.key not in settled], found)
        for write in writes:
            entry = found[write.key]
            if entry is None:
                continue
            if "result" in entry and entry["digest"] != write.digest and not self._repeats(entry):
                logger.warning(
                    "%s was sent with other content under key '%s'; the change is not sent",
                    describe_entry(entry),
                    write.key,
                )

    def _expect_earlier(self, unsettled: Collection[Write], found: dict[str, Entry | None]) -> None:
        others = [
            (key, entry)
            for key, entry in self._entries
            if key not in found and not is_conflict(entry) and task_of(entry) == self._task
        ]
        if retried := [entry for _, entry in others if entry["generation"] == self._generation]:
            raise FsmInputError(
                "the input has changed since an earlier attempt of this task, which sent "
                f"{describe_first(retried)}. "
                "Templates that render differently in each attempt cause this: give each write a key. "
                "If the change is intended, start another run"
            )
        new = [write for write in unsettled if (entry := found[write.key]) is None or is_conflict(entry)]
        by_key = not self._mapped and all(write.given_key for write in new)
        left = [
            entry
            for key, entry in others
            if not self._repeats(entry) and not (by_key and key != entry["digest"])
        ]
        if new and left:
            raise FsmInputError(
                f"before it was cleared, this task sent {describe_first(left)}, which is no longer in its "
                f"input. {new[0]} is new, and may be the same, "
                f"changed{' or of another map index' * self._mapped}. "
                "Restore the input, and start another run for what is to be added. If it is not the same, "
                "set if_already_done='create' (FsmRequestOperator: if_already_done='send'); this also "
                "repeats all else that was done before the clear. If the outcome of the earlier one is "
                "uncertain, set if_uncertain instead"
            )

    def get(self, write: Write, *, waited: bool = False) -> WriteOutcome | None:
        """Return what is known of a write; None if, as far as the ledger knows, it was never sent.

        :param waited: whether another task has had the time to send and record it.
        """
        entry = self._entries.get(write.key)
        if entry is None:
            return None
        by, repeat = task_of(entry), self._repeats(entry)
        if "result" in entry:
            return WriteOutcome(result=entry["result"], repeat=repeat, by=by)
        under_way = not waited and self._is_under_way(entry)
        error = error_from(entry, self._task, under_way=under_way)
        if self._is_recognised(entry) and isinstance(error, FsmUncertainWriteError):
            error, repeat = repeatable(error), True
        return WriteOutcome(error=error, repeat=repeat, under_way=under_way, by=by)

    def run_once(
        self,
        write: Write,
        send: Callable[[], Any],
        *,
        prepare: Callable[[], Any] = lambda: None,
        keep: Callable[[Any], Any] = lambda result: result,
        find: Callable[[], Any] | None = None,
        stopping: Event | None = None,
    ) -> Any:
        """Send a write, or return the result of an earlier attempt or another task that sent it.

        The intent is stored first; the result is stored by the next :meth:`store`. What another task is
        sending at this moment is waited for. A write that the service recognises is repeated while its
        outcome is unknown.

        :param send: returns the result, JSON and not None.
        :param prepare: called before the intent is stored, if there is something to send.
        :param keep: returns the part of the result that is stored, and that later attempts return.
        :param find: looks for what a write has written whose outcome is unknown, before it is sent again, and
            after it was sent; returns the result, or None.
        :param stopping: ends the wait.
        :raises FsmUncertainWriteError: if an earlier attempt sent it without learning the outcome; also if it
            was then sent again and refused.
        :raises NothingSentError: if ``stopping`` has ended the wait.
        :raises FsmError: what ``send`` raises.
        """
        stopping = stopping or Event()
        attempts = self._idempotency.attempts() if self._idempotency else None
        while True:
            known = self._known_at_rest(write, stopping)
            is_uncertain = known is not None and isinstance(known.error, FsmUncertainWriteError)
            if is_uncertain and (found := self._find(write, prepare, find)) is not None:
                return found
            if known is None or known.repeat:
                prepare()
                try:
                    return self._send(write, send, keep, known.error if known else None)
                except _ClaimedError:
                    continue
                except FsmError as error:
                    failure = error
                if failure.may_have_written and (found := self._find(write, prepare, find)) is not None:
                    return found
                self._wait_to_repeat(failure, attempts, stopping)
                continue
            if known.error:
                raise known.error
            self._refuse_equal_of_another_index(write)
            who = f"by {known.by}" if known.by not in (None, self._task) else "by an earlier attempt"
            logger.info("%s %s was sent %s; its result is reused", write.method, write.path, who)
            return known.result

    @staticmethod
    def _wait_to_repeat(error: FsmError, attempts: Attempts | None, stopping: Event) -> None:
        """Wait before a write is repeated that the service recognises.

        :raises FsmError: ``error``, if it is not to be repeated now.
        """
        if attempts is None or not isinstance(error, FsmUncertainWriteError):
            raise error
        refusal = error.__cause__
        if isinstance(refusal, FsmApiError) and not isinstance(refusal, FsmConflictError):
            raise error
        if stopping.wait(attempts.delay_after(repeatable(error))):
            raise repeatable(error)

    def _find(self, write: Write, prepare: Callable[[], Any], find: Callable[[], Any] | None) -> Any:
        """Look for what a write has written; a failure leaves it uncertain."""
        if find is None:
            return None
        try:
            prepare()
            found = find()
        except Exception as error:  # noqa: BLE001 - it is the user's function
            logger.warning("%s could not be looked up: %s: %s", write, type(error).__name__, error)
            return None
        if found is not None:
            logger.info("%s was found in the service", write)
            self.record(write, found)
        return found

    def _refuse_equal_of_another_index(self, write: Write) -> None:
        """Refuse a write without a key that another map index has sent: whether both are wanted is not known.

        After a clear, it may have moved to this index, and is the same.
        """
        entry = self._entries.get(write.key)
        if entry and not write.given_key and entry["generation"] == self._generation:
            by = task_of(entry)
            if by and self._task and by.map_index != self._task.map_index:
                raise FsmInputError(
                    f"{write} is equal to what {by} has sent: leave one out, or give both keys"
                )

    def _known_at_rest(self, write: Write, stopping: Event) -> WriteOutcome | None:
        """Return what is known of a write once no other task is sending it.

        The wait has an end even if the clock of the other one is ahead.
        """
        seen, since = None, 0.0
        while (known := self.get(write)) and known.under_way:
            if (entry := self._entries.get(write.key)) != seen:
                logger.info("Waiting for another task: %s", known.error)
                seen, since = entry, time.monotonic()
            elif time.monotonic() - since >= self._max_flight.total_seconds():
                return self.get(write, waited=True)
            if stopping.wait(LOOK_INTERVAL):
                raise NothingSentError("stopped before anything was sent")
            self.load([write])
        return known

    def record(self, write: Write, result: Any) -> None:
        """Record the result, JSON and not None, of a write whose outcome a person has found out."""
        self._entries.put(write.key, {**self._intent(write), "result": result})

    def headers(self) -> dict[str, str]:
        """Return the headers by which the service recognises the write, inside ``send``."""
        _, _, sent = self._sending.write
        return {sent["header"]: sent["key"]} if sent else {}

    def wait(self, seconds: float, stopping: Event) -> None:
        """Wait before a request, inside ``send``. The intent is withdrawn meanwhile, as nothing is in flight.

        :param seconds: how long.
        :param stopping: ends the wait.
        :raises NothingSentError: if it ended the wait.
        """
        sending: tuple[Write, Entry | None, Entry | None] | None = getattr(self._sending, "write", None)
        withdrawn = sending if seconds > 0 else None
        if withdrawn:
            write, before, _ = withdrawn
            self._entries.put(write.key, before)
            if seconds >= LONG_WAIT:
                self.store()
        if stopping.wait(seconds):
            raise NothingSentError("stopped before anything was sent")
        if withdrawn:
            self._store_intent(*withdrawn)

    def _send(
        self,
        write: Write,
        send: Callable[[], Any],
        keep: Callable[[Any], Any],
        uncertain: FsmError | None,
    ) -> Any:
        before = self._entries.get(write.key)
        sent = self._idempotency.for_intent(before) if self._idempotency else None
        self._store_intent(write, before, sent)
        self._sending.write = write, before, sent
        try:
            result = send()
        except FsmError as error:
            if error.may_have_written:
                entry = {**self._sent(write), "error": error.as_dict()}
                self._entries.put(write.key, entry)
                if before:
                    raise error_from(entry, self._task) from error
                raise
            if isinstance(error, FsmConflictError) and (before is None or is_conflict(before)):
                before = {**self._intent(write), "error": error.as_dict()}
            self._withdraw(write, before)
            if isinstance(uncertain, FsmUncertainWriteError) and error.permanent:
                raise still_uncertain(write, uncertain, error) from error
            raise
        except _ClaimedError:
            raise
        except NothingSentError:
            self._withdraw(write, before)
            raise
        finally:
            self._sending.write = None
        self._entries.put(write.key, {**self._sent(write), "result": keep(result)})
        return result

    def _withdraw(self, write: Write, before: Entry | None) -> None:
        """Restore what was known before.

        :raises _ClaimedError: if another task knows more by now.
        """
        self._entries.put(write.key, before)
        if self._task:
            self.store()
            if self._entries.get(write.key) is not before:
                raise _ClaimedError

    def _store_intent(self, write: Write, before: Entry | None, sent: Entry | None) -> None:
        further = {"before": before, "idempotency": sent}
        intent = {**self._intent(write), **{name: value for name, value in further.items() if value}}
        self._entries.put(write.key, intent)
        try:
            self.store()
        except BaseException:
            if self._entries.get(write.key) is intent:  # and not what another task has written
                self._entries.put(write.key, before)
            raise
        if self._entries.get(write.key) is not intent:
            raise _ClaimedError

    def _intent(self, write: Write) -> Entry:
        attempted_at = datetime.now(UTC).isoformat(timespec="seconds")
        intent = {
            "generation": self._generation,
            "digest": write.digest,
            "sent": [write.method, write.path, attempted_at, write.subject],
        }
        return intent if self._task is None else {**intent, "kind": _kind(write), "by": self._task.as_dict()}

    def _sent(self, write: Write) -> Entry:
        return self._entries.get(write.key) or self._intent(write)

    def _repeats(self, entry: Entry) -> bool:
        if is_conflict(entry):
            return self._repeat_uncertain or self._repeat_done or not self._once_per_key
        if self._once_per_key and self._repeat_done and task_of(entry) != self._task:
            return not self._has_done(entry.get("before"))
        if "result" in entry:
            return self._repeat_done and entry["generation"] != self._generation
        return self._repeat_uncertain

    def _is_recognised(self, entry: Entry) -> bool:
        return self._idempotency is not None and self._idempotency.recognises(entry)

    def _has_done(self, entry: Entry | None) -> bool:
        """Return whether this task did the write since it was cleared, before another task repeated it."""
        while entry:
            if "result" in entry and task_of(entry) == self._task:
                return bool(entry["generation"] == self._generation)
            entry = entry.get("before")
        return False

    def _is_under_way(self, entry: Entry) -> bool:
        if not is_intent(entry) or task_of(entry) == self._task:
            return False
        return datetime.now(UTC) - datetime.fromisoformat(entry["sent"][2]) < self._max_flight


def _kind(write: Write) -> str:
    return write.kind or f"{write.method} {write.path}"
