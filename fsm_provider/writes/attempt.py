"""A write of one attempt of a task: the request, what the ledger says, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fsm_provider.api.errors import FsmError, FsmInputError

if TYPE_CHECKING:
    from fsm_provider.api.request import ApiRequest
    from fsm_provider.api.retry import RetryState
    from fsm_provider.writes.advice import Advice
    from fsm_provider.writes.ledger import LedgerEntry

Outcome = Literal["created", "existing", "rejected", "uncertain", "not_created", "valid"]
MADE: frozenset[Outcome] = frozenset({"created", "existing"})


@dataclass(eq=False)
class WriteAttempt:
    """A write, and how far this attempt of the task is with it.

    An operator makes it with the parameters. The runner, in the task's thread, sets all the rest;
    the operator reads that once the runner has returned or raised.

    :param request: what is sent.
    :param intended: the entry that this attempt would send.
    :param key_is_given: by the user; else the key is the write's place, or its content.
    :param find: looks the write up in the service; returns its id, or None if it is not there.
    :ivar entry: as it was read last.
    :ivar retries: how often this attempt may send it again, and when.
    :ivar logged_wait: what the log says that it waits for.
    :ivar resend_allowed: ``if_uncertain`` is ``create``, it was sending or uncertain when the
        attempt began, and no response to this attempt's requests was lost.
    :ivar was_claimed: this attempt has claimed it; another task may have done so since.
    :ivar is_lost: a response to one of this attempt's requests was lost, whatever came after that.
    :ivar finished: a request of this attempt has ended, and it is not sent again.
    :ivar is_created: the service has told this attempt so, in ``response``, recorded or not.
    :ivar error: why this attempt has not made it.
    """

    request: ApiRequest
    intended: LedgerEntry
    key_is_given: bool = False
    find: Callable[[], int | str | None] | None = None
    entry: LedgerEntry = field(init=False)
    retries: RetryState = field(init=False)
    logged_wait: str = ""
    resend_allowed: bool = False
    was_claimed: bool = False
    is_lost: bool = False
    finished: bool = False
    is_created: bool = False
    response: Any = None
    error: FsmError | None = None

    @property
    def matches_intent(self) -> bool:
        """Whether what the ledger has under its key is what this attempt would send."""
        return self.entry.digest == self.intended.digest

    @property
    def outcome(self) -> Outcome:
        if self.entry.state == "done":
            if not self.matches_intent:
                return "not_created"
            return "created" if self.is_created else "existing"
        if self.entry.state != "free" or self.is_lost:
            return "uncertain"
        is_rejected = self.error is not None and self.error.permanent
        return "rejected" if is_rejected else "not_created"


def check_input(
    writes: Collection[WriteAttempt],
    known: Collection[str],
    entries: Collection[LedgerEntry],
    advice: Advice,
) -> None:
    """Refuse input in which a new write may be one that was sent: edited, or of another map index.

    :param known: the ids of those writes that have an entry already.
    :param entries: those that this map index has sent or planned.
    :raises FsmInputError: naming both.
    """
    ids = {write.intended.id for write in writes}
    sent = [entry for entry in entries if entry.state != "free"]
    gone = [entry for entry in sent if entry.id not in ids]
    new = []
    for write in writes:
        is_identified = write.key_is_given and advice.key_is_enough
        if write.intended.id not in known and not is_identified:
            new.append(write.intended)
    if not new:
        return
    suspects = gone
    suspicion = "the same, edited"
    if advice.is_mapped:  # a write of another map index may have moved here, whatever is left
        suspects = gone or sent
        suspicion += ", or one of another map index, moved"
    if not suspects:
        return
    before = suspects[0]
    next_step = advice.restore_or_separate
    if before.state == "uncertain" and not advice.is_mapped:
        next_step += advice.settle_if_not_created(before)
    raise FsmInputError(
        f"this task has sent {before} (key '{before.key}'), and {new[0]} (key '{new[0].key}') "
        f"is new in its input: it may be {suspicion}. {next_step}"
    )
