"""What is known of a write, and the rules by which that changes. Nothing here does I/O.

A write is a row of a ledger, in one of four states:

``free``       nothing came of it, or it was not sent yet: an attempt may send it
``sending``    an attempt may be sending it until its lease is over; then it is uncertain
``done``       it was written: nobody sends it again
``uncertain``  it was sent, and nobody knows what became of it

A :data:`Change` is applied to the row as it is now, in a transaction that has locked it: it returns the row
as it is to be, or the same row if the change does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from fsm_provider.api.errors import FsmInputError, describe
from fsm_provider.state.task import Task, digest_for

State = Literal["free", "sending", "done", "uncertain"]
DIGITS = 32
MIN_LEASE = 120.0
"""Seconds, at least, that a request may be on its way."""
LEASE_TIMEOUTS = 4
"""And at least so many timeouts of the connection."""


def lease_for(timeout: float) -> float:
    return max(MIN_LEASE, LEASE_TIMEOUTS * timeout)


@dataclass(frozen=True, kw_only=True)
class Write:
    """One write, to be sent once.

    :param content: JSON values; with method and path it verifies the write.
    :param key: identifies it within its scope; ``id`` is its digest.
    :param key_is_given: by the user; else it is the write's place, or its content.
    :param kind: ``job``, ``webhook`` or ``request``.
    :param property_id: of a job, for the eye and to find rivals; so is ``reference``.
    :param payload: for the function that sends it.
    :raises FsmInputError: if the content cannot be written as JSON.
    """

    method: str
    path: str
    content: Any
    key: str
    key_is_given: bool = False
    kind: str = "request"
    property_id: str | None = None
    reference: str | None = None
    payload: Any = None
    id: str = field(init=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        try:
            digest = digest_for([self.method, self.path, self.content], DIGITS)
        except (ValueError, TypeError, RecursionError) as error:
            text = f"{self.method} {self.path}: its content cannot be written as JSON: {error}"
            raise FsmInputError(text) from None
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "id", digest_for(self.key, DIGITS))

    def planned(self, by: Task) -> Row:
        names = ("id", "key", "digest", "kind", "property_id", "reference")
        return Row(what=f"{self.method} {self.path}", by=by, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the ledger holds of a write. Times are milliseconds since 1970 by the ledger's clock.

    :param digest: of what was sent.
    :param what: method and path.
    :param by: the task that sent it last.
    :param owner: identifies the claim; only who made it records what became of it.
    :param sent_at: when it was sent last.
    :param was_uncertain: before it was claimed: a refusal then does not prove that nothing came of it.
    :param token: header and value by which the service recognises it, joined by a colon.
    :param token_at: when it was sent first with this token.
    :param result: what is kept of the response: ``id`` and times.
    :param error: why it is uncertain, or nothing came of it.
    :param note: what people have settled, and responses that came late.
    :param read_at: when it was read; it is not stored.
    """

    id: str
    key: str
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
    token: str | None = None
    token_at: int = 0
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
    def subject(self) -> str:
        """What is the same for all jobs that a look-up might mistake for each other."""
        return digest_for([self.property_id, (self.reference or "").strip().casefold()], DIGITS)

    @property
    def named(self) -> str:
        return self.kind if self.result_id is None else f"{self.kind} {self.result_id}"

    def with_note(self, text: str) -> Row:
        return replace(self, note=f"{self.note}; {text}" if self.note else text)

    def __str__(self) -> str:
        about = {"propertyID": self.property_id, "customerReference": self.reference}
        described = describe({name: value for name, value in about.items() if value})
        return f"{self.what}{f' ({described})' if described else ''}"


def seen_at(row: Row, now: int) -> Row:
    """Return a row as whoever reads it sees it: ``sending`` past its lease is uncertain."""
    if row.state == "sending" and row.lease_until < now:
        return replace(row, state="uncertain", error="no response was recorded", read_at=now)
    return replace(row, read_at=now) if row.state in ("sending", "uncertain") else row


class Ask(NamedTuple):
    """What a change wants of a row; the guards decide.

    :param now: the time.
    :param seen: the row as it was read.
    :param wanted: the row as it is to be.
    :param rivals: other writes that a look-up may have found instead.
    """

    now: int
    seen: Row
    wanted: Row
    rivals: Collection[str] = ()


def is_uncertain(row: Row, ask: Ask) -> bool:
    """Return whether nobody knows what became of it, or a lease that is over says so."""
    return seen_at(row, ask.now).state == "uncertain"


def may_be_sent(row: Row, ask: Ask) -> bool:
    """Return whether it is free, its lease is over, or the service recognises it by its token."""
    same_token = row.state == "uncertain" and row.token is not None and row.token == ask.wanted.token
    return row.state == "free" or row.lease_until < ask.now or same_token


CONDITIONS: dict[str, Callable[[Row, Ask], bool]] = {
    "nobody has claimed or settled it since it was read": lambda row, ask: row.owner == ask.seen.owner,
    "it is still claimed by who records its end": lambda row, ask: row.owner == ask.wanted.owner,
    "it is free": lambda row, ask: row.state == "free",
    "it is done": lambda row, ask: row.state == "done",
    "it is not done": lambda row, ask: row.state != "done",
    "it is uncertain": is_uncertain,
    "it is free or uncertain": lambda row, ask: row.state == "free" or is_uncertain(row, ask),
    "it may be sent": may_be_sent,
    "its lease is over": lambda row, ask: row.lease_until < ask.now,
    "no other write can be what was found": lambda row, ask: not ask.rivals,
}
_AS_READ = "nobody has claimed or settled it since it was read"
GUARDS: dict[str, tuple[str, ...]] = {
    "claim": (_AS_READ, "it is not done", "it may be sent"),
    "record": ("it is still claimed by who records its end",),
    "record late": ("it is free",),
    "find": (_AS_READ, "it is uncertain", "no other write can be what was found"),
    "settle as made": (_AS_READ, "it is free or uncertain"),
    "settle as not made": (_AS_READ, "it is uncertain", "its lease is over"),
    "forget": (_AS_READ, "it is done", "its lease is over"),
}
"""The conditions under which a row changes, by the event: all of them."""

Change = Callable[[Row, int], Row]
"""Given the row and the time as they are now."""


def allows(event: str, row: Row, ask: Ask) -> bool:
    return all(CONDITIONS[name](row, ask) for name in GUARDS[event])


def new_claim(write: Write, seen: Row, by: Task, token: str | None) -> Row:
    """Return a row that an attempt is about to send; its owner is new."""
    token_at = seen.token_at if token is not None and seen.token == token else 0
    claim = write.planned(by)
    return replace(claim, state="sending", owner=uuid4().hex, token=token, token_at=token_at)


def claimed(claim: Row, seen: Row, lease: float) -> Change:
    """Claim a row as it was read, for ``lease`` seconds."""

    def change(row: Row, now: int) -> Row:
        if row.owner == claim.owner or not allows("claim", row, Ask(now, seen, claim)):
            return row
        until, was_uncertain = now + int(lease * 1000), row.state != "free"
        mine = replace(claim, sent_at=now, lease_until=until, was_uncertain=was_uncertain, note=row.note)
        return replace(mine, token_at=claim.token_at or now)

    return change


def succeeded(claim: Row, result: dict[str, Any]) -> Change:
    """Record a success, however late it comes: a row that is another's or done keeps a note of it."""
    made = replace(claim, state="done", result=result)

    def change(row: Row, now: int) -> Row:
        ask = Ask(now, claim, claim)
        if row.state == "done" and row.result == result:
            return row
        if allows("record", row, ask):
            return replace(row, state="done", result=result, error=None)
        if allows("record late", row, ask):
            return replace(made, lease_until=row.lease_until, note=row.note)
        late = f"a late response to {claim.by}: {made.named} was made"
        return row if late in (row.note or "") else replace(row.with_note(late), was_uncertain=True)

    return change


def came_to_nothing(claim: Row, error: str) -> Change:
    """Record that a request was refused or not sent; what was uncertain before stays so."""

    def change(row: Row, now: int) -> Row:
        # An earlier request with the same token may still be on its way.
        lease_until = row.lease_until if row.token else 0
        state: State = "uncertain" if row.was_uncertain else "free"
        text = f"unknown since an earlier request; another failed: {error}" if row.was_uncertain else error
        after = replace(row, state=state, error=text, lease_until=lease_until)
        return after if allows("record", row, Ask(now, claim, claim)) else row

    return change


def response_lost(claim: Row, error: str) -> Change:
    """Record that nobody knows what became of a request; its lease stays."""

    def change(row: Row, now: int) -> Row:
        after = replace(row, state="uncertain", error=error)
        return after if allows("record", row, Ask(now, claim, claim)) else row

    return change


def belongs_to_another(claim: Row, result_id: int | str | None, other: str) -> Change:
    """Record that the result of a write is that of another, too: one of them was not made."""

    def change(row: Row, now: int) -> Row:
        ask = Ask(now, claim, claim)
        error = f"job {result_id} is that of key '{other}' as well: look up both in the service"
        after = replace(row, state="uncertain", error=error)
        return after if allows("record", row, ask) or allows("record late", row, ask) else row

    return change


def found(seen: Row, result: dict[str, Any], rivals: Collection[str]) -> Change:
    """Record what a look-up has found, in a transaction that began after it."""
    return _decided("find", seen, result, rivals=rivals)


def settled(seen: Row, result: dict[str, Any] | None, who: str) -> Change:
    """Record what a person has found out.

    :param result: what was written; None if nothing was.
    :param who: who says so, when and why.
    """
    return _decided("settle as not made" if result is None else "settle as made", seen, result, who)


def forgotten(seen: Row, who: str) -> Change:
    """Have a write that is done sent again."""
    return _decided("forget", seen, None, f"{seen.named} was {who}")


def _decided(
    event: str, seen: Row, result: dict[str, Any] | None, who: str = "", rivals: Collection[str] = ()
) -> Change:
    owner = uuid4().hex

    def change(row: Row, now: int) -> Row:
        if not allows(event, row, Ask(now, seen, row, rivals)):
            return row
        after = row.with_note(who) if who else row
        state: State = "free" if result is None else "done"
        return replace(after, state=state, owner=owner, result=result, error=None)

    return change


def check_input(
    writes: Collection[Write],
    known: Mapping[str, Row],
    of_this_task: Mapping[str, Row],
    *,
    may_have_moved: bool,
    elsewhere: Mapping[str, Row],
) -> None:
    """Refuse input in which a new write may be an earlier one, edited or moved.

    :param known: the rows of these writes.
    :param of_this_task: the rows that this task has sent or planned.
    :param may_have_moved: the rows are those of one map index: a new write may be that of another index.
    :param elsewhere: what other map indexes have sent with the content of one of these writes.
    :raises FsmInputError: naming both.
    """
    for row in elsewhere.values():
        raise FsmInputError(
            f"{row} was sent by {row.by}, and this map index is to send the same: it may have moved. "
            f"Restore the "
            "order of the input, or give each write a key and start another run"
        )
    ids = {write.id for write in writes}
    new = [one for one in writes if one.id not in known and (may_have_moved or not one.key_is_given)]
    sent = [row for row in of_this_task.values() if row.state != "free"]
    missing = [row for row in sent if row.id not in ids] or (sent if may_have_moved else [])
    if new and missing:
        raise FsmInputError(
            f"this task has sent {missing[0]} (key '{missing[0].key}'), which is no longer in its input, and "
            f"{new[0].planned(missing[0].by)} (key '{new[0].key}') is new in it: it may be the same, edited. "
            "Restore the input, or give each write a key and start another run"
        )
