"""Operators that create jobs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.inputs import read_choice, read_count, read_counts_by_name, read_flag, read_json
from fsm_provider.ledger import Ledger
from fsm_provider.links.jobs import FsmJobLink
from fsm_provider.operators.base import (
    FsmWriteOperator,
    Readers,
    bad_arguments_are_refused,
    fail_in_part,
    is_known,
    permanent_errors_fail_the_task,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.drafts import JobCreate, JobOrder
    from fsm_provider.bulk import BulkCreation, JobOutcome


class FsmJobOperator(FsmWriteOperator):
    """Base of the operators that create jobs, each once (Airflow 3.3 and newer).

    An intent is kept in the task's state store before a job is sent, and the job after it. A retry, a
    cleared task or one whose worker died that finds the job gives that job and creates nothing; one that
    finds the intent alone says that the job may exist. What has another property or draft is another job,
    unless it is given the same ``key``.

    :param if_uncertain: what to do where an earlier try sent the job and did not learn what came of it:
        ``fail``, without a retry, or ``create`` it again, at the risk of two (templated).
    :param if_already_created: what to do where the job was created before the task was cleared: ``reuse``
        it, or ``create`` another (templated). A retry always reuses it.
    """

    template_fields: tuple[str, ...] = ("fsm_conn_id", "if_uncertain", "if_already_created")
    readers: ClassVar[Readers] = {
        "if_uncertain": partial(read_choice, choices=("fail", "create")),
        "if_already_created": partial(read_choice, choices=("reuse", "create")),
    }

    def __init__(
        self, *, if_uncertain: str = "fail", if_already_created: str = "reuse", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.if_uncertain = if_uncertain
        self.if_already_created = if_already_created

    def ledger(self, context: Context) -> Ledger:
        """Open the task's ledger."""
        options = self.options()
        return Ledger.of(
            context,
            repeat_uncertain=options["if_uncertain"] == "create",
            repeat_made=options["if_already_created"] == "create",
        )


class FsmCreateJobOperator(FsmJobOperator):
    """Create a job on a property (4.2), once: see :class:`FsmJobOperator`.

    The draft is checked when the DAG is parsed, but for the fields that hold a template; those are
    checked before anything is sent. A write whose outcome is unknown (a timeout or a reset after
    sending, a 5xx, an answer that cannot be read) fails the task without a retry, and says so: the
    job may exist.

    :param property_id: the property's identifier (templated).
    :param job: the draft, under the service's names or in snake_case (templated): see
        :class:`fsm_provider.api.JobCreate`. Fields that the specification does not show go under
        ``extra_fields``.
    :param key: what makes it the same job for a retry or a cleared task, should the draft have changed;
        default: the property and the draft (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the job under the service's own names (2.2), as it was when it was created.
    :raises FsmInputError: when the DAG is parsed, naming each bad field of the draft.
    """

    template_fields: tuple[str, ...] = (*FsmJobOperator.template_fields, "property_id", "job", "key")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    operator_extra_links: tuple[BaseOperatorLink, ...] = (FsmJobLink(),)

    def __init__(
        self,
        *,
        property_id: int | str,
        job: JobCreate | dict[str, Any],
        key: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.property_id = property_id
        self.job = job
        self.key = key
        from fsm_provider.api.drafts import JobOrder, check

        with bad_arguments_are_refused():
            self.options(only_known=True)
            check(JobOrder, _known_part(self._order()), "")

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the job."""
        from fsm_provider.api.drafts import JobOrder, check
        from fsm_provider.bulk import write_of

        with permanent_errors_fail_the_task():
            order = check(JobOrder, self._order(), "")
            write = write_of(order)
            with self.ledger(context) as ledger:
                ledger.expect([write])
                job: dict[str, Any] = ledger.once(write, lambda: self._create(order))
        return job

    def _create(self, order: JobOrder) -> dict[str, Any]:
        job = self.hook.create_job(order.property_id, order.job).as_json()
        self.log.info("%s: created job %s", order, job["id"])
        return job

    def _order(self) -> dict[str, Any]:
        return {"property_id": self.property_id, "job": self.job, "key": self.key}


class FsmCreateJobsOperator(FsmJobOperator):
    """Create many jobs (4.2), each once: see :class:`FsmJobOperator`.

    All jobs are checked before the first is sent. Killed at any moment and run again, it creates those
    that are missing. What another try could mend is left to Airflow's retries, which send that alone;
    what could not fails the task at the end without one. It ends early, with the rest ``not_created``,
    where the service is not reached, does not accept the token or asks for a long wait, and after twenty
    uncertain outcomes one after the other.

    :param jobs: ``{"property_id": ..., "job": {...}, "key": ...}`` each, as a list, the output of
        another task, or a template that gives JSON, such as ``{{ ... | tojson }}`` (templated). The draft
        is as that of :class:`FsmCreateJobOperator`. ``key`` may be left out; inputs of one key, or of the
        same property and draft without any, are one job.
    :param max_concurrency: requests at once, 1 to 64 (templated).
    :param max_jobs: more in one run are refused before the first is sent (templated).
    :param dry_run: check all, log them as a table, send nothing (templated).
    :param on_error: after a job that was rejected or is uncertain, send the others all the same
        (``fail_at_end``) or nothing more (``fail_fast``) (templated).
    :param existing_jobs: the ids of jobs that somebody has found in the service, by their key: what is
        uncertain and exists. They are not sent, and count as created (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: one :class:`~fsm_provider.bulk.JobOutcome` for each input, in order; also where the task fails.
    :raises FsmInputError: when the DAG is parsed, naming each bad field of each job.
    """

    template_fields: tuple[str, ...] = (
        *FsmJobOperator.template_fields,
        *("jobs", "max_concurrency", "max_jobs", "checks_only", "on_error", "existing_jobs"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"jobs": "json"}
    readers: ClassVar[Readers] = {
        **FsmJobOperator.readers,
        "max_concurrency": partial(read_count, most=64),
        "max_jobs": lambda name, value: None if value is None else read_count(name, value),
        "checks_only": lambda _, value: read_flag("dry_run", value),
        "on_error": partial(read_choice, choices=("fail_at_end", "fail_fast")),
        "existing_jobs": lambda name, value: {} if value is None else read_counts_by_name(name, value),
    }
    _creation: BulkCreation | None = None

    def __init__(
        self,
        *,
        jobs: Any,
        max_concurrency: int | str = 4,
        max_jobs: int | str | None = None,
        dry_run: bool | str = False,
        on_error: str = "fail_at_end",
        existing_jobs: dict[str, int] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.jobs = jobs
        self.max_concurrency = max_concurrency
        self.max_jobs = max_jobs
        self.checks_only = dry_run  # BaseOperator.dry_run is a method
        self.on_error = on_error
        self.existing_jobs = existing_jobs
        from fsm_provider.api.drafts import check_orders

        with bad_arguments_are_refused():
            self.options(only_known=True)
            if isinstance(jobs, list | tuple):
                check_orders(map(_known_part, jobs))

    def execute(self, context: Context) -> list[JobOutcome]:
        """Create the jobs that the ledger does not hold."""
        from fsm_provider.api.drafts import check_orders
        from fsm_provider.bulk import BulkCreation

        with permanent_errors_fail_the_task():
            options = self.options()
            orders = check_orders(_jobs_of(self.jobs))
            self._creation = creation = BulkCreation(
                orders,
                fsm_conn_id=self.fsm_conn_id,
                concurrency=options["max_concurrency"],
                fail_fast=options["on_error"] == "fail_fast",
                existing_jobs=options["existing_jobs"],
            )
            ledger = None
            try:
                _refuse_more_than(options["max_jobs"], orders)
                if options["checks_only"]:
                    return creation.rehearse()
                with self.ledger(context) as ledger:
                    creation.run(ledger)
            finally:
                if not creation.complete:
                    if ledger:
                        ledger.store()  # fails in a try that Airflow has replaced: it has no say any more
                    context["ti"].xcom_push(key="return_value", value=creation.outcomes)
        if not creation.complete:
            failed = [outcome for outcome in creation.outcomes if outcome["outcome"] != "created"]
            fail_in_part(
                creation.summary,
                [f"jobs[{one['index']}] {one['outcome']}: {one['error']}" for one in failed],
                all_are_in="the log, or the result in XCom",
                retry=creation.another_try_could_help,
                passing_error=creation.passing_error,
            )
        return creation.outcomes

    def on_kill(self) -> None:
        """Send nothing more; what is under way is finished and recorded before the task ends."""
        if self._creation:
            self._creation.interrupt()


def _known_part(order: Any) -> Any:
    """Replace what holds a template by what passes the checks."""
    if not isinstance(order, dict):
        return order if is_known(order) else {"property_id": 0, "job": {}}
    known = {name: value for name, value in order.items() if is_known(value)}
    for name, passes in {"property_id": 0, "job": {}}.items():
        if name in order:
            known.setdefault(name, passes)
    if isinstance(order.get("job"), dict):
        known["job"] = {name: value for name, value in order["job"].items() if is_known(value)}
    return known


def _jobs_of(jobs: Any) -> list[Any]:
    jobs = read_json("jobs", jobs)
    if isinstance(jobs, Mapping) or not hasattr(jobs, "__iter__"):
        raise FsmInputError(f"jobs: should be a list of jobs, not {type(jobs).__name__}")
    return list(jobs)


def _refuse_more_than(most: int | None, orders: list[JobOrder]) -> None:
    if most is not None and len(orders) > most:
        raise FsmInputError(
            f"max_jobs: {len(orders)} jobs are given, and one run may create {most}. None was sent"
        )
