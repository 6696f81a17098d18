"""Create many jobs concurrently, each once, with an outcome for each."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import BoundedSemaphore, Event
from typing import TYPE_CHECKING, Any

from fsm_provider.api.errors import (
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmRateLimitedError,
    FsmUnauthorisedError,
    FsmUncertainWriteError,
)
from fsm_provider.api.job_urls import job_url
from fsm_provider.state.task import Task
from fsm_provider.writes.job_outcomes import Job, JobOutcomes, is_complete
from fsm_provider.writes.ledger import Ledger, NothingSentError
from fsm_provider.writes.lookups import FindExisting, find_job
from fsm_provider.writes.outcomes import kept_job
from fsm_provider.writes.write import uncertain_now

if TYPE_CHECKING:
    from fsm_provider.api.payloads import JobRequest
    from fsm_provider.hooks.fsm import FsmHook

logger: logging.Logger = logging.getLogger(__name__)

MAX_UNCERTAIN_IN_A_ROW = 20
"""After this many uncertain outcomes in a row the service counts as down; nothing more is sent."""


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
        self.outcomes: JobOutcomes = JobOutcomes(requests)
        self.passing_error: FsmError | None = None
        """The last error of a job that another attempt might create."""
        self._jobs = self.outcomes.jobs
        self._existing_jobs = existing_jobs or {}
        if unmatched := self._existing_jobs.keys() - self._jobs.keys():
            raise FsmInputError(f"existing_jobs: {', '.join(sorted(unmatched))}: no job has this key")
        self._hook = hook
        self._concurrency = concurrency
        self._fail_fast = fail_fast
        self._find_existing = find_existing
        self._headers = headers or {}
        self._to_send: list[Job] = []
        self._to_look_up = 0
        self._created: set[str] = set()
        self._keys: dict[int | None, str] = {}
        self._may_be_repeated: set[str] = set()
        self._slots = BoundedSemaphore(concurrency)
        self._stopping = Event()
        self._reported = count(1)
        self._counted: set[str] = set()
        self._needs_a_person = False
        self._interrupted = False
        self._uncertain_in_a_row = 0

    def load_outcomes(self, ledger: Ledger) -> None:
        """Set the outcomes that are known before anything is sent; record nothing.

        :raises FsmInputError: if the ledger knows another id for one of the existing jobs, or as
            ``Ledger.expect`` does; jobs that the ledger does not know are then ``unknown``.
        """
        writes = [job.write for job in self._jobs.values()]
        ledger.load(writes)
        self.outcomes.web_url = self._hook.web_url
        for key, job in self._jobs.items():
            known = ledger.get(job.write)
            self.outcomes.update(job, known)
            if key in self._existing_jobs:
                continue
            if known is None or known.repeat or known.under_way:
                self._to_send.append(job)
            elif self._find_existing and job.outcome["outcome"] == "uncertain":
                self._to_send.append(job)
                self._to_look_up += 1
        self._take_existing(ledger)
        try:
            ledger.expect(writes, settled=self._existing_jobs)
            for key, job in self._jobs.items():
                if key not in self._existing_jobs:
                    ledger.refuse_equal_of_another_index(job.write)
        except FsmInputError as error:
            self._stop(str(error))
            raise
        self.outcomes.accept()
        to_send = {job.write.key for job in self._to_send}
        for job in (job for key, job in self._jobs.items() if key not in to_send):
            self._report(job)
            if job.outcome["outcome"] == "uncertain" and self._fail_fast:
                self._stop("on_error is fail_fast")

    def _take_existing(self, ledger: Ledger) -> None:
        self._keys = {job.outcome["jobID"]: key for key, job in self._jobs.items()}
        for key, job_id in self._existing_jobs.items():
            _, write, outcome = self._jobs[key]
            if outcome["jobID"] is None and (other := self._keys.setdefault(job_id, key)) != key:
                raise FsmInputError(f"existing_jobs.{key}: job {job_id} is that of '{other}'")
            if outcome["jobID"] is None and (other := ledger.holder_of(write, job_id)):
                raise FsmInputError(f"existing_jobs.{key}: job {job_id} is that of {other}")
            known = ledger.get(write)
            if known and known.under_way:
                raise FsmInputError(f"existing_jobs.{key}: may not be created yet: {known.error}")
            if outcome["jobID"] not in (None, job_id):
                raise FsmInputError(
                    f"existing_jobs.{key}: job {outcome['jobID']} was created for it, not {job_id}"
                )
            outcome["outcome"], outcome["jobID"], outcome["error"] = "existing", job_id, None

    @property
    def to_send(self) -> int:
        """The number of jobs that are to be created."""
        return len(self._to_send) - self._to_look_up

    def dry_run(self) -> None:
        """Check the connection and log the jobs as a table; send nothing."""
        _ = self._hook.client
        logger.info(
            "Dry run: %s jobs are valid, %s of them to be created, none was sent\n%s",
            *(len(self.outcomes), self.to_send, self.outcomes.table),
        )
        self.outcomes.end_dry_run()

    def run(self, ledger: Ledger) -> None:
        """Record the existing jobs, and send what the ledger does not hold.

        It returns once no request is in flight.
        """
        for key, job_id in self._existing_jobs.items():
            job = self._jobs[key]
            ledger.record(job.write, kept_job(job_id, job.outcome["link"]))
            self.outcomes.update(job, ledger.get(job.write))
        if self._to_send:
            self._send_all(ledger)
        logger.info(self.outcomes.summary)

    def interrupt(self) -> None:
        """Send nothing more; requests in flight are finished and recorded."""
        self._interrupted = True
        self._stop("the task was stopped")

    def count_remaining(self) -> None:
        """Count the outcomes of the jobs that the attempt did not come to."""
        for key in self._jobs.keys() - self._counted:
            self._hook.metrics.incr("writes", outcome=self._jobs[key].outcome["outcome"])

    @property
    def another_attempt_could_help(self) -> bool:
        """Whether a retry of the task could create what is missing."""
        final = {
            job.outcome["outcome"] for key, job in self._jobs.items() if key not in self._may_be_repeated
        }
        if self._fail_fast and final & {"rejected", "uncertain"}:
            return False
        return self._interrupted or self.passing_error is not None

    def fails(self, fail_on: str) -> bool:
        """Return whether the task fails at the end.

        :param fail_on: see ``FsmCreateJobsOperator``.
        """
        return self._interrupted or self._needs_a_person or self.outcomes.fails(fail_on)

    def _send_all(self, ledger: Ledger) -> None:
        self._hook.sleep = partial(ledger.wait, stopping=self._stopping)
        _ = self._hook.client  # created once, before threads share it and before any intent
        waiting = iter(self._to_send)
        # While some are sent, the intents of the next are stored. With a concurrency of 1 they go in order.
        threads = self._concurrency + self._concurrency // 2
        with ThreadPoolExecutor(threads, thread_name_prefix="fsm-job") as pool:
            workers = [
                pool.submit(self._work, waiting, ledger) for _ in range(min(threads, len(self._to_send)))
            ]
            try:
                for worker in workers:
                    worker.result()
            except BaseException:
                self.interrupt()
                raise

    def _work(self, waiting: Iterator[Job], ledger: Ledger) -> None:
        try:
            while not self._stopping.is_set() and (job := next(waiting, None)) is not None:
                self._create(job, ledger)
        except BaseException:
            self.interrupt()
            raise
        finally:
            ledger.store()

    def _create(self, job: Job, ledger: Ledger) -> None:
        request, write, outcome = job
        find = partial(find_job, self._find_existing, request, self._hook) if self._find_existing else None
        failure: FsmError | None = None
        try:
            ledger.run_once(write, partial(self._send, job, ledger), find=find, stopping=self._stopping)
        except NothingSentError:
            return
        except FsmError as error:
            failure = error
            if not error.permanent:
                self.passing_error = error
                self._may_be_repeated.add(write.key)
        finally:
            self.outcomes.update(job, ledger.get(write), failure)
        if failure is None:
            self._uncertain_in_a_row = 0
            if write.key in self._created:
                outcome["outcome"], outcome["by"] = "created", None
        self._report(job)
        if failure is not None:
            self._stop_if_others_would_fail(failure)

    def _send(self, job: Job, ledger: Ledger) -> dict[str, Any]:
        with self._slots:
            if self._stopping.is_set():
                raise NothingSentError
            ledger.renew()
            key_headers = ledger.headers()
            try:
                created = self._hook.client.send_job(job.request, {**self._headers, **key_headers})
                if (other := self._keys.setdefault(created.id, job.write.key)) != job.write.key:
                    raise uncertain_now(
                        job.write, f"the response is of job {created.id}, which is that of '{other}'"
                    )
            except FsmError as error:
                self._uncertain_in_a_row += isinstance(error, FsmUncertainWriteError)
                # Before another job takes this slot.
                may_be_repeated = bool(key_headers or self._find_existing) and error.may_have_written
                self._stop_if_others_would_fail(error, may_be_repeated=may_be_repeated)
                raise
        self._uncertain_in_a_row = 0
        self._created.add(job.write.key)
        return kept_job(created.id, job_url(created.as_json()))

    def _report(self, job: Job) -> None:
        request, _, outcome = job
        progress = f"{next(self._reported)} of {len(self._jobs)}"
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
        self.outcomes.stop_reason = self.outcomes.stop_reason or reason
        self._stopping.set()
