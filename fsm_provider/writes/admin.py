"""What a person looks up in the ledgers, settles and forgets.

The command ``ledger``, the page and ``doctor`` call it.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from fsm_provider.api.errors import FsmRefusedError
from fsm_provider.api.validation import JsonObject
from fsm_provider.writes import advice
from fsm_provider.writes import ledger as rules
from fsm_provider.writes.ledger import EntryFilter, Ledger, LedgerEntry, LedgerReader

MAX_REASON = 1_000
"""Characters, so that a note has who said it, too: a database keeps the end of a long one."""
EntryInLedger = tuple[Ledger, LedgerEntry]
"""An entry, and the ledger in which it is changed."""


@dataclass(frozen=True)
class Settlement:
    """What a person has found out about a write.

    :param is_made: whether the service has it; if not, the next attempt sends it again.
    :param result_id: its id there; None if it has none.
    :raises FsmRefusedError: if it has an id, and does not exist.
    """

    is_made: bool
    result_id: int | None = None

    def __post_init__(self) -> None:
        if self.result_id is not None and not self.is_made:
            raise FsmRefusedError(
                f"what does not exist has no id, and {self.result_id} was given: leave it out, or "
                "say that it exists"
            )

    @property
    def result(self) -> JsonObject | None:
        """What the ledger is to have as its result; None: nothing was made."""
        if not self.is_made:
            return None
        return {} if self.result_id is None else {"id": self.result_id}

    def __str__(self) -> str:
        return "it exists" if self.is_made else "nobody has made it"


@contextmanager
def open_ledgers(fsm_conn_id: str) -> Iterator[LedgerReader]:
    """Open the ledgers of a connection's service, in a process that has Airflow's database.

    :raises FsmNoLedgerError: if there is none yet: none is made.
    """
    from fsm_provider.hooks.connection import read_connection_outside_of_tasks, settings_from

    settings = settings_from(read_connection_outside_of_tasks(fsm_conn_id))
    with open_place(settings.state_conn_id, [settings.service]) as ledgers:
        yield ledgers


@contextmanager
def open_place(
    state_conn_id: str | None, services: Collection[str] | None, newest: int | None = None
) -> Iterator[LedgerReader]:
    """Open the ledgers of services that are in one database; None: in Airflow's own.

    :param services: None: of all.
    :param newest: of Airflow's own, only the runs that have one of so many last rows of its store.
    """
    if state_conn_id is None:
        from fsm_provider.writes.task_ledger import AirflowLedgers

        yield AirflowLedgers(services, newest)
        return
    from fsm_provider.hooks.connection import hook_outside_of_tasks
    from fsm_provider.state.database import open_database
    from fsm_provider.writes.sql_ledger import SqlLedgers

    engine = open_database(state_conn_id, hook_outside_of_tasks, create=False)
    try:
        yield SqlLedgers(engine, services)
    finally:
        engine.dispose()


def find_only(ledgers: LedgerReader, wanted: EntryFilter) -> EntryInLedger:
    """Return the entry of a key that a person asks for.

    :raises FsmRefusedError: if there is none, or more than one.
    """
    selected = ledgers.entries(wanted)
    if not selected:
        raise FsmRefusedError(f"there is no '{wanted.key}': {advice.KEY_UNKNOWN}")
    if len(selected) > 1:
        tasks = "; ".join(str(entry.sent_by) for _, entry in selected)
        raise FsmRefusedError(
            f"'{wanted.key}' was sent by {len(selected)} tasks: {advice.KEY_AMBIGUOUS}: {tasks}"
        )
    return selected[0]


def find_as_seen(ledgers: LedgerReader, key: str, owner: str) -> EntryInLedger:
    """Return the entry that a person has seen.

    :param owner: of the entry as it was seen: a claim, a look-up and a person each set another.
    :raises FsmRefusedError: if it has changed meanwhile.
    """
    for ledger, entry in ledgers.entries(EntryFilter(key=key)):
        if entry.owner == owner:
            return ledger, entry
    raise FsmRefusedError(f"'{key}' has changed meanwhile: {advice.CHANGED_MEANWHILE}")


def settle(
    ledgers: LedgerReader, entry_in_ledger: EntryInLedger, settlement: Settlement, by: str, why: str
) -> None:
    """Record what a person has found out about a write.

    :param by: who says so.
    :raises FsmRefusedError: if it cannot be so, or the entry has changed meanwhile.
    """
    entry = entry_in_ledger[1]
    if entry.kind == "job" and settlement.is_made:
        _check_job_id(ledgers, entry, settlement.result_id)
    note = _make_note("made" if settlement.is_made else "not created", by, why)
    change = partial(rules.settle, entry, settlement.result, note)
    _change(entry_in_ledger, change, "settled", rules.OPEN_STATES)


def forget(entry_in_ledger: EntryInLedger, by: str, why: str) -> None:
    """Have a write that is done sent again by the next attempt.

    :param by: who says so.
    :raises FsmRefusedError: if it is not done, or a request may be on its way.
    """
    note = _make_note("forgotten", by, why)
    change = partial(rules.forget, entry_in_ledger[1], note)
    _change(entry_in_ledger, change, "forgotten", ("done",))


def _check_job_id(ledgers: LedgerReader, entry: LedgerEntry, job_id: int | None) -> None:
    """Refuse to settle a job without its id, or with that of another write's job."""
    if job_id is None:
        if entry.state == "done":
            return  # which is refused anyway
        raise FsmRefusedError(f"'{entry.key}' is a job: give its id")
    for _, other in ledgers.entries(EntryFilter(job_id=job_id)):
        if (other.sent_by, other.id) != (entry.sent_by, entry.id):
            raise FsmRefusedError(
                f"'{entry.key}' was not settled: job {job_id} is that of key '{other.key}': "
                f"{advice.ID_OF_ANOTHER}"
            )


def _make_note(statement: str, by: str, why: str) -> str:
    reason = why.strip()
    if not 0 < len(reason) <= MAX_REASON:
        raise FsmRefusedError(
            f"--why (How you know): should have 1 to {MAX_REASON} characters, not {len(reason)}"
        )
    # The page looks for the last of these in an entry's note: plugins/page/reading.py.
    return f"{statement}, says {by} at {datetime.now(UTC):%F %T} UTC: {reason}"


def _change(
    entry_in_ledger: EntryInLedger,
    change: Callable[[str, LedgerEntry], LedgerEntry],
    participle: str,
    changeable: Collection[str],
) -> None:
    """Apply a change to an entry.

    :param change: a rule that lacks the entry's new owner, by which it is known whether it applied.
    :param changeable: the states in which it applies once no request is on its way.
    :raises FsmRefusedError: if it does not apply; it says why.
    """
    ledger, entry = entry_in_ledger
    refused = f"'{entry.key}' was not {participle}"
    owner = uuid4().hex
    try:
        after = ledger.change({entry.id: partial(change, owner)})[entry.id]
    except FsmRefusedError as error:
        raise FsmRefusedError(f"{refused}: {error}") from None
    if after.owner == owner:
        return
    if after.state in changeable and after.lease_left > 0:
        raise FsmRefusedError(
            f"{refused}: a request may be on its way for another {after.lease_left:.0f} s: "
            f"{advice.LEASE_LASTS}"
        )
    with_id = f", with id {after.result_id}" if after.result_id else ""
    next_step = advice.AFTER_REFUSAL[after.state]
    raise FsmRefusedError(f"{refused}: it is {after.state}{with_id}: {next_step}")
