"""The jobs of a task, what became of each, and what that means for the task."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from fsm_provider.api.endpoints import CREATE_JOB
from fsm_provider.api.errors import FsmConflictError, FsmError, FsmUncertainWriteError
from fsm_provider.api.job_urls import job_page_url
from fsm_provider.terminal import aligned
from fsm_provider.writes.outcomes import JobOutcome, id_and_link
from fsm_provider.writes.write import Write, WriteOutcome, still_uncertain

if TYPE_CHECKING:
    from fsm_provider.api.payloads import JobRequest


class Job(NamedTuple):
    """A job that is created once.

    :param outcome: of its first input.
    """

    request: JobRequest
    write: Write
    outcome: JobOutcome


def is_complete(outcome: JobOutcome) -> bool:
    """Return whether nothing is left to do for an input."""
    return outcome["outcome"] in ("created", "existing", "valid") and outcome["error"] is None


def write_for(request: JobRequest) -> Write:
    """Return the ledger's description of the creation of a job."""
    body, kind = request.job.body(), f"{CREATE_JOB.method} {CREATE_JOB.path}"
    return Write(CREATE_JOB.method, request.path, body, request.subject, request.key, kind)


class JobOutcomes:
    """The outcomes of jobs, which change as the attempt goes on; ``unknown`` to begin with.

    :param requests: one for each input; inputs with the same key are one job.
    """

    def __init__(self, requests: Iterable[JobRequest]) -> None:
        self.jobs: dict[str, Job] = {}
        """By the key of the ledger's entry."""
        self.stop_reason: str = ""
        """Why the attempt sends nothing more."""
        self.web_url: str | None = None
        """The setting of the connection."""
        self._keys: list[str] = []
        self._unsent: Literal["not_created", "unknown"] = "unknown"
        for index, request in enumerate(requests):
            write = write_for(request)
            self._keys.append(write.key)
            if write.key not in self.jobs:
                self.jobs[write.key] = Job(request, write, _unknown(index, request, write.key))

    def __len__(self) -> int:
        """Return the number of inputs."""
        return len(self._keys)

    def update(self, job: Job, known: WriteOutcome | None, error: FsmError | None = None) -> None:
        """Set what the ledger knows of a job, after an attempt that failed with ``error``."""
        outcome = job.outcome
        conflict = known.error if known and isinstance(known.error, FsmConflictError) else None
        if known is None or conflict:
            refused = error is not None and error.permanent and self._unsent == "not_created"
            refused = refused or conflict is not None
            outcome["outcome"] = "rejected" if refused else self._unsent
            errors = dict.fromkeys(str(one) for one in (conflict, error) if one)
            outcome["error"] = "; another attempt at it failed: ".join(errors) or None
        elif isinstance(known.error, FsmUncertainWriteError):
            if error and not error.may_have_written:
                error = still_uncertain(job.write, known.error, error)
            outcome["outcome"], outcome["error"] = "uncertain", str(error or known.error)
        else:
            outcome["outcome"] = "existing"
            outcome["jobID"], outcome["link"] = id_and_link(known.result)
            outcome["error"] = f"another was not created: {error}" if error else None
        outcome["by"] = known.by.as_dict() if known and known.by else None

    def accept(self) -> None:
        """Have what the ledger does not hold be ``not_created``: it has accepted the input."""
        self._replace("unknown", "not_created")
        self._unsent = "not_created"

    def end_dry_run(self) -> None:
        """Have what would be sent be ``valid``."""
        self._replace(self._unsent, "valid")

    def _replace(self, outcome: str, by: Literal["not_created", "valid"]) -> None:
        for job in self.jobs.values():
            if job.outcome["outcome"] == outcome:
                job.outcome["outcome"] = by

    @property
    def for_inputs(self) -> list[JobOutcome]:
        """One for each input, in input order."""
        return [self._for_input(index, key) for index, key in enumerate(self._keys)]

    def _for_input(self, index: int, key: str) -> JobOutcome:
        outcome = self.jobs[key].outcome.copy()
        outcome["index"] = index
        if self.web_url and outcome["jobID"] is not None:
            outcome["link"] = job_page_url(self.web_url, outcome["jobID"], outcome["propertyID"])
        if outcome["outcome"] in ("not_created", "unknown"):
            reason = outcome["error"] or f"not sent: {self.stop_reason or 'the task failed before'}"
            earlier = "; whether an earlier attempt created it is not known"
            outcome["error"] = reason + earlier * (outcome["outcome"] == "unknown")
        return outcome

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return all(is_complete(job.outcome) for job in self.jobs.values())

    def fails(self, fail_on: str) -> bool:
        """Return whether they fail the task, if no other attempt could help.

        :param fail_on: see ``FsmCreateJobsOperator``.
        """
        outcomes = [job.outcome for job in self.jobs.values()]
        if fail_on == "all":
            return not any(map(is_complete, outcomes))
        is_uncertain = any(one["outcome"] in ("uncertain", "unknown") for one in outcomes)
        return fail_on == "any" or (fail_on == "uncertain" and is_uncertain)

    @property
    def summary(self) -> str:
        """The number of inputs by outcome, in one line."""
        counts = Counter(self.jobs[key].outcome["outcome"] for key in self._keys)
        created = counts.pop("created", 0)  # shown even if 0
        others = [f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.items()]
        stopped = f" (nothing more was sent: {self.stop_reason})" if self.stop_reason else ""
        return f"{len(self)} jobs: {', '.join([f'{created} created', *others])}{stopped}"

    @property
    def table(self) -> str:
        """The inputs with what the ledger knows of each."""
        digits = max(len("job"), len(str(len(self))))
        rows = [("job".rjust(digits), "property", "known", "payload")]
        for index, key in enumerate(self._keys):
            request, _, outcome = self.jobs[key]
            known = f"job {outcome['jobID']}" if outcome["jobID"] else outcome["outcome"]
            if outcome["outcome"] == self._unsent:
                known = "new"
            payload = json.dumps(request.job.body(), ensure_ascii=False)
            rows.append((str(index).rjust(digits), str(request.property_id), known, payload))
        return "\n".join(aligned(rows))


def _unknown(index: int, request: JobRequest, key: str) -> JobOutcome:
    return JobOutcome(
        index=index,
        key=key,
        propertyID=request.property_id,
        customerReference=request.job.customer_reference,
        outcome="unknown",
        jobID=None,
        link=None,
        by=None,
        error=None,
    )
