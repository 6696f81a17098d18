"""What is known of a write, and the rules by which that changes. Nothing here does I/O.

A write is an entry of a ledger, in one of four states:

``free``       nothing came of it, or it was not sent yet: an attempt may send it
``sending``    an attempt may be sending it until its lease is over; then it is uncertain
``done``       it was written: nobody sends it again
``uncertain``  it was sent, and nobody knows what became of it

A rule takes the entry as it is now as its last argument, and returns the entry as it is to be, or
the same one if the rule does not apply. A ledger applies it in a transaction that has locked the
entry; ``read_at`` is the time then. Every claim, and whatever a person or a look-up records, sets a
new ``owner``: whoever has read another owner knows that somebody came between. Who asks for the
change makes the owner, and it was applied if the entry has that owner afterwards, also where the
transaction was repeated.

Nothing here, or below, imports Airflow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, get_args

from fsm_provider.api.digests import digest_for
from fsm_provider.api.request import ApiRequest
from fsm_provider.api.settings import job_page_url
from fsm_provider.api.validation import JsonObject, visible_text
from fsm_provider.state.task import Task

State = Literal["free", "sending", "done", "uncertain"]
OPEN_STATES = ("sending", "uncertain")


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """What the ledger holds of a write. Times are milliseconds since 1970 by the ledger's clock.

    :param id: the digest of the key, which identifies the write within its scope.
    :param service: base URL and account, as they were when it was sent.
    :param digest: of the request, by which the write is verified.
    :param kind: ``job``, ``webhook`` or ``request``.
    :param what: method and path.
    :param sent_by: the task that sent it last, or has planned it.
    :param property_id: of a job, for the eye and to find rivals; so is ``reference``.
    :param owner: a random id of the last claim, or of what a person or a look-up recorded since.
    :param was_uncertain: when it was claimed, or a late response has come since: if this request is
        refused, an earlier one may have worked.
    :param idempotency_header: by which, with ``idempotency_key``, the service recognises a request.
    :param key_first_sent_at: when the service got that key first; it forgets it after a time.
    :param result: what is stored of the response: ``id`` and times.
    :param note: what people have settled, and responses that came late.
    """

    id: str
    key: str
    service: str
    digest: str
    kind: str
    what: str
    sent_by: Task
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
    result: JsonObject | None = None
    error: str | None = None
    note: str | None = None
    read_at: int = 0

    @property
    def lease_left(self) -> float:
        """Seconds in which a request may still be on its way."""
        return max(0.0, (self.lease_until - self.read_at) / 1000)

    @property
    def key_age(self) -> float:
        """Seconds since the service got the idempotency key first."""
        return (self.read_at - self.key_first_sent_at) / 1000

    @property
    def result_id(self) -> int | str | None:
        if self.result is None:
            return None
        return self.result.get("id")

    @property
    def lookup_digest(self) -> str:
        """What is the same for all jobs that a look-up might mistake for each other."""
        reference = (self.reference or "").strip().casefold()
        return digest_for([self.property_id, reference])

    @property
    def subject(self) -> dict[str, int | str]:
        """What is known of its job, by the service's names."""
        subject = {}
        if self.property_id:
            is_number = self.property_id.isdecimal()
            subject["propertyID"] = int(self.property_id) if is_number else self.property_id
        if self.reference:
            subject["customerReference"] = self.reference
        return subject

    def job_page(self, web_url: str) -> str | None:
        """Return the URL of its job's page, for people; None if there is no job."""
        if self.kind != "job" or self.state != "done" or self.result_id is None:
            return None
        return job_page_url(web_url, self.result_id, self.property_id or "")

    def with_note(self, text: str) -> LedgerEntry:
        return replace(self, note=f"{self.note}; {text}" if self.note else text)

    def __str__(self) -> str:
        described = ", ".join(f"{name} {value!r}" for name, value in self.subject.items())
        return f"{self.what} ({described})" if described else self.what


def id_for(key: str) -> str:
    """Return the id of a key's entry, which is the same for all keys that look the same."""
    return digest_for(visible_text(key))


def new_entry(
    sent_by: Task,
    service: str,
    request: ApiRequest,
    key: str,
    kind: str = "request",
    *,
    property_id: str | None = None,
    reference: str | None = None,
) -> LedgerEntry:
    """Return the entry of a write that nobody has sent."""
    return LedgerEntry(
        id=id_for(key),
        key=key,
        service=service,
        digest=digest_for(request.content),
        kind=kind,
        what=f"{request.method} {request.path}",
        sent_by=sent_by,
        property_id=property_id,
        reference=reference,
    )


def as_read(entry: LedgerEntry) -> LedgerEntry:
    """Return an entry as whoever reads it sees it.

    ``sending`` past its lease is uncertain, and so is a state of another version.
    """
    if entry.state == "sending" and entry.lease_until < entry.read_at:
        return without_response(entry)
    if entry.state not in get_args(State):
        error = f"its state is '{entry.state}', which this version does not know"
        return replace(entry, state="uncertain", error=error)
    return entry


def without_response(entry: LedgerEntry) -> LedgerEntry:
    """Return what was being sent, once nothing more can be recorded of it in time."""
    return replace(entry, state="uncertain", error="no response was recorded")


def describe_result(entry: LedgerEntry, web_url: str | None) -> str:
    """Return what a write has made, for the log."""
    page = entry.job_page(web_url) if web_url else None
    return f"id {entry.result_id}, {page}" if page else f"id {entry.result_id}"


Change = Callable[[LedgerEntry], LedgerEntry]
"""One of the rules below, without its last argument: the entry as it is read now."""


class Ledger(Protocol):
    """Where the writes of one scope are recorded: one task of a run, or all keys of a service."""

    is_shared: bool
    """Whether all map indexes of a task have this ledger; else each has its own."""

    def load(self, ids: Iterable[str]) -> dict[str, LedgerEntry]:
        """Return the entries as they are now, by id; an id without one is left out."""

    def entries_of_task(self, task: Task) -> dict[str, LedgerEntry]:
        """Return the entries that this task, with this map index, has planned or sent."""

    def plan(self, entries: Collection[LedgerEntry]) -> dict[str, LedgerEntry]:
        """Add those entries that are missing; return all of them as they are now."""

    def change(self, changes: Mapping[str, Change]) -> dict[str, LedgerEntry]:
        """Apply changes, by id, to the entries as they are now; return these as they are then.

        It is one transaction. Where a job that a change records is that of another entry already,
        :func:`mark_conflict` takes its place.
        """

    def rivals_of(self, entry: LedgerEntry) -> list[str]:
        """Return the keys of other writes that may have made what a look-up for an entry finds."""


@dataclass(frozen=True, kw_only=True)
class EntryFilter:
    """Which entries a person asks for, or may see. What is left out does not matter.

    :param sent_by: texts, of which a field of the task that sent them is one, by the field's name.
    :param job_id: of a job that was made.
    :param is_open: neither free nor done.
    :param part: the key, a part of it or of the reference, in any case; or the id of the result.
    :param has_note: people have settled or forgotten it, or a response came late.
    """

    sent_by: Mapping[str, Collection[str]] = field(default_factory=dict)
    key: str | None = None
    job_id: int | None = None
    is_open: bool = False
    part: str = ""
    property_id: str = ""
    has_note: bool = False

    def includes(self, entry: LedgerEntry) -> bool:
        names = f"{entry.key}\n{entry.reference or ''}".lower()
        is_its_id = self.part == str(entry.result_id or "")
        is_its_key = id_for(self.part) == entry.id
        has_part = self.part.lower() in names or is_its_id or is_its_key
        is_by_task = all(
            str(getattr(entry.sent_by, name)) in texts for name, texts in self.sent_by.items()
        )
        is_done = entry.kind == "job" and entry.state == "done"
        is_its_job = is_done and entry.result_id == self.job_id
        return (
            is_by_task
            and (self.key is None or entry.id == id_for(self.key))
            and (self.job_id is None or is_its_job)
            and (not self.is_open or entry.state in OPEN_STATES)
            and (not self.property_id or entry.property_id == self.property_id)
            and (not self.has_note or entry.note is not None)
            and has_part
        )


ANY_ENTRY = EntryFilter()


class Tally(NamedTuple):
    """What entries are counted by.

    :ivar day: on which they were sent, numbered from 1970.
    """

    airflow: str
    dag_id: str
    day: int
    state: str


class LedgerReader(Protocol):
    """All ledgers of some services, for people."""

    def entries(
        self, wanted: EntryFilter = ANY_ENTRY, latest: int | None = None
    ) -> Sequence[tuple[Ledger, LedgerEntry]]:
        """Return entries in the order in which they were sent, each with its ledger.

        :param latest: only so many, which were sent last.
        """

    def number_of(self, wanted: EntryFilter) -> int:
        """Return how many entries are asked for."""

    def counts(self) -> Counter[Tally]:
        """Count what was sent. What is ``sending`` past its lease counts as uncertain."""


def claim(
    proposed: LedgerEntry,
    seen: LedgerEntry,
    lease: float,
    key_lifetime: float,
    entry: LedgerEntry,
) -> LedgerEntry:
    """Claim an entry for ``lease`` seconds, if its owner is still the one that was ``seen``.

    It becomes ``proposed``. With the idempotency key of an earlier request, the service recognises
    the next for ``key_lifetime`` seconds: an uncertain entry is claimed even within its lease, and
    later not with that key. Without one, the caller has decided that an uncertain entry may be sent
    again.
    """
    if entry.owner != seen.owner:
        return entry
    if entry.state == "done":
        return entry
    has_same_key = (
        entry.idempotency_key is not None and entry.idempotency_key == proposed.idempotency_key
    )
    if has_same_key and entry.key_age >= key_lifetime:
        return entry
    is_recognised = entry.state == "uncertain" and has_same_key
    may_be_under_way = entry.state != "free" and entry.lease_until >= entry.read_at
    if may_be_under_way and not is_recognised:
        return entry
    return replace(
        proposed,
        sent_at=entry.read_at,
        lease_until=entry.read_at + int(lease * 1000),
        key_first_sent_at=proposed.key_first_sent_at or entry.read_at,
        was_uncertain=entry.state != "free",
        note=entry.note,
        read_at=entry.read_at,
    )


def record_success(claimed: LedgerEntry, result: JsonObject, entry: LedgerEntry) -> LedgerEntry:
    """Record a success, however late.

    If another claim has replaced this one meanwhile, and nothing came of that, it is recorded all
    the same. Any other entry keeps a note of it.
    """
    if entry.state == "done" and entry.result == result:
        return entry
    if entry.owner == claimed.owner:
        return replace(entry, state="done", result=result, error=None)
    if entry.state == "free":
        return replace(
            claimed, state="done", result=result, lease_until=entry.lease_until, note=entry.note
        )
    late = f"a late response to {claimed.sent_by}: {claimed.kind} {result.get('id', '')} was made"
    if late in (entry.note or ""):
        return entry
    return replace(entry.with_note(late), was_uncertain=True)


def record_refusal(claimed: LedgerEntry, error: str, entry: LedgerEntry) -> LedgerEntry:
    """Record that a request was refused or not sent; what was uncertain before stays so."""
    if entry.owner != claimed.owner:
        return entry
    # An earlier request with the same key may still be on its way.
    lease_until = entry.lease_until if entry.idempotency_key else 0
    if entry.was_uncertain:
        text = f"an earlier request may have worked; the last one did not: {error}"
        return replace(entry, state="uncertain", lease_until=lease_until, error=text)
    return replace(entry, state="free", lease_until=lease_until, error=error)


def record_lost_response(claimed: LedgerEntry, error: str, entry: LedgerEntry) -> LedgerEntry:
    """Record that nobody knows what became of a request; its lease stays."""
    if entry.owner != claimed.owner:
        return entry
    return replace(entry, state="uncertain", error=error)


def mark_conflict(after: LedgerEntry, other_key: str, entry: LedgerEntry) -> LedgerEntry:
    """Record that the result of a write is that of another, too: one of them was not made.

    A response marks it, and so does a person who settles a free entry. What else a look-up or a
    person says is not recorded.

    :param after: the entry as a rule would have it, with that result.
    """
    if entry.owner != after.owner and entry.state != "free":
        return entry
    error = f"job {after.result_id} is that of key '{other_key}' as well"
    return replace(entry, state="uncertain", error=error)


def record_lookup(
    seen: LedgerEntry,
    result: JsonObject,
    rivals: Collection[str],
    owner: str,
    entry: LedgerEntry,
) -> LedgerEntry:
    """Record what a look-up has found, unless other writes, its rivals, may have made it."""
    if entry.owner != seen.owner or entry.state != "uncertain" or rivals:
        return entry
    return replace(entry, state="done", owner=owner, result=result, error=None)


def settle(
    seen: LedgerEntry, result: JsonObject | None, note: str, owner: str, entry: LedgerEntry
) -> LedgerEntry:
    """Record what a person has found out: ``result`` is None if nothing was written."""
    if entry.owner != seen.owner:
        return entry
    is_uncertain = entry.state == "uncertain"
    if result is None:
        state: State = "free"
        is_allowed = is_uncertain and entry.lease_until < entry.read_at
    else:
        state = "done"
        is_allowed = is_uncertain or entry.state == "free"
    if not is_allowed:
        return entry
    return replace(entry.with_note(note), state=state, owner=owner, result=result, error=None)


def forget(seen: LedgerEntry, note: str, owner: str, entry: LedgerEntry) -> LedgerEntry:
    """Have a write that is done sent again."""
    is_under_way = entry.lease_until >= entry.read_at
    if entry.owner != seen.owner or entry.state != "done" or is_under_way:
        return entry
    noted = entry.with_note(f"{seen.kind} {seen.result_id or ''} was {note}")
    return replace(noted, state="free", owner=owner, result=None, error=None)


RULES = (
    claim,
    record_success,
    record_refusal,
    record_lost_response,
    mark_conflict,
    record_lookup,
    settle,
    forget,
)
"""All rules. The model checker of the tests tries each without each of its conditions."""
