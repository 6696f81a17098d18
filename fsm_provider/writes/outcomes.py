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
from fsm_provider.links import job_page_url
from fsm_provider.writes.ledger import Row, Write
from fsm_provider.writes.runner import Pending, Runner

What = Literal["created", "existing", "rejected", "uncertain", "not_created", "unknown", "valid"]


MADE: frozenset[What] = frozenset({"created", "existing"})


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


def error_of(one: Pending, runner: Runner) -> FsmError | None:
    """Return why a write is not known to have been made; None if it is."""
    what, row = what_became(one), one.row
    if what in MADE:
        return None
    if row.state == "done":
        return FsmInputError(
            f"key '{row.key}' is that of {row} (id {row.result_id}), which {row.by} sent at {_sent_at(row)}. "
            "Nothing was sent now: restore the input, or use another key"
        )
    if what == "uncertain":
        return _uncertain(one, row, runner)
    if one.error is not None:
        return one.error
    reason = runner.stop_reason or "the task failed before"
    before = f"; before that: {row.error}" if row.error and reason not in row.error else ""
    return NotCreatedError(f"not sent: {reason}{before}")


@dataclass(eq=False)
class NotCreatedError(FsmError):
    message: str

    def __str__(self) -> str:
        return self.message


def _uncertain(one: Pending, row: Row, runner: Runner) -> FsmError:
    reason = row.error or "its response was lost"
    if row.state == "sending":
        reason = f"it may be under way for another {row.lease_left:.0f} s"
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
        command=_settle_command(row, runner),
    )
    error.__cause__ = one.error
    return error


def _settle_command(row: Row, runner: Runner) -> str:
    scope = [] if runner.rules.by_key else ["--dag", row.by.dag_id, "--run", row.by.run_id]
    options = shlex.join(["--conn-id", runner.rules.fsm_conn_id, *scope])
    before, after = (
        ("", f" -- {shlex.quote(row.key)}") if row.key.startswith("-") else (f"{shlex.quote(row.key)} ", "")
    )
    command = f"python -m fsm_provider ledger settle {before}{options}"
    return f"{command} --job-id N (or --not-created) --why '...'{after}"


def _sent_at(row: Row) -> str:
    return datetime.fromtimestamp(row.sent_at / 1000, UTC).isoformat(timespec="seconds")


def job_outcomes(
    writes: Sequence[Write], runner: Runner, *, unsent: What, web_url: str | None
) -> list[JobOutcome]:
    """Return the outcomes of the jobs of an attempt, in input order.

    :param writes: one for each input; inputs with the same key are one job.
    :param unsent: the outcome of what nobody has sent.
    :param web_url: the setting of the connection.
    """
    return [_outcome(index, one, runner, unsent, web_url) for index, one in enumerate(writes)]


def _outcome(index: int, write: Write, runner: Runner, unsent: What, web_url: str | None) -> JobOutcome:
    one, error = runner.pending.get(write.id), None
    row = one.row if one else write.planned(runner.by)
    what = what_became(one, unsent=unsent) if one else "unknown"
    if what == "unknown":
        reason = runner.stop_reason or "the task failed before"
        error = f"{reason}: whether an earlier attempt created it is not known"
    elif one and what != "valid" and (failure := error_of(one, runner)):
        error = str(failure)
    job_id = cast(int, row.result_id) if what in MADE else None
    is_own = one is None or one.is_created or one.is_lost or not row.sent_at
    return JobOutcome(
        index=index,
        key=row.key,
        propertyID=as_number(row.property_id),
        customerReference=row.reference,
        outcome=what,
        jobID=job_id,
        link=job_page_url(web_url, job_id, row.property_id or "") if web_url and job_id else None,
        by=None if is_own else asdict(row.by),
        error=error,
    )


def summary_of(outcomes: Sequence[JobOutcome], stop_reason: str) -> str:
    counts = Counter(one["outcome"] for one in outcomes)
    parts = [f"{counts.pop('created', 0)} created"]  # shown even if 0
    parts += [f"{number} {one.replace('_', ' ')}" for one, number in counts.items()]
    stopped = f" (nothing more was sent: {stop_reason})" if stop_reason else ""
    return f"{len(outcomes)} job{'s' * (len(outcomes) != 1)}: {', '.join(parts)}{stopped}"


def fails(outcomes: Sequence[JobOutcome], fail_on: str) -> bool:
    """Return whether outcomes fail the task: see ``FsmCreateJobsOperator``."""
    found = {one["outcome"] for one in outcomes}
    if fail_on == "all":
        return not found & MADE
    return fail_on == "any" or (fail_on == "uncertain" and bool(found & {"uncertain", "unknown"}))


def as_number(identifier: str | None) -> int | str | None:
    return int(identifier) if identifier and identifier.isdecimal() else identifier
