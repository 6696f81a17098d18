"""What became of the writes of an attempt, made from their rows as they are at its end."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict, cast

from fsm_provider.api.errors import (
    FsmError,
    FsmInputError,
    FsmRepeatableWriteError,
    FsmUncertainWriteError,
)
from fsm_provider.api.job_urls import job_page_url
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import Row, Write
from fsm_provider.writes.runner import Pending, Runner

What = Literal["created", "existing", "rejected", "uncertain", "not_created", "unknown", "valid"]


class JobOutcome(TypedDict):
    """The outcome of one input: no less and no more than is known.

    ``created``: by this attempt. ``existing``: by an earlier one, or by another task. ``rejected``: the
    service refused it; after a 409 it may exist already. ``uncertain``: it may exist or not.
    ``not_created``: it does not exist, and another attempt may create it; or its key is that of another job,
    which ``error`` names. ``unknown``: the ledger could not be read, or the input was refused. ``valid``: in
    a dry run.

    ``propertyID`` and ``customerReference`` are those of what was sent with the key. ``by`` is the task that
    sent it before, as ``dag_id``, ``run_id``, ``task_id``, ``map_index`` and ``airflow``; None for what this
    attempt has sent, and what nobody has.
    """

    index: int
    key: str
    propertyID: int | str | None
    customerReference: str | None
    outcome: What
    jobID: int | None
    link: str | None
    by: dict[str, Any] | None
    error: str | None


@dataclass(frozen=True)
class Place:
    """Where a ledger is, for the command that settles a write in it.

    :param by_key: a key is written once, whatever run asks.
    """

    fsm_conn_id: str
    task: Task
    by_key: bool = False

    def settle_command(self, row: Row) -> str:
        """Return what to type once a write has been looked up in the service."""
        scope = [] if self.by_key else ["--dag", self.task.dag_id, "--run", self.task.run_id]
        words = ["settle", row.key, "--conn-id", self.fsm_conn_id, *scope]
        made = "--job-id N" if row.kind == "job" else "--id N"
        return f"python -m fsm_provider ledger {shlex.join(words)} {made} (or --not-created) --why '...'"


def what_became(one: Pending, *, unsent: What = "not_created") -> What:
    """Return the outcome of a write.

    :param unsent: that of a write that nobody has sent.
    """
    row = one.row
    if row.state == "done" and row.digest != one.write.digest:
        return "not_created"
    if row.state == "done":
        return "created" if one.is_created else "existing"
    if row.state != "free" or one.is_lost or one.is_created:
        return "uncertain"
    return "rejected" if one.error is not None and one.error.permanent else unsent


def error_of(one: Pending, place: Place, stop_reason: str = "") -> FsmError | None:
    """Return why a write is not known to have been made; None if it is."""
    what, row = what_became(one), one.row
    if what in ("created", "existing"):
        return None
    if row.state == "done":
        return FsmInputError(
            f"key '{row.key}' is that of {row} (id {row.result_id}), which {row.by} sent at {_sent_at(row)}. "
            "Nothing was sent now: restore the input, or use another key"
        )
    if what == "uncertain":
        return _uncertain(one, row, place)
    if one.error is not None:
        return one.error
    before = f"; before that: {row.error}" if row.error and stop_reason not in row.error else ""
    return NotCreatedError(f"not sent: {stop_reason or 'the task failed before'}{before}")


@dataclass(eq=False)
class NotCreatedError(FsmError):
    """A write that does not exist, and that another attempt may make."""

    message: str

    def __str__(self) -> str:
        return self.message


def _uncertain(one: Pending, row: Row, place: Place) -> FsmError:
    if row.state == "sending":
        reason = f"it may be under way for another {row.lease_left:.0f} s"
    else:
        reason = row.error or "its response was lost"
    if row.digest != one.write.digest:
        reason += (
            "; this is what was sent with its key, and the input is another now: nothing was sent of that"
        )
    method, _, path = row.what.partition(" ")
    about = {"key": row.key, "propertyID": row.property_id, "customerReference": row.reference}
    repeatable = isinstance(one.error, FsmRepeatableWriteError)
    error = (FsmRepeatableWriteError if repeatable else FsmUncertainWriteError)(
        method=method,
        path=path,
        reason=f"{reason} (sent by {row.by})",
        attempted_at=_sent_at(row),
        subject={name: value for name, value in about.items() if value},
        body_excerpt=getattr(one.error, "body_excerpt", ""),
        command=place.settle_command(row),
    )
    error.__cause__ = one.error
    return error


def _sent_at(row: Row) -> str:
    return datetime.fromtimestamp(row.sent_at / 1000, UTC).isoformat(timespec="seconds")


class JobOutcomes:
    """The outcomes of the jobs of an attempt.

    :param writes: one for each input; inputs with the same key are one job.
    :param web_url: the setting of the connection.
    """

    def __init__(self, writes: Sequence[Write], runner: Runner, place: Place, web_url: str | None) -> None:
        self._writes = writes
        self._runner = runner
        self._place = place
        self._web_url = web_url
        self.unsent: What = "unknown"
        """The outcome of what nobody has sent: ``unknown`` until the input is accepted."""

    def what(self, write: Write) -> What:
        """Return the outcome of a write; ``unknown`` if its row could not be read."""
        one = self._runner.pending.get(write.id)
        return "unknown" if one is None else what_became(one, unsent=self.unsent)

    @property
    def for_inputs(self) -> list[JobOutcome]:
        """One for each input, in input order."""
        return [self._outcome(index, write) for index, write in enumerate(self._writes)]

    def _outcome(self, index: int, write: Write) -> JobOutcome:
        what, one, error = self.what(write), self._runner.pending.get(write.id), None
        row = one.row if one else write.planned(self._place.task)
        reason = self._runner.stop_reason
        if what == "unknown":
            error = (
                f"{reason or 'the task failed before'}: whether an earlier attempt created it is not known"
            )
        elif one and what != "valid" and (failure := error_of(one, self._place, reason)):
            error = str(failure)
        job_id = cast(int, row.result_id) if what in ("created", "existing") else None
        is_own = one is None or one.is_created or one.is_lost or not row.sent_at
        return JobOutcome(
            index=index,
            key=row.key,
            propertyID=as_number(row.property_id),
            customerReference=row.reference,
            outcome=what,
            jobID=job_id,
            link=job_page_url(self._web_url, job_id, row.property_id or "")
            if self._web_url and job_id
            else None,
            by=None if is_own else asdict(row.by),
            error=error,
        )

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return all(self.what(write) in ("created", "existing") for write in self._writes)

    def fails(self, fail_on: str) -> bool:
        """Return whether they fail the task, if no other attempt could help.

        :param fail_on: see ``FsmCreateJobsOperator``.
        """
        outcomes = {self.what(write) for write in self._writes}
        if fail_on == "all":
            return not outcomes & {"created", "existing"}
        return fail_on == "any" or (fail_on == "uncertain" and bool(outcomes & {"uncertain", "unknown"}))

    @property
    def summary(self) -> str:
        """The number of inputs by outcome, in one line."""
        counts = Counter(self.what(write) for write in self._writes)
        parts = [f"{counts.pop('created', 0)} created"]  # shown even if 0
        parts += [f"{number} {one.replace('_', ' ')}" for one, number in counts.items()]
        reason, number = self._runner.stop_reason, len(self._writes)
        stopped = f" (nothing more was sent: {reason})" if reason else ""
        return f"{number} job{'s' * (number != 1)}: {', '.join(parts)}{stopped}"


def as_number(identifier: str | None) -> int | str | None:
    """Return an identifier as the service's integer, if it is one."""
    return int(identifier) if identifier and identifier.isdecimal() else identifier
