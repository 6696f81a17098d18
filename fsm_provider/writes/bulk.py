"""Create many jobs concurrently, each once, with an outcome for each."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import BoundedSemaphore, Event
from typing import TYPE_CHECKING, Any, Literal

from fsm_provider.api.endpoints import CREATE_JOB
from fsm_provider.api.errors import (
    FsmConflictError,
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmRateLimitedError,
    FsmUnauthorisedError,
    FsmUncertainWriteError,
)
from fsm_provider.api.job_urls import job_page_url, job_url
from fsm_provider.state.task import Task
from fsm_provider.terminal import aligned
from fsm_provider.writes.ledger import Ledger, NothingSentError
from fsm_provider.writes.lookups import FindExisting, find_job
from fsm_provider.writes.outcomes import JobOutcome, id_and_link, kept_job
from fsm_provider.writes.write import Write, WriteOutcome, still_uncertain

if TYPE_CHECKING:
    from fsm_provider.api.payloads import JobRequest
    from fsm_provider.hooks.fsm import FsmHook

logger: logging.Logger = logging.getLogger(__name__)

MAX_UNCERTAIN_IN_A_ROW = 20
"""After this many uncertain outcomes in a row the service counts as down; nothing more is sent."""


def is_complete(outcome: JobOutcome) -> bool:
    """Return whether nothing is left to do for an input."""
    return outcome["outcome"] in ("created", "existing", "valid") and outcome["error"] is None


def write_for(request: JobRequest) -> Write:
    """Return the ledger's description of the creation of a job."""
    body, kind = request.job.body(), f"{CREATE_JOB.method} {CREATE_JOB.path}"
    return Write(CREATE_JOB.method, request.path, body, request.subject, request.key, kind)


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


class BulkJobCreator:
    """Creates jobs through a ledger.

    It stops sending when further requests would fail too: the service is unreachable, asks for a longer wait
    than the client accepts, rejects the token, or many outcomes in a row are uncertain.

    :param concurrency: concurrent requests.
    :param fail_fast: stop sending after the first job that is rejected or uncertain.
    :param existing_jobs: ids of jobs that a person has found in the service, by key; they are not sent.
    :param find_existing: looks for a job whose creation is uncertain.
    :param headers: further headers of each request.
    :raises FsmInputError: if one of these keys belongs to no request.
    """

    def __init__(
        self,
        requests: list[JobRequest],
        *,
        hook: FsmHook,
        concurrency: int,
        fail_fast: bool,
        existing_jobs: Mapping[str, int] | None = None,
        find_existing: FindExisting | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._requests = requests
        self._writes = [write_for(request) for request in requests]
        self._outcomes = [
            _unknown(index, request, write.key)
            for index, (request, write) in enumerate(zip(requests, self._writes, strict=True))
        ]
        self._by_key: dict[str, JobOutcome] = {}
        for outcome in self._outcomes:
            self._by_key.setdefault(outcome["key"], outcome)
        self._existing_jobs = existing_jobs or {}
        if unmatched := self._existing_jobs.keys() - self._by_key.keys():
            raise FsmInputError(f"existing_jobs: {', '.join(sorted(unmatched))}: no job has this key")
        self._to_send: list[int] = []
        self._waiting = iter(self._to_send)
        self._created: set[str] = set()
        self._may_be_repeated: set[str] = set()
        self._unsent: Literal["not_created", "unknown"] = "unknown"
        self._hook = hook
        self._find_existing = find_existing
        self._headers = headers or {}
        self._to_look_up = 0
        self._concurrency = concurrency
        self._fail_fast = fail_fast
        self._slots = BoundedSemaphore(concurrency)
        self._stopping = Event()
        self._reported = count(1)
        self._counted: set[str] = set()
        self._stop_reason = ""
        self._needs_a_person = False
        self._interrupted = False
        self._uncertain_in_a_row = 0
        self.web_url: str | None = None
        """The setting of the connection, once the outcomes are loaded."""
        self.passing_error: FsmError | None = None
        """The last error of a job that another attempt might create."""

    def load_outcomes(self, ledger: Ledger) -> None:
        """Set the outcomes that are known before anything is sent; record nothing.

        :raises FsmInputError: if the ledger knows another id for one of the existing jobs, or as
            ``Ledger.expect`` does; jobs that the ledger does not know are then ``unknown``.
        """
        ledger.load(self._writes)
        self.web_url = self._hook.web_url
        for key, outcome in self._by_key.items():
            known = self._update(self._writes[outcome["index"]], ledger)
            if key in self._existing_jobs:
                continue
            if known is None or known.repeat or known.under_way:
                self._to_send.append(outcome["index"])
            elif self._find_existing and outcome["outcome"] == "uncertain":
                self._to_send.append(outcome["index"])
                self._to_look_up += 1
        for key, job_id in self._existing_jobs.items():
            outcome = self._by_key[key]
            known = ledger.get(self._writes[outcome["index"]])
            if known and known.under_way:
                raise FsmInputError(f"existing_jobs.{key}: may not be created yet: {known.error}")
            if outcome["jobID"] not in (None, job_id):
                raise FsmInputError(
                    f"existing_jobs.{key}: job {outcome['jobID']} was created for it, not {job_id}"
                )
            outcome["outcome"], outcome["jobID"], outcome["error"] = "existing", job_id, None
        try:
            ledger.expect(self._writes, settled=self._existing_jobs)
        except FsmInputError as error:
            self._stop(str(error))
            raise
        self._unsent = "not_created"
        for outcome in self._by_key.values():
            if outcome["outcome"] == "unknown":
                outcome["outcome"] = self._unsent
        to_send = set(self._to_send)
        for outcome in self._by_key.values():
            if outcome["index"] not in to_send:
                self._report(outcome)
                if outcome["outcome"] == "uncertain" and self._fail_fast:
                    self._stop("on_error is fail_fast")

    def run(self, ledger: Ledger) -> None:
        """Record the existing jobs, and send what the ledger does not hold.

        It returns once no request is in flight.
        """
        for key, job_id in self._existing_jobs.items():
            outcome = self._by_key[key]
            write = self._writes[outcome["index"]]
            ledger.record(write, kept_job(job_id, outcome["link"]))
            self._update(write, ledger)
        if self._to_send:
            self._send_all(ledger)
        logger.info(self.summary)

    def _send_all(self, ledger: Ledger) -> None:
        self._hook.sleep = partial(ledger.wait, stopping=self._stopping)
        _ = self._hook.client  # created once, before threads share it and before any intent
        self._waiting = iter(self._to_send)
        # While some are sent, the intents of the next are stored. With a concurrency of 1 they go in order.
        threads = self._concurrency + self._concurrency // 2
        with ThreadPoolExecutor(threads, thread_name_prefix="fsm-job") as pool:
            workers = [pool.submit(self._work, ledger) for _ in range(min(threads, len(self._to_send)))]
            try:
                for worker in workers:
                    worker.result()
            except BaseException:
                self.interrupt()
                raise

    def dry_run(self) -> None:
        """Check the connection and log the jobs as a table; send nothing."""
        _ = self._hook.client
        digits = max(len("job"), len(str(len(self._requests))))
        rows = [("job".rjust(digits), "property", "known", "payload")]
        for index, (request, write) in enumerate(zip(self._requests, self._writes, strict=True)):
            known = self._known_of(self._by_key[write.key])
            payload = json.dumps(request.job.body(), ensure_ascii=False)
            rows.append((str(index).rjust(digits), str(request.property_id), known, payload))
        logger.info(
            "Dry run: %s jobs are valid, %s of them to be created, none was sent\n%s",
            *(len(self._requests), self.to_send, "\n".join(aligned(rows))),
        )
        for outcome in self._by_key.values():
            if outcome["outcome"] == self._unsent:
                outcome["outcome"] = "valid"

    def _known_of(self, outcome: JobOutcome) -> str:
        """Describe what the ledger knows of a job."""
        if outcome["outcome"] == self._unsent:
            return "new"
        return f"job {outcome['jobID']}" if outcome["jobID"] else outcome["outcome"]

    @property
    def to_send(self) -> int:
        """The number of jobs that are to be created."""
        return len(self._to_send) - self._to_look_up

    def interrupt(self) -> None:
        """Send nothing more; requests in flight are finished and recorded."""
        self._interrupted = True
        self._stop("the task was stopped")

    @property
    def outcomes(self) -> list[JobOutcome]:
        """One for each input, in input order."""
        return [self._outcome_for(given) for given in self._outcomes]

    def count_remaining(self) -> None:
        """Count the outcomes of the jobs that the attempt did not come to."""
        for key in self._by_key.keys() - self._counted:
            self._hook.metrics.incr("writes", outcome=self._by_key[key]["outcome"])

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return all(map(is_complete, self._by_key.values()))

    @property
    def another_attempt_could_help(self) -> bool:
        """Whether a retry of the task could create what is missing."""
        final = {
            outcome["outcome"] for key, outcome in self._by_key.items() if key not in self._may_be_repeated
        }
        if self._fail_fast and final & {"rejected", "uncertain"}:
            return False
        return self._interrupted or self.passing_error is not None

    def fails(self, fail_on: str) -> bool:
        """Return whether the outcomes that are known at the end fail the task.

        :param fail_on: see ``FsmCreateJobsOperator``.
        """
        outcomes = self._by_key.values()
        if self._interrupted or self._needs_a_person or fail_on == "any":
            return True
        if fail_on == "all":
            return not any(map(is_complete, outcomes))
        return fail_on == "uncertain" and any(one["outcome"] in ("uncertain", "unknown") for one in outcomes)

    @property
    def summary(self) -> str:
        """The number of inputs by outcome, in one line."""
        counts = Counter(outcome["outcome"] for outcome in self.outcomes)
        counts["created"] += 0  # shown even if 0
        parts = [f"{counts.pop('created')} created"]
        parts += [f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.items()]
        stopped = f" (nothing more was sent: {self._stop_reason})" if self._stop_reason else ""
        return f"{len(self._outcomes)} jobs: {', '.join(parts)}{stopped}"

    def _outcome_for(self, given: JobOutcome) -> JobOutcome:
        outcome = self._by_key[given["key"]].copy()
        outcome["index"] = given["index"]
        if self.web_url and outcome["jobID"] is not None:
            outcome["link"] = job_page_url(self.web_url, outcome["jobID"], outcome["propertyID"])
        if outcome["outcome"] in ("not_created", "unknown"):
            reason = outcome["error"] or f"not sent: {self._stop_reason or 'the task failed before'}"
            earlier = "; whether an earlier attempt created it is not known"
            outcome["error"] = reason + earlier * (outcome["outcome"] == "unknown")
        return outcome

    def _work(self, ledger: Ledger) -> None:
        try:
            while not self._stopping.is_set() and (index := next(self._waiting, None)) is not None:
                self._create(self._requests[index], self._writes[index], ledger)
        except BaseException:
            self.interrupt()
            raise
        finally:
            ledger.store()

    def _create(self, request: JobRequest, write: Write, ledger: Ledger) -> None:
        outcome = self._by_key[write.key]
        find = partial(find_job, self._find_existing, request, self._hook) if self._find_existing else None
        try:
            send = partial(self._send, request, write, ledger)
            ledger.run_once(write, send, find=find, stopping=self._stopping)
        except NothingSentError:
            self._update(write, ledger)
        except FsmError as error:
            self._update(write, ledger, error)
            if not error.permanent:
                self.passing_error = error
                self._may_be_repeated.add(write.key)
            self._report(outcome)
            self._stop_if_others_would_fail(error)
        except BaseException:
            self._update(write, ledger)
            raise
        else:
            self._update(write, ledger)
            if write.key in self._created:
                outcome["outcome"], outcome["by"] = "created", None
            self._report(outcome)

    def _update(self, write: Write, ledger: Ledger, error: FsmError | None = None) -> WriteOutcome | None:
        """Set the outcome that the ledger knows, after an attempt that failed with ``error``."""
        outcome, known = self._by_key[write.key], ledger.get(write)
        conflict = known.error if known and isinstance(known.error, FsmConflictError) else None
        if known is None or conflict:
            refused = error is not None and error.permanent and self._unsent == "not_created"
            refused = refused or conflict is not None
            outcome["outcome"] = "rejected" if refused else self._unsent
            errors = dict.fromkeys(str(one) for one in (conflict, error) if one)
            outcome["error"] = "; another attempt at it failed: ".join(errors) or None
        elif isinstance(known.error, FsmUncertainWriteError):
            if error and not error.may_have_written:
                error = still_uncertain(write, known.error, error)
            outcome["outcome"], outcome["error"] = "uncertain", str(error or known.error)
        else:
            outcome["outcome"] = "existing"
            outcome["jobID"], outcome["link"] = id_and_link(known.result)
            outcome["error"] = f"another was not created: {error}" if error else None
        outcome["by"] = known.by.as_dict() if known and known.by else None
        return known

    def _send(self, request: JobRequest, write: Write, ledger: Ledger) -> dict[str, Any]:
        with self._slots:
            if self._stopping.is_set():
                raise NothingSentError
            key_headers = ledger.headers()
            try:
                job = self._hook.client.send_job(request, {**self._headers, **key_headers})
            except FsmError as error:
                self._uncertain_in_a_row += isinstance(error, FsmUncertainWriteError)
                # Before another job takes this slot.
                may_be_repeated = bool(key_headers) and error.may_have_written
                self._stop_if_others_would_fail(error, may_be_repeated=may_be_repeated)
                raise
        self._uncertain_in_a_row = 0
        self._created.add(write.key)
        return kept_job(job.id, job_url(job.as_json()))

    def _report(self, outcome: JobOutcome) -> None:
        request, progress = self._requests[outcome["index"]], f"{next(self._reported)} of {len(self._by_key)}"
        by = f", by {Task(**outcome['by'])}" if outcome["by"] else ""
        details = outcome["error"] or f"job {outcome['jobID']}{by}"
        level = logging.INFO if is_complete(outcome) else logging.ERROR
        logger.log(level, "%s: %s: %s: %s", progress, request, outcome["outcome"], details)
        self._counted.add(outcome["key"])
        self._hook.metrics.incr("writes", outcome=outcome["outcome"])

    def _stop_if_others_would_fail(self, error: FsmError, *, may_be_repeated: bool = False) -> None:
        if self._stopping.is_set():
            return
        if isinstance(error, FsmUnauthorisedError | FsmConnectionError | FsmRateLimitedError):
            reason = f"every further job would fail with: {error}"
            self._needs_a_person = isinstance(error, FsmUnauthorisedError)
        elif self._uncertain_in_a_row >= MAX_UNCERTAIN_IN_A_ROW:
            self._needs_a_person = True
            reason = f"{MAX_UNCERTAIN_IN_A_ROW} uncertain outcomes in a row mean that the service is down"
        elif self._fail_fast and (error.permanent or error.may_have_written) and not may_be_repeated:
            reason = "on_error is fail_fast"
        else:
            return
        self._stop(reason)

    def _stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason
        self._stopping.set()
