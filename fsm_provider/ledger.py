"""What a task has sent and what came of it, in Airflow's task state store: a write is made once.

Before a write is sent its entry says that it is uncertain; afterwards the entry holds the result, or is
gone where nothing happened. Whoever finds an entry (a retry, a cleared task, a restarted worker) knows
what is known. Entries are looked up by what is written, not by their position in any input.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from fsm_provider.api.errors import FsmError, FsmInputError, FsmUncertainWriteError, error_from_dict, in_words
from fsm_provider.compat import never_expire, task_state_store
from fsm_provider.digest import digest_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

logger: logging.Logger = logging.getLogger(__name__)

PAGE_ENTRIES = 64
"""Entries stored under one key of the store: a page is written as a whole."""


class StateStore(Protocol):
    """``context["task_state_store"]`` of Airflow 3.3 and newer."""

    def get(self, key: str, default: Any = None) -> Any:
        """Give a JSON value."""

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        """Store a JSON value."""


class NothingSentError(Exception):
    """What ``send`` raises to say that it was stopped before anything left."""


@dataclass(frozen=True)
class Write:
    """One write that is to be made once.

    :param content: what is written, JSON: with method and path, what makes it this write.
    :param subject: what it is about, for a person who has to look it up in the service.
    :param given_key: what makes it this write instead, whatever its content.
    """

    method: str
    path: str
    content: Any
    subject: dict[str, Any] = field(default_factory=dict)
    given_key: str | None = None

    @cached_property
    def digest(self) -> str:
        """A digest of method, path and content."""
        return digest_of([self.method, self.path, self.content], 32)

    @property
    def key(self) -> str:
        """The key of its entry."""
        return self.given_key or self.digest


class Ledger:
    """The writes of one task instance; for use in a ``with``, from any number of threads.

    :param store: where the entries are kept; None keeps them for this try only.
    :param generation: changes when the task is cleared, and not when it is retried.
    :param mapped: whether the task is one of a mapped task, so that input in another order comes to the
        ledger of another.
    :param repeat_uncertain: make a write again whose outcome is unknown.
    :param repeat_made: make a write again that was made before the task was cleared. A retry never does.
    """

    def __init__(
        self,
        store: StateStore | None,
        *,
        generation: int = 0,
        mapped: bool = False,
        repeat_uncertain: bool = False,
        repeat_made: bool = False,
    ) -> None:
        self._store = store
        self._generation = generation
        self._mapped = mapped
        self._repeat_uncertain = repeat_uncertain
        self._repeat_made = repeat_made
        self._pages: list[dict[str, dict[str, Any]]] = []
        self._unstored: set[int] = set()
        self._changes = self._stored_changes = 0
        self._changing, self._storing = Lock(), Lock()
        while store is not None and (page := store.get(_page_key(len(self._pages)))) is not None:
            self._pages.append(page)

    @classmethod
    def of(cls, context: Context, *, repeat_uncertain: bool = False, repeat_made: bool = False) -> Self:
        """Open the ledger of a task that runs."""
        store = task_state_store(context)
        if store is None:
            logger.warning(
                "This Airflow keeps no state for a task (3.3 and newer do): should the task be cleared, "
                "or run again after its worker died, it will send again what it has sent"
            )
            return cls(None)
        task_instance = context["ti"]
        return cls(
            store,
            # Airflow sets it when a task instance is made, and again when it is cleared.
            generation=task_instance.max_tries,
            mapped=task_instance.map_index not in (None, -1),
            repeat_uncertain=repeat_uncertain,
            repeat_made=repeat_made,
        )

    @property
    def keeps(self) -> bool:
        """Whether another try of the task finds what this one has written."""
        return self._store is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.store()

    def expect(self, writes: Iterable[Write]) -> None:
        """Check that this try is asked for the same writes as those before it.

        :raises FsmInputError: where an earlier try made others: a retry would make these beside them, and
            a mapped task that was cleared may have been given what belongs to another of its tasks.
        """
        keys = {write.key for write in writes}
        others = [entry for page in self._pages for key, entry in page.items() if key not in keys]
        if retried := [entry for entry in others if entry["generation"] == self._generation]:
            raise FsmInputError(
                "the input has changed since an earlier try of this task, which sent "
                f"{_subject(retried[0])}. A template that gives another text at each try does that: give a "
                "key to what is to be written. Where the change is meant, clear the task"
            )
        if others and self._mapped and not self._repeat_made:
            raise FsmInputError(
                f"before it was cleared, this mapped task sent {_subject(others[0])}. Input in another order "
                "does that, and would be written twice: give all of it to one task, as to "
                "FsmCreateJobsOperator. Where the change is meant, set if_already_created='create' "
                "(FsmRequestOperator: if_already_sent='send')"
            )

    def once(self, write: Write, send: Callable[[], Any]) -> Any:
        """Send a write, or give the result of an earlier try that has sent it.

        The intent is stored before; the result is, by the time that :meth:`store` is called next.

        :param send: gives the result, JSON and not None.
        :raises FsmUncertainWriteError: where an earlier try sent it, and did not learn what came of it.
        :raises FsmError: what ``send`` raises.
        """
        result = self._result_of(write)
        if result is None:
            return self._make(write, send)
        logger.info("%s %s was sent by an earlier try, whose result this is", write.method, write.path)
        return result

    def settle(self, write: Write, result: Any) -> None:
        """Note the result of a write whose outcome somebody has found out, JSON and not None."""
        self._note(write.key, {**self._intent(write), "result": result})

    def store(self) -> None:
        """Return once everything that happened before the call is stored.

        While one thread stores, the others wait, and the next of them stores for all.
        """
        wanted = self._changes
        with self._storing:
            if self._store is None or self._stored_changes >= wanted:
                return
            with self._changing:
                changes = self._changes
                pages = {number: dict(self._pages[number]) for number in self._unstored}
                self._unstored.clear()
            try:
                for number, page in pages.items():
                    self._store.set(_page_key(number), page, retention=never_expire())
            except BaseException:
                with self._changing:
                    self._unstored |= pages.keys()
                raise
            self._stored_changes = changes

    def _result_of(self, write: Write) -> Any:
        number = self._page_of(write.key)
        if number is None:
            return None
        entry = self._pages[number][write.key]
        if "result" not in entry:
            if self._repeat_uncertain:
                return None
            raise _uncertainty_of(entry)
        if self._repeat_made and entry["generation"] != self._generation:
            return None
        if entry["digest"] != write.digest:
            logger.warning(
                "%s was written with other content under key '%s'; what has changed since is not sent",
                _subject(entry),
                write.key,
            )
        return entry["result"]

    def _make(self, write: Write, send: Callable[[], Any]) -> Any:
        entry = self._intent(write)
        self._note(write.key, entry)
        try:
            self.store()
        except BaseException:
            self._note(write.key, None)
            raise
        try:
            result = send()
        except FsmError as error:
            self._note(write.key, {**entry, "error": error.as_dict()} if error.may_have_written else None)
            raise
        except NothingSentError:
            self._note(write.key, None)
            raise
        self._note(write.key, {**entry, "result": result})
        return result

    def _intent(self, write: Write) -> dict[str, Any]:
        return {
            "generation": self._generation,
            "digest": write.digest,
            "sent": [
                write.method,
                write.path,
                datetime.now(UTC).isoformat(timespec="seconds"),
                write.subject,
            ],
        }

    def _note(self, key: str, entry: dict[str, Any] | None) -> None:
        with self._changing:
            number = self._page_of(key)
            if number is None:
                if not self._pages or len(self._pages[-1]) >= PAGE_ENTRIES:
                    self._pages.append({})
                number = len(self._pages) - 1
            if entry is None:
                self._pages[number].pop(key, None)
            else:
                self._pages[number][key] = entry
            self._unstored.add(number)
            self._changes += 1

    def _page_of(self, key: str) -> int | None:
        return next((number for number, page in enumerate(self._pages) if key in page), None)


def _page_key(number: int) -> str:
    return f"fsm_writes_{number}"


def _uncertainty_of(entry: dict[str, Any]) -> FsmError:
    if "error" in entry:
        return error_from_dict(entry["error"])
    method, path, attempted_at, subject = entry["sent"]
    reason = "an earlier try of this task ended before an answer was recorded"
    return FsmUncertainWriteError(method, path, reason, attempted_at, subject)


def _subject(entry: dict[str, Any]) -> str:
    method, path, _, subject = entry["sent"]
    about = in_words(subject)
    return f"{method} {path}{f' ({about})' if about else ''}"
