"""Many jobs, some at once, each created once, with an outcome for each."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import BoundedSemaphore, Event
from typing import TYPE_CHECKING, Literal, TypedDict

from fsm_provider.api.endpoints import CREATE_JOB
from fsm_provider.api.errors import (
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmRateLimitedError,
    FsmUnauthorisedError,
    FsmUncertainWriteError,
)
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.ledger import Ledger, NothingSentError, Write
from fsm_provider.links.jobs import address_of

if TYPE_CHECKING:
    from fsm_provider.api.drafts import JobOrder

logger: logging.Logger = logging.getLogger(__name__)

UNCERTAIN_IN_A_ROW = 20
"""So many uncertain outcomes one after the other are an outage: no further job is made uncertain."""


class JobOutcome(TypedDict):
    """What became of one input.

    ``rejected``: the service refused it, and would again. ``uncertain``: it may exist or not.
    ``not_created``: it does not exist, and another try may create it. ``valid``: of a dry run.
    """

    index: int
    key: str
    propertyID: int | str
    customerReference: str | None
    outcome: Literal["created", "rejected", "uncertain", "not_created", "valid"]
    jobID: int | None
    link: str | None
    error: str | None


def write_of(order: JobOrder) -> Write:
    """Describe the creation of a job to the ledger."""
    return Write(CREATE_JOB.method, order.path, order.job.body(), order.subject, order.key)


def _not_created(index: int, order: JobOrder, key: str) -> JobOutcome:
    return JobOutcome(
        index=index,
        key=key,
        propertyID=order.property_id,
        customerReference=order.job.customer_reference,
        outcome="not_created",
        jobID=None,
        link=None,
        error=None,
    )


class BulkCreation:
    """Creates jobs through a ledger.

    It stops sending where more could not help: the service is not reached, asks to wait longer than the
    client does, or does not accept the token; and where outcome after outcome is uncertain.

    :param concurrency: requests at once.
    :param fail_fast: stop sending after the first job that was rejected or is uncertain.
    :param existing_jobs: the ids of jobs that somebody has found in the service, by key; they are not sent.
    :raises FsmInputError: for one of them that is the key of no order.
    """

    def __init__(
        self,
        orders: list[JobOrder],
        *,
        fsm_conn_id: str,
        concurrency: int,
        fail_fast: bool,
        existing_jobs: Mapping[str, int] | None = None,
    ) -> None:
        self._orders = orders
        self._writes = [write_of(order) for order in orders]
        self._outcomes = [
            _not_created(index, order, write.key)
            for index, (order, write) in enumerate(zip(orders, self._writes, strict=True))
        ]
        self._by_key: dict[str, JobOutcome] = {}
        for outcome in self._outcomes:
            self._by_key.setdefault(outcome["key"], outcome)
        self._existing_jobs = existing_jobs or {}
        if strangers := self._existing_jobs.keys() - self._by_key.keys():
            raise FsmInputError(f"existing_jobs: {', '.join(sorted(strangers))}: no job has this key")
        self._waiting = iter([outcome["index"] for outcome in self._by_key.values()])
        self._hook = FsmHook(fsm_conn_id, sleep=self._sleep)
        self._concurrency = concurrency
        self._fail_fast = fail_fast
        self._slots = BoundedSemaphore(concurrency)
        self._stopping = Event()
        self._settled = count(1)
        self._stop_reason = ""
        self._interrupted = False
        self._uncertain_in_a_row = 0
        self.passing_error: FsmError | None = None
        """The last error of a job that another try might create."""

    def run(self, ledger: Ledger) -> None:
        """Send what the ledger does not hold; returns when no request is under way any more."""
        ledger.expect(self._writes)
        _ = self._hook.client  # made once, before threads share it
        # While some are sent, the intents of the next are stored; one at a time, they go in order.
        threads = self._concurrency + self._concurrency // 2
        with ThreadPoolExecutor(threads, thread_name_prefix="fsm-job") as pool:
            workers = [pool.submit(self._work, ledger) for _ in range(min(threads, len(self._by_key)))]
            try:
                for worker in workers:
                    worker.result()
            except BaseException:
                self.interrupt()
                raise
        logger.info(self.summary)

    def rehearse(self) -> list[JobOutcome]:
        """Send nothing: check the connection, log the jobs as a table and give the outcomes."""
        _ = self._hook.client
        rows = [
            (str(index), str(order.property_id), json.dumps(order.job.body(), ensure_ascii=False))
            for index, order in enumerate(self._orders)
        ]
        head = ("job", "property", "draft")
        widths = [max(len(row[column]) for row in (head, *rows)) for column in (0, 1)]
        table = [f"{job:>{widths[0]}}  {place:<{widths[1]}}  {draft}" for job, place, draft in (head, *rows)]
        logger.info("Dry run: %s jobs are valid, none was sent\n%s", len(rows), "\n".join(table))
        for outcome in self._by_key.values():
            outcome["outcome"] = "valid"
        return self.outcomes

    def interrupt(self) -> None:
        """Send nothing more; what is under way is finished and recorded."""
        self._interrupted = True
        self._stop("the task was stopped")

    @property
    def outcomes(self) -> list[JobOutcome]:
        """One for each input, in its order."""
        return [self._outcome_of(given) for given in self._outcomes]

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return all(outcome["outcome"] in ("created", "valid") for outcome in self._by_key.values())

    @property
    def another_try_could_help(self) -> bool:
        """Whether to leave what is missing to a retry of the task."""
        final = {"rejected", "uncertain"} & {outcome["outcome"] for outcome in self._by_key.values()}
        if self._fail_fast and final:
            return False
        return self._interrupted or self.passing_error is not None

    @property
    def summary(self) -> str:
        """How many inputs came to what, in one line."""
        counts = Counter(outcome["outcome"] for outcome in self.outcomes)
        parts = [f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.items()]
        stopped = f" (nothing more was sent: {self._stop_reason})" if self._stop_reason else ""
        return f"{len(self._outcomes)} jobs: {', '.join(parts) or 'nothing to do'}{stopped}"

    def _outcome_of(self, given: JobOutcome) -> JobOutcome:
        settled = self._by_key[given["key"]].copy()
        settled["index"] = given["index"]
        if settled["outcome"] == "not_created" and not settled["error"]:
            settled["error"] = f"not sent: {self._stop_reason or 'the task failed before'}"
        return settled

    def _work(self, ledger: Ledger) -> None:
        try:
            while not self._stopping.is_set() and (index := next(self._waiting, None)) is not None:
                self._settle(self._orders[index], self._writes[index], ledger)
        except BaseException:
            self.interrupt()
            raise
        finally:
            ledger.store()

    def _settle(self, order: JobOrder, write: Write, ledger: Ledger) -> None:
        outcome = self._by_key[write.key]
        try:
            if write.key in self._existing_jobs:
                ledger.settle(write, {"jobID": self._existing_jobs[write.key], "link": None})
            made = ledger.once(write, lambda: self._send(order))
            outcome["outcome"], outcome["jobID"], outcome["link"] = "created", made["jobID"], made["link"]
            self._report(order, f"job {made['jobID']}")
        except NothingSentError:
            return
        except FsmError as error:
            outcome["outcome"], outcome["error"] = _outcome_after(error), str(error)
            if not error.permanent:
                self.passing_error = error
            self._report(order, f"{outcome['outcome']}: {error}", logging.ERROR)
            self._stop_where_more_cannot_help(error)

    def _send(self, order: JobOrder) -> dict[str, int | str | None]:
        with self._slots:
            if self._stopping.is_set():
                raise NothingSentError
            try:
                job = self._hook.create_job(order.property_id, order.job)
            except FsmError as error:
                self._uncertain_in_a_row += isinstance(error, FsmUncertainWriteError)
                self._stop_where_more_cannot_help(error)  # before another has this slot
                raise
        self._uncertain_in_a_row = 0
        return {"jobID": job.id, "link": address_of(job.as_json())}

    def _report(self, order: JobOrder, what: str, level: int = logging.INFO) -> None:
        logger.log(level, "%s of %s: %s: %s", next(self._settled), len(self._by_key), order, what)

    def _stop_where_more_cannot_help(self, error: FsmError) -> None:
        if self._stopping.is_set():
            return
        if isinstance(error, FsmUnauthorisedError | FsmConnectionError | FsmRateLimitedError):
            reason = "this error would meet every further job"
        elif self._uncertain_in_a_row >= UNCERTAIN_IN_A_ROW:
            reason = f"{UNCERTAIN_IN_A_ROW} uncertain outcomes one after the other are an outage"
        elif self._fail_fast and error.permanent:
            reason = "on_error is fail_fast"
        else:
            return
        self._stop(reason)

    def _stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason
        self._stopping.set()

    def _sleep(self, seconds: float) -> None:
        """Wait between two attempts at a request, but not beyond a stop."""
        if self._stopping.wait(seconds):
            raise NothingSentError


def _outcome_after(error: FsmError) -> Literal["rejected", "uncertain", "not_created"]:
    if isinstance(error, FsmUncertainWriteError):
        return "uncertain"
    return "rejected" if error.permanent else "not_created"
