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
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event, Lock, local
from types import TracebackType
from typing import Any, Self

from fsm_provider.api.adapter import send_before
from fsm_provider.api.errors import (
    FsmApiError,
    FsmConflictError,
    FsmError,
    FsmInputError,
    FsmRepeatableWriteError,
    FsmUncertainWriteError,
)
from fsm_provider.api.retry import Attempts
from fsm_provider.state.entries import Entry, flight_of, has_id, is_conflict, may_arrive
from fsm_provider.writes.known_writes import KnownWrites
from fsm_provider.writes.write import (
    Write,
    WriteOutcome,
    describe_first,
    describe_key,
    error_from,
    repeatable,
    still_uncertain,
    task_of,
)

logger: logging.Logger = logging.getLogger(__name__)

LONG_WAIT = 1.0
"""Seconds. Before a wait this long the withdrawal of an intent is stored, so that a kill leaves no doubt."""
INTENT_LIFETIME = 1.0
"""Seconds. An intent that waited longer is stored anew before it is sent: others may have taken it over."""
LOOK_INTERVAL = 0.5
"""Seconds between two looks at what another task is sending."""


class NothingSentError(Exception):
    """Raised by ``send`` when it stops before it sends anything."""


class _ClaimedError(NothingSentError):
    """Another task has claimed the write meanwhile."""


@dataclass(eq=False, repr=False)
class Ledger(KnownWrites):
    """The writes of one task instance, with the arguments of its base: a context manager, thread-safe.

    :raises Exception: what the store raises. Nothing is known then.
    """

    def __post_init__(self) -> None:
        self._sending = local()
        self._recording = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.store()
        finally:
            self.entries.close()

    def store(self) -> None:
        """Store all changes made before the call."""
        self.entries.store()

    def check_current(self) -> None:
        """Fail in an attempt that Airflow has replaced, whose data is out of date."""
        self.entries.check_current()

    def load(self, writes: Collection[Write]) -> None:
        """Read what other tasks have stored of these writes.

        :raises FsmInputError: if writes are sent once for each key, and a key is that of another kind.
        """
        self.entries.load([write.key for write in writes])
        self.refuse_keys_of_other_kinds(writes)

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
        attempts = Attempts(self.idempotency.policy) if self.idempotency else None
        while True:
            known = self._known_at_rest(write, stopping, looks_up=find is not None)
            error = known.error if known else self._left_at_rest(write, stopping)
            uncertain = error if isinstance(error, FsmUncertainWriteError) else None
            if uncertain and (found := self._find(write, prepare, find, uncertain)) is not None:
                return found
            if known is None or known.repeat:
                if stopping.is_set():
                    raise NothingSentError("stopped before anything was sent")
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
            self.refuse_equal_of_another_index(write)
            who = f"by {known.by}" if known.by not in (None, self.task) else "by an earlier attempt"
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

    def _find(
        self,
        write: Write,
        prepare: Callable[[], Any],
        find: Callable[[], Any] | None,
        uncertain: FsmError | None = None,
    ) -> Any:
        """Look for what a write has written; a failure leaves it uncertain.

        :param uncertain: raised after a failure, unless the service recognises the write.
        """
        if find is None:
            return None
        try:
            prepare()
            if (found := find()) is not None:
                with self._recording:
                    self._check_unknown(write, found)
                    self.record(write, found)
        except Exception as error:  # noqa: BLE001 - it is the user's function
            logger.warning("%s could not be looked up: %s: %s", write, type(error).__name__, error)
            if uncertain is None or isinstance(uncertain, FsmRepeatableWriteError):
                return None
            raise uncertain from None
        if found is not None:
            logger.info("%s was found in the service", write)
        return found

    def _check_unknown(self, write: Write, found: Any) -> None:
        """Check that what was found is not what another write, or an earlier one of this key, has written.

        :raises FsmInputError: if it is.
        """
        earlier = self.entries.get(write.key)
        while earlier and (earlier := earlier.get("before")):
            if has_id(earlier, write.kind, found["id"]):
                raise FsmInputError(f"job {found['id']} is what an earlier request with this key has created")
        if holder := self.holder_of(write, found["id"]):
            raise FsmInputError(f"job {found['id']} is that of {holder}")
        for key, entry in self.entries.intents_of_others(write.key, write.subject):
            if key not in self.left or task_of(entry) != self.task:
                raise FsmInputError(
                    f"job {found['id']} may be what is being sent with key {describe_key(key, entry)}"
                )

    def _known_at_rest(self, write: Write, stopping: Event, *, looks_up: bool) -> WriteOutcome | None:
        """Return what is known of a write once no other task is sending it.

        Before it is looked up or sent again, the request of an earlier attempt has to arrive, too.
        """

        def awaited(entry: Entry) -> str:
            known = self.get(write)
            if known is None or known.under_way:
                return f"another task: {known.error}" if known else ""
            asks_again = (looks_up or known.repeat) and not isinstance(known.error, FsmRepeatableWriteError)
            return self._on_its_way(entry) if asks_again else ""

        waited = self._wait_for(write.key, awaited, stopping)
        self.refuse_keys_of_other_kinds([write])
        return self.get(write, waited=waited)

    def _left_at_rest(self, write: Write, stopping: Event) -> FsmError | None:
        """Return why the outcome of a write is unknown that ``write`` may be, changed; None if there is none.

        :raises FsmInputError: if it is known meanwhile.
        """
        known = {key: entry for key in sorted(self.left) if (entry := self.entries.get(key))}
        keys = [key for key, entry in known.items() if entry["sent"][1] == write.path]
        for key in keys:
            self._wait_for(key, self._on_its_way, stopping)
        left = [entry for key in keys if (entry := self.entries.get(key))]
        if done := [entry for entry in left if "result" in entry]:
            raise FsmInputError(
                f"an earlier attempt of this task has sent {describe_first(done)}, which is no longer in its "
                "input. Restore the input"
            )
        return error_from(left[0], self.task) if left else None

    def _on_its_way(self, entry: Entry) -> str:
        if not may_arrive(entry, self.max_flight):
            return ""
        return f"a request that may be on its way: {error_from(entry, self.task)}"

    def _wait_for(self, key: str, awaited: Callable[[Entry], str], stopping: Event) -> bool:
        """Wait while there is something to wait for, as ``awaited`` describes it.

        The wait has an end even if the clock of the sender is ahead.

        :return: whether it ended so.
        """
        seen, since = None, 0.0
        while (entry := self.entries.get(key)) and (what := awaited(entry)):
            if entry != seen:
                logger.info("Waiting for %s", what)
                seen, since = entry, time.monotonic()
            elif time.monotonic() - since >= flight_of(entry, self.max_flight):
                return True
            if stopping.wait(LOOK_INTERVAL):
                raise NothingSentError("stopped before anything was sent")
            self.entries.load([key])
        return False

    def record(self, write: Write, result: Any) -> None:
        """Record the result, JSON and not None, of a write whose outcome a person has found out."""
        self.entries.put(write.key, {**self._intent(write), "result": result})

    def headers(self) -> dict[str, str]:
        """Return the headers by which the service recognises the write, inside ``send``."""
        _, _, sent = self._sending.write
        return {sent["header"]: sent["key"]} if sent else {}

    def renew(self) -> None:
        """Store the intent anew, inside ``send``, if it has waited for long to be sent.

        :raises NothingSentError: if another task has taken it over meanwhile.
        """
        if time.monotonic() - self._sending.stored_at >= INTENT_LIFETIME:
            self._store_intent(*self._sending.write)

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
            self.entries.put(write.key, before)
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
        before = self.entries.get(write.key)
        sent = self.idempotency.for_intent(write.digest, before) if self.idempotency else None
        self._store_intent(write, before, sent)
        self._sending.write = write, before, sent
        try:
            result = send()
        except FsmError as error:
            if error.may_have_written:
                entry = {**self._sent(write), "error": error.as_entry()}
                self._put_now(write, entry)
                if before:
                    raise error_from(entry, self.task) from error
                raise
            if isinstance(error, FsmConflictError) and (before is None or is_conflict(before)):
                before = {**self._intent(write), "error": error.as_entry()}
            self._put_now(write, before)
            if isinstance(uncertain, FsmUncertainWriteError) and error.permanent:
                raise still_uncertain(write, uncertain, error) from error
            raise
        except _ClaimedError:
            raise
        except NothingSentError:
            self._put_now(write, before)
            raise
        finally:
            self._sending.write = None
            send_before.set(None)
        self.entries.put(write.key, {**self._sent(write), "result": keep(result)})
        return result

    def _put_now(self, write: Write, entry: Entry | None) -> None:
        """Put an entry that tells nothing final; store it, where others write too.

        :raises _ClaimedError: if another task, or a settlement, knows more by now.
        """
        self.entries.put(write.key, entry)
        if self.task:
            self.store()
            if self.entries.get(write.key) is not entry:
                raise _ClaimedError

    def _store_intent(self, write: Write, before: Entry | None, sent: Entry | None) -> None:
        further = {"before": before, "idempotency": sent}
        intent = {**self._intent(write), **{name: value for name, value in further.items() if value}}
        self.entries.put(write.key, intent)
        self._sending.stored_at = time.monotonic()
        try:
            self.store()
        except BaseException:
            if self.entries.get(write.key) is intent:  # and not what another task has written
                self.entries.put(write.key, before)
            raise
        if self.entries.get(write.key) is not intent:
            raise _ClaimedError
        # Others wait longer: what begins by then has arrived before they look or send.
        send_before.set(self._sending.stored_at + self.max_flight / 2 if self.max_flight else None)

    def _intent(self, write: Write) -> Entry:
        attempted_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        intent = {
            "generation": self.generation,
            "digest": write.digest,
            "sent": [write.method, write.path, attempted_at, write.subject],
            "max_flight": self.max_flight,
        }
        return intent if self.task is None else {**intent, "kind": write.kind, "by": self.task.as_dict()}

    def _sent(self, write: Write) -> Entry:
        return self.entries.get(write.key) or self._intent(write)
