"""What is known of a write, and the rules by which that changes. Nothing here does I/O.

A write is a row of a ledger, in one of four states:

``free``       nothing came of it, or it was not sent yet: an attempt may send it
``sending``    an attempt may be sending it until its lease is over; then it is uncertain
``done``       it was written: nobody sends it again
``uncertain``  it was sent, and nobody knows what became of it

A :data:`Change` is applied to the row as it is now, in a transaction that has locked it: it returns
the row as it is to be, or the same row if the change does not apply. ``read_at`` is the time now.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import uuid4

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.links import job_page_url
from fsm_provider.state.task import Task

if TYPE_CHECKING:
    from fsm_provider.api.retry import RetryState
    from fsm_provider.writes.outcomes import Outcome

State = Literal["free", "sending", "done", "uncertain"]


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """What the ledger holds of a write. Times are milliseconds since 1970 by the ledger's clock.

    :param id: the digest of the key, which identifies the write within its scope.
    :param service: base URL and account.
    :param digest: of service, ``what`` (method and path) and content, by which the write is
        verified.
    :param property_id: of a job, for the eye and to find rivals; so is ``reference``.
    :param owner: identifies the claim; only who made it records what became of it.
    :param was_uncertain: when it was claimed: if this request is refused, an earlier one may have
        worked.
    :param idempotency_header: by which, with ``idempotency_key``, the service recognises a request.
    :param key_first_sent_at: when the service got that key first; it forgets it after a time.
    :param result: what is kept of the response: ``id`` and times.
    :param note: what people have settled, and responses that came late.
    """

    id: str
    key: str
    service: str
    digest: str
    kind: str
    what: str
    by: Task
    property_id: str | None = None
    reference: str | None = None
    state: State = "free"
    owner: str = ""
    sent_at: int = 0
    lease_until: int = 0
    was_uncertain: bool = False
    idempotency_header: str | None = None
    idempotency_key: str | None = None
    key_first_sent_at: int = 0
    result: dict[str, Any] | None = None
    error: str | None = None
    note: str | None = None
    read_at: int = 0

    @property
    def lease_left(self) -> float:
        return max(0.0, (self.lease_until - self.read_at) / 1000)

    @property
    def result_id(self) -> int | str | None:
        return self.result.get("id") if self.result else None

    @property
    def lookup_digest(self) -> str:
        """What is the same for all jobs that a look-up might mistake for each other."""
        return digest_for([self.property_id, (self.reference or "").strip().casefold()])

    def page(self, web_url: str) -> str | None:
        if self.kind != "job" or self.state != "done" or self.result_id is None:
            return None
        return job_page_url(web_url, self.result_id, self.property_id or "")

    def with_note(self, text: str) -> LedgerEntry:
        return replace(self, note=f"{self.note}; {text}" if self.note else text)

    @property
    def about(self) -> dict[str, int | str]:
        """What is known of its job, by the service's names."""
        number = int(text) if (text := self.property_id) and text.isdecimal() else text
        named = {"propertyID": number, "customerReference": self.reference}
        return {name: value for name, value in named.items() if value not in (None, "")}

    def __str__(self) -> str:
        described = ", ".join(f"{name} {value!r}" for name, value in self.about.items())
        return f"{self.what} ({described})" if described else self.what


def planned(
    by: Task, service: str, what: str, content: Any, key: str, kind: str = "request", **about: Any
) -> LedgerEntry:
    """Return the row of a write that nobody has sent; ``content`` is JSON values."""
    try:
        json.dumps(content, allow_nan=False, ensure_ascii=False, default=str).encode()
        digest = digest_for([service, what, content])
    except (ValueError, TypeError, RecursionError) as error:
        raise FsmInputError(f"{what}: its content cannot be written as JSON: {error}") from None
    row_id = digest_for(key)
    return LedgerEntry(
        id=row_id, key=key, service=service, digest=digest, kind=kind, what=what, by=by, **about
    )


@dataclass(eq=False)
class WriteAttempt:
    """A write of an attempt.

    :param planned: the row that this attempt would send; ``row`` is as it was read last.
    :param key_is_given: by the user; else the key is the write's place, or its content.
    :param payload: for the function that sends it.
    :ivar may_resend: it was uncertain when the attempt began, and no response to this one was lost.
    :ivar is_over: this attempt does nothing more about it.
    :ivar error: why this attempt has not made it.
    """

    planned: LedgerEntry
    key_is_given: bool = False
    payload: Any = None
    row: LedgerEntry = field(init=False)
    attempts: RetryState = field(init=False)
    awaited: str = field(init=False, default="")
    may_resend: bool = field(init=False, default=False)
    is_lost: bool = field(init=False, default=False)
    is_over: bool = field(init=False, default=False)
    is_created: bool = field(init=False, default=False)
    response: Any = field(init=False, default=None)
    error: FsmError | None = field(init=False, default=None)

    @property
    def is_as_sent(self) -> bool:
        return self.row.digest == self.planned.digest

    @property
    def outcome(self) -> Outcome:
        if self.row.state == "done" and self.is_as_sent:
            return "created" if self.is_created else "existing"
        if self.row.state == "done":
            return "not_created"
        if self.row.state != "free" or self.is_lost or self.is_created:
            return "uncertain"
        return "rejected" if self.error is not None and self.error.permanent else "not_created"


def as_read(row: LedgerEntry) -> LedgerEntry:
    """Return a row as whoever reads it sees it: ``sending`` past its lease is uncertain."""
    if row.state == "sending" and row.lease_until < row.read_at:
        return replace(row, state="uncertain", error="no response was recorded")
    return row


Change = Callable[[LedgerEntry], LedgerEntry]
"""One of the functions below, without its last argument: the row as it is read now.

Every claim and every settlement sets a new ``owner``: another one means that somebody came between.
"""


class Ledger(Protocol):
    """Where the writes of one scope are recorded: one task of a run, or all keys of a service."""

    is_shared: bool
    """Whether the map indexes of a task, and their attempts, all have this ledger."""

    def load(self, ids: Iterable[str]) -> dict[str, LedgerEntry]:
        """Return the entries as they are now, by id; an id without one is left out."""

    def rows_of_task(self, task: Task) -> dict[str, LedgerEntry]:
        """Return the entries that this task, with this map index, has planned or sent."""

    def plan(self, rows: Collection[LedgerEntry]) -> dict[str, LedgerEntry]:
        """Add those entries that are missing; return all of them as they are now."""

    def change(self, changes: Mapping[str, Change]) -> dict[str, LedgerEntry]:
        """Apply changes, by id, to the entries as they are now; return these as they are then."""

    def rivals_of(self, row: LedgerEntry) -> list[str]:
        """Return the keys of other writes that may have made what a look-up for an entry finds."""


class LedgerReader(Protocol):
    """All ledgers of one service, for people."""

    def rows(
        self, states: Collection[str] = (), text: str | None = None, latest: int | None = None
    ) -> Sequence[tuple[Ledger, LedgerEntry]]:
        """Return entries in the order in which they were sent, each with its ledger.

        :param states: only entries in one of them; empty: all.
        :param text: only entries whose key, reference or job's id it is.
        :param latest: only so many, which were sent last.
        """

    def days(self, first: int) -> Counter[tuple[int, str]]:
        """Count entries by the day on which they were sent, and by state.

        :param first: the first day that counts; days are numbered from 1970.
        """


def claimed(claim: LedgerEntry, seen: LedgerEntry, lease: float, row: LedgerEntry) -> LedgerEntry:
    """Claim a row as it was read, for ``lease`` seconds."""
    if row.owner != seen.owner or row.state == "done":
        return row
    is_recognised = (
        row.state == "uncertain"
        and row.idempotency_key is not None
        and row.idempotency_key == claim.idempotency_key
    )
    if row.state != "free" and row.lease_until >= row.read_at and not is_recognised:
        return row
    return replace(
        claim,
        sent_at=row.read_at,
        lease_until=row.read_at + int(lease * 1000),
        key_first_sent_at=claim.key_first_sent_at or row.read_at,
        was_uncertain=row.state != "free",
        note=row.note,
        read_at=row.read_at,
    )


def succeeded(claim: LedgerEntry, result: dict[str, Any], row: LedgerEntry) -> LedgerEntry:
    """Record a success, however late it comes: a row that is another's or done keeps a note of it."""
    if row.state == "done" and row.result == result:
        return row
    if row.owner == claim.owner:
        return replace(row, state="done", result=result, error=None)
    if row.state == "free":
        return replace(
            claim, state="done", result=result, lease_until=row.lease_until, note=row.note
        )
    late = f"a late response to {claim.by}: {claim.kind} {result.get('id', '')} was made"
    return row if late in (row.note or "") else replace(row.with_note(late), was_uncertain=True)


def came_to_nothing(claim: LedgerEntry, error: str, row: LedgerEntry) -> LedgerEntry:
    """Record that a request was refused or not sent; what was uncertain before stays so."""
    if row.owner != claim.owner:
        return row
    # An earlier request with the same key may still be on its way.
    row = replace(row, lease_until=row.lease_until if row.idempotency_key else 0)
    if row.was_uncertain:
        text = f"an earlier request may have worked; the last one did not: {error}"
        return replace(row, state="uncertain", error=text)
    return replace(row, state="free", error=error)


def response_lost(claim: LedgerEntry, error: str, row: LedgerEntry) -> LedgerEntry:
    """Record that nobody knows what became of a request; its lease stays."""
    return replace(row, state="uncertain", error=error) if row.owner == claim.owner else row


def belongs_to_another(after: LedgerEntry, other: str, row: LedgerEntry) -> LedgerEntry:
    """Record that the result of a write is that of another, too: one of them was not made."""
    error = f"job {after.result_id} is that of key '{other}' as well: look up both in the service"
    is_ours = row.owner == after.owner or row.state == "free"
    return replace(row, state="uncertain", error=error) if is_ours else row


def found(
    seen: LedgerEntry, result: dict[str, Any], rivals: Collection[str], row: LedgerEntry
) -> LedgerEntry:
    """Record what a look-up has found, unless it may be what other writes have made, its rivals."""
    if row.owner != seen.owner or row.state != "uncertain" or rivals:
        return row
    return replace(row, state="done", owner=uuid4().hex, result=result, error=None)


def settled(
    seen: LedgerEntry, result: dict[str, Any] | None, who: str, row: LedgerEntry
) -> LedgerEntry:
    """Record what a person has found out: ``result`` is None if nothing was written."""
    state: State = "free" if result is None else "done"
    is_uncertain = row.state == "uncertain"
    is_over = is_uncertain and row.lease_until < row.read_at
    is_allowed = is_over if result is None else is_uncertain or row.state == "free"
    if row.owner != seen.owner or not is_allowed:
        return row
    return replace(row.with_note(who), state=state, owner=uuid4().hex, result=result, error=None)


def forgotten(seen: LedgerEntry, who: str, row: LedgerEntry) -> LedgerEntry:
    """Have a write that is done sent again."""
    if row.owner != seen.owner or row.state != "done" or row.lease_until >= row.read_at:
        return row
    row = row.with_note(f"{seen.kind} {seen.result_id or ''} was {who}")
    return replace(row, state="free", owner=uuid4().hex, result=None, error=None)


def check_input(
    writes: Collection[WriteAttempt],
    known: Collection[str],
    rows: Collection[LedgerEntry],
    is_mapped: bool,
    is_shared: bool,
) -> None:
    """Refuse input in which a new write may be an earlier one, edited, or moved from another map
    index.

    :param known: the ids of those writes that have a row already.
    :param rows: those that this map index has sent or planned.
    :param is_shared: other map indexes have the same ledger: a key of theirs is known.
    :raises FsmInputError: naming both.
    """
    ids, is_alone = {one.planned.id for one in writes}, is_mapped and not is_shared
    loose = [one.planned for one in writes if is_alone or not one.key_is_given]
    new = [row for row in loose if row.id not in known]
    sent = [row for row in rows if row.state != "free"]
    gone = [row for row in sent if row.id not in ids]
    if new and (gone or (sent and is_mapped)):
        before, may_be = (
            (gone or sent)[0],
            "the same, edited" if gone else "one of another map index, moved",
        )
        raise FsmInputError(
            f"this task has sent {before} (key '{before.key}'), and {new[0]} (key '{new[0].key}') "
            f"is new in its input: it may be {may_be}. Restore it, or start another run, with a "
            "key for each write; a key of a mapped task needs a database, as state_conn_id"
        )


def result_of(row: LedgerEntry, web_url: str | None) -> str:
    """Return what a write has made, for the log."""
    return ", ".join(filter(None, [f"id {row.result_id}", row.page(web_url) if web_url else None]))
