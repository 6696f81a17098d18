"""What became of the writes of an attempt, for people: errors, and the outcomes of many jobs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from fsm_provider.api import errors
from fsm_provider.api.validation import pluralize

if TYPE_CHECKING:
    from fsm_provider.writes.ledger import LedgerEntry, WriteAttempt

Outcome = Literal["created", "existing", "rejected", "uncertain", "not_created", "valid"]
MADE: frozenset[Outcome] = frozenset({"created", "existing"})


class JobOutcome(TypedDict):
    """The outcome of one input: no less and no more than is known.

    ``created``: by this attempt. ``existing``: by an earlier one, or by another task. ``rejected``:
    the service answered with an error; after a 409 it may exist already. ``uncertain``: it may
    exist or not. ``not_created``: it does not exist, and another attempt may create it; or its key
    is that of another job, which ``error`` names. ``valid``: in a dry run.

    ``propertyID`` and ``customerReference`` are those of what was sent with the key. ``by`` is the
    task that sent it before, as ``dag_id``, ``run_id``, ``task_id``, ``map_index`` and ``airflow``;
    None for what this attempt has sent, and what nobody has.
    """

    index: int
    key: str
    propertyID: int | str | None
    customerReference: str | None
    outcome: Outcome
    jobID: int | None
    link: str | None
    by: dict[str, Any] | None
    error: str | None


def why_not_made(one: WriteAttempt, stop_reason: str, fsm_conn_id: str) -> errors.FsmError:
    row = one.row
    where = "" if row.service == one.planned.service else f" to {row.service}"
    if row.state == "done":
        return errors.FsmInputError(
            f"key '{row.key}' is that of {row} (id {row.result_id}), which {row.by} sent{where} at "
            f"{_sent_at(row)}. Nothing was sent now: restore the input, or use another key"
        )
    if one.outcome == "uncertain":
        return _uncertain(one, where, fsm_conn_id)
    if one.error is not None:
        return one.error
    reason = stop_reason or "the task failed before"
    before = f"; before that: {row.error}" if row.error and reason not in row.error else ""
    return errors.FsmNotSentError(f"not sent: {reason}{before}")


def _uncertain(one: WriteAttempt, where: str, fsm_conn_id: str) -> errors.FsmError:
    row = one.row
    reason = row.error or "its response was lost"
    if row.state == "sending":
        reason = f"it may be under way for another {row.lease_left:.0f} s"
    if not one.is_as_sent:
        reason += f"; that is what was sent{where} with this key: the input is another now, and was not sent"
    method, _, path = row.what.partition(" ")
    task = [
        "--conn-id",
        fsm_conn_id,
        "--dag",
        row.by.dag_id,
        "--run",
        row.by.run_id,
        "--why",
        "...",
    ]
    end = shlex.join(["--"] * row.key.startswith("-") + [row.key])
    command = f"python -m fsm_provider ledger settle {shlex.join(task)} --job-id N {end}"
    is_repeatable = one.error is not None and not one.error.permanent
    kind = errors.FsmRepeatableWriteError if is_repeatable else errors.FsmUncertainWriteError
    subject = {"key": row.key, **row.about}
    said = getattr(one.error, "body_excerpt", "")
    error = kind(
        method, path, f"{reason} (sent by {row.by})", _sent_at(row), subject, said, command
    )
    error.__cause__ = one.error
    return error


def _sent_at(row: LedgerEntry) -> str:
    return datetime.fromtimestamp(row.sent_at / 1000, UTC).isoformat(timespec="seconds")


def job_outcome(
    index: int,
    one: WriteAttempt,
    error: errors.FsmError | None,
    *,
    web_url: str | None,
    dry_run: bool,
) -> JobOutcome:
    row, outcome = one.row, one.outcome
    if dry_run and row.state == "free":
        outcome, error = "valid", None
    job_id = cast(int, row.result_id) if outcome in MADE else None
    is_own = one.is_created or one.is_lost or not row.sent_at
    return JobOutcome(
        index=index,
        key=row.key,
        propertyID=row.about.get("propertyID"),
        customerReference=row.reference,
        outcome=outcome,
        jobID=job_id,
        link=row.page(web_url) if web_url and job_id else None,
        by=None if is_own else asdict(row.by),
        error=str(error) if error else None,
    )


def summary_of(outcomes: Sequence[JobOutcome], stop_reason: str) -> str:
    counts = Counter(one["outcome"] for one in outcomes)
    parts = [f"{counts.pop('created', 0)} created"]  # shown even if 0
    parts += [f"{number} {one.replace('_', ' ')}" for one, number in counts.items()]
    stopped = f" (nothing more was sent: {stop_reason})" if stop_reason else ""
    return f"{pluralize(len(outcomes), 'job')}: {', '.join(parts)}{stopped}"
