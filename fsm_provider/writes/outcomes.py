"""What became of the writes of an attempt, for people: errors, and the outcomes of many jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict, cast

from fsm_provider.api import errors
from fsm_provider.api.validation import JsonObject, pluralize
from fsm_provider.writes.attempt import MADE, Outcome, WriteAttempt

if TYPE_CHECKING:
    from fsm_provider.writes.advice import Advice
    from fsm_provider.writes.ledger import LedgerEntry


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
    by: JsonObject | None
    error: str | None


def why_not_made(write: WriteAttempt, stop_reason: str, advice: Advice) -> errors.FsmError:
    """Return the error of a write that is not known to have been made."""
    entry = write.entry
    if entry.state == "done":
        return errors.FsmInputError(
            f"key '{entry.key}' is that of {entry} (id {entry.result_id}), which {entry.sent_by} "
            f"sent at {_sent_at(entry)}. Nothing was sent now: the input may be the same, edited. "
            f"{advice.restore_or_separate}"
        )
    if write.outcome == "uncertain":
        return _uncertain(write, advice)
    if write.error is not None:
        return write.error
    reason = stop_reason or "its entry was settled or forgotten while this task ran"
    text = f"not sent: {reason}"
    if entry.error:
        text += f"; before that: {entry.error}"
    return errors.FsmNotSentError(text)


def _uncertain(write: WriteAttempt, advice: Advice) -> errors.FsmError:
    entry = write.entry
    if entry.state == "sending":
        reason = f"it may be under way for another {entry.lease_left:.0f} s"
    else:
        reason = entry.error or "its response was lost"
    if not write.matches_intent:
        reason += (
            "; that is what was sent with this key: the input is another now, and was not sent"
        )
    is_repeatable = write.error is not None and not write.error.permanent
    kind = errors.FsmRepeatableWriteError if is_repeatable else errors.FsmUncertainWriteError
    method, _, path = entry.what.partition(" ")
    error = kind(
        method,
        path,
        f"{reason} (sent by {entry.sent_by})",
        _sent_at(entry),
        {"key": entry.key, **entry.subject},
        getattr(write.error, "body_excerpt", ""),
        advice.settle_if_uncertain(entry),
    )
    error.__cause__ = write.error
    return error


def _sent_at(entry: LedgerEntry) -> str:
    return datetime.fromtimestamp(entry.sent_at / 1000, UTC).isoformat(timespec="seconds")


def job_outcome(
    index: int,
    write: WriteAttempt,
    error: errors.FsmError | None,
    *,
    web_url: str | None,
    dry_run: bool,
) -> JobOutcome:
    entry = write.entry
    outcome = write.outcome
    if dry_run and entry.state == "free":
        outcome = "valid"
        error = None
    job_id = None
    link = None
    if outcome in MADE:
        job_id = cast(int, entry.result_id)
        link = entry.job_page(web_url) if web_url else None
    is_own = write.was_claimed and entry.sent_by == write.intended.sent_by
    was_sent_before = entry.sent_at > 0 and not is_own
    return JobOutcome(
        index=index,
        key=entry.key,
        propertyID=entry.subject.get("propertyID"),
        customerReference=entry.reference,
        outcome=outcome,
        jobID=job_id,
        link=link,
        by=asdict(entry.sent_by) if was_sent_before else None,
        error=str(error) if error else None,
    )


def outcomes_as_text(outcomes: Sequence[JobOutcome] | None) -> str:
    """Make a table of the outcomes of many jobs, for a mail (as ``<pre>``) or a chat (as code).

    Escape it for HTML: keys and errors are input. The first line counts the outcomes.

    :param outcomes: what ``FsmCreateJobsOperator`` returns; None: it failed before the first job.
    :return: lines of the same columns, what needs a person first.
    """
    rows = [["key", "property", "outcome", "job", "remark"]]
    for outcome in sorted(outcomes or (), key=lambda outcome: outcome["outcome"] in MADE):
        job_id = outcome["jobID"] or ""
        remark = _remark_for(outcome)
        cells = (outcome["key"], outcome["propertyID"], outcome["outcome"], job_id, remark)
        rows.append([" ".join(str(cell).split()) for cell in cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [summary_of(outcomes or (), "")]
    for row in rows:
        line = "  ".join(map(str.ljust, row, widths))
        lines.append(line.rstrip())
    return "\n".join(lines)


def _remark_for(outcome: JobOutcome) -> str:
    """Return what went wrong with a job, or which task has created it."""
    if outcome["error"]:
        return outcome["error"]
    creator = outcome["by"]
    return f"by {creator['task_id']} of run {creator['run_id']}" if creator else ""


def summary_of(outcomes: Sequence[JobOutcome], stop_reason: str) -> str:
    """Count the outcomes in words; those created are counted even if there are none."""
    counts = Counter(outcome["outcome"] for outcome in outcomes)
    parts = [f"{counts.pop('created', 0)} created"]
    parts += [f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.items()]
    summary = f"{pluralize(len(outcomes), 'job')}: {', '.join(parts)}"
    return f"{summary} (nothing more was sent: {stop_reason})" if stop_reason else summary
