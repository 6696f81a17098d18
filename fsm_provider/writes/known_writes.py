"""What a ledger knows of the writes of a task, in memory, and what follows: wait, send, repeat, refuse."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field

from fsm_provider.api.errors import FsmInputError, FsmUncertainWriteError
from fsm_provider.state.entries import Entry, LedgerEntries, is_conflict, may_arrive
from fsm_provider.state.task import Task
from fsm_provider.writes.idempotency import Idempotency
from fsm_provider.writes.write import (
    Write,
    WriteOutcome,
    describe_entry,
    describe_first,
    describe_key,
    error_from,
    repeatable,
    task_of,
)

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class KnownWrites:
    """The writes of one task instance, as far as they are known.

    :param entries: what is known, and where it is stored.
    :param generation: changes when the task is cleared, not when it is retried.
    :param mapped: whether the task instance is mapped, and its entries are its own: input in another order
        then reaches the entries of another map index.
    :param repeat_uncertain: send writes again whose outcome is unknown.
    :param repeat_done: send writes again that were done before the task was cleared, or that another task has
        sent, if ``once_per_key``. A retry never does.
    :param task: the running task, where other tasks write to the same entries.
    :param once_per_key: whether tasks of all runs do.
    :param max_flight: seconds after which what another task or attempt has sent has arrived, or never will.
    :param idempotency: the keys by which the service recognises a write; None if it does not.
    :ivar left: the keys of what earlier attempts have sent, whose outcome is unknown, and which is no longer
        in the input: a new write to the same path may be it, changed.
    """

    entries: LedgerEntries
    _: KW_ONLY
    generation: int = 0
    mapped: bool = False
    repeat_uncertain: bool = False
    repeat_done: bool = False
    task: Task | None = None
    once_per_key: bool = False
    max_flight: float = 0.0
    idempotency: Idempotency | None = None
    left: set[str] = field(default_factory=set, init=False)

    def get(self, write: Write, *, waited: bool = False) -> WriteOutcome | None:
        """Return what is known of a write; None if, as far as the ledger knows, it was never sent.

        :param waited: whether another task has had the time to send and record it.
        """
        entry = self.entries.get(write.key)
        if entry is None:
            return None
        by, repeat = task_of(entry), self._repeats(entry)
        if "result" in entry:
            return WriteOutcome(result=entry["result"], repeat=repeat, by=by)
        under_way = not waited and task_of(entry) != self.task and may_arrive(entry, self.max_flight)
        error = error_from(entry, self.task, under_way=under_way)
        is_recognised = self.idempotency is not None and self.idempotency.recognises(write.digest, entry)
        if is_recognised and isinstance(error, FsmUncertainWriteError):
            error, repeat = repeatable(error), True
        return WriteOutcome(error=error, repeat=repeat, under_way=under_way, by=by)

    def expect(self, writes: Collection[Write], settled: Collection[str] = ()) -> None:
        """Check that this attempt is given the same writes as earlier ones.

        :param settled: the keys of writes whose outcome a person has found out: they are not new.
        :raises FsmInputError: in a retry, if an earlier attempt sent writes that are not given now. After a
            clear, if it did and a new write may be the same, changed: any may, unless both have keys of their
            own. In a mapped task whose entries are its own a key does not help, as a write may have moved to
            another map index. Never if writes are sent once for each key.
        """
        found = {write.key: self.entries.get(write.key) for write in writes}
        others = [
            (key, entry)
            for key, entry in self.entries
            if key not in found and not is_conflict(entry) and task_of(entry) == self.task
        ]
        if not self.once_per_key:
            self._expect_earlier([write for write in writes if write.key not in settled], found, others)
        self.left = {key for key, entry in others if "result" not in entry}
        for write in writes:
            entry = found[write.key]
            if entry is None:
                continue
            if not self.once_per_key and entry["digest"] != write.digest and self._is_of_another(entry):
                raise FsmInputError(
                    f"{write} has the key of {describe_entry(entry)}, which {task_of(entry)} has sent: give "
                    "each a key of its own"
                )
            if "result" in entry and entry["digest"] != write.digest and not self._repeats(entry):
                logger.warning(
                    "%s was sent with other content under key '%s'; the change is not sent",
                    describe_entry(entry),
                    write.key,
                )

    def _is_of_another(self, entry: Entry) -> bool:
        """Return whether another map index or Airflow has sent it in this run since this task was cleared."""
        return task_of(entry) != self.task and entry["generation"] == self.generation

    def _expect_earlier(
        self,
        unsettled: Collection[Write],
        found: dict[str, Entry | None],
        others: list[tuple[str, Entry]],
    ) -> None:
        if retried := [entry for _, entry in others if entry["generation"] == self.generation]:
            raise FsmInputError(
                "the input has changed since an earlier attempt of this task, which sent "
                f"{describe_first(retried)}. "
                "Templates that render differently in each attempt cause this: give each write a key. "
                "If the change is intended, start another run"
            )
        new = [write for write in unsettled if (entry := found[write.key]) is None or is_conflict(entry)]
        by_key = not self.mapped and all(write.given_key for write in new)
        left = [
            entry
            for key, entry in others
            if not self._repeats(entry) and not (by_key and key != entry["digest"])
        ]
        if new and left:
            raise FsmInputError(
                f"before it was cleared, this task sent {describe_first(left)}, which is no longer in its "
                f"input. {new[0]} is new, and may be the same, "
                f"changed{' or of another map index' * self.mapped}. "
                "Restore the input, and start another run for what is to be added. If it is not the same, "
                "set if_already_done='create' (FsmRequestOperator: if_already_done='send'); this also "
                "repeats all else that was done before the clear. If the outcome of the earlier one is "
                "uncertain, set if_uncertain instead"
            )

    def holder_of(self, write: Write, identifier: int) -> str:
        """Return the key, and the task, of another write that is known to have this result; or ""."""
        others = self.entries.others_with(write.key, write.kind, identifier)
        return next((describe_key(key, entry) for key, entry in others), "")

    def refuse_keys_of_other_kinds(self, writes: Collection[Write]) -> None:
        """Check that writes have the keys of their kind, if they are sent once for each.

        :raises FsmInputError: if a key is that of another kind.
        """
        for write in writes if self.once_per_key else ():
            if (entry := self.entries.get(write.key)) and entry["kind"] != write.kind:
                raise FsmInputError(
                    f"key: '{write.key}' is that of {describe_entry(entry)}, by {task_of(entry)}, and cannot "
                    f"be that of {write} too. A key belongs to one write"
                )

    def refuse_equal_of_another_index(self, write: Write) -> None:
        """Refuse a write without a key that another map index has sent: whether both are wanted is not known.

        After a clear, it may have moved to this index, and is the same.
        """
        entry = self.entries.get(write.key)
        if entry and "result" in entry and not write.given_key and entry["generation"] == self.generation:
            by = task_of(entry)
            if by and self.task and by.map_index != self.task.map_index:
                raise FsmInputError(
                    f"{write} is equal to what {by} has sent: leave one out, or give both keys"
                )

    def _repeats(self, entry: Entry) -> bool:
        if is_conflict(entry):
            return self.repeat_uncertain or self.repeat_done or not self.once_per_key
        if self.once_per_key and self.repeat_done and task_of(entry) != self.task:
            return not self._has_done(entry.get("before"))
        if "result" in entry:
            return self.repeat_done and entry["generation"] != self.generation
        return self.repeat_uncertain

    def _has_done(self, entry: Entry | None) -> bool:
        """Return whether this task did the write since it was cleared, before another task repeated it."""
        while entry:
            if "result" in entry and task_of(entry) == self.task:
                return bool(entry["generation"] == self.generation)
            entry = entry.get("before")
        return False
