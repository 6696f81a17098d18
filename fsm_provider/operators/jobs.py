"""Operators that create jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowSkipException

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import (
    FsmError,
    FsmInputError,
    FsmNotSentError,
    FsmUnauthorisedError,
)
from fsm_provider.api.validation import (
    JsonObject,
    canonical_id,
    check_found,
    parse_choice,
    parse_count,
    parse_flag,
    parse_json,
)
from fsm_provider.links import FsmJobLink, FsmUncertainLink
from fsm_provider.operators.base import (
    OptionParsers,
    bad_arguments_refused,
    fail_in_part,
    is_literal,
    push_xcom,
)
from fsm_provider.operators.writes import STOPPED, FsmWriteOperator
from fsm_provider.state.task import Task
from fsm_provider.writes.attempt import MADE, WriteAttempt
from fsm_provider.writes.outcomes import JobOutcome as JobOutcome
from fsm_provider.writes.outcomes import job_outcome, summary_of
from fsm_provider.writes.outcomes import outcomes_as_text as outcomes_as_text

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.payloads import JobCreate, JobFields, JobRequest
    from fsm_provider.api.request import ApiRequest
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.writes.runner import Runner


FindExisting = Callable[["FsmHook", "JobRequest"], "int | str | None"]
"""Given the hook and the request: the id of the job that is there, or None."""


class FsmJobOperator(FsmWriteOperator):
    """Base of the operators that create jobs.

    :param find_existing: a function that looks for a job whose creation is uncertain, once no
        request of it can be on its way: given the hook and the
        :class:`~fsm_provider.api.payloads.JobRequest`, it returns the id of the job, or None.
        Without a job, ``if_uncertain`` decides; if it fails, nothing is sent.
    """

    find_existing: Any = None

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a payload that is a model as a dictionary, as Airflow does not render models."""
        from fsm_provider.api.payloads import JobCreate, JobRequest

        # seen_oids holds what .expand() took from another task, which must not be rendered.
        if isinstance(content, JobCreate | JobRequest) and id(content) not in (seen_oids or ()):
            content = content.model_dump(by_alias=True, exclude_unset=True)
        return super().render_template(content, context, jinja_env, seen_oids)

    def plan(self, task: Task, asked: JobRequest, request: ApiRequest, place: str) -> WriteAttempt:
        """Return the write that creates a job; without a key, ``place`` identifies it."""
        from fsm_provider.api.payloads import warn_of_empty_templates
        from fsm_provider.writes.ledger import new_entry

        warn_of_empty_templates(asked)
        intended = new_entry(
            task,
            self.hook.settings.service,
            request,
            asked.key or place,
            "job",
            property_id=str(asked.property_id),
            reference=asked.job.customer_reference,
        )
        find = partial(self._find, asked) if self.find_existing else None
        return WriteAttempt(request, intended, asked.key is not None, find)

    def _find(self, asked: JobRequest) -> int | None:
        """Ask the user's function for the id of a job."""
        job_id = self.find_existing(self.hook, asked.model_copy(deep=True))
        return None if job_id is None else parse_count("find_existing", canonical_id(job_id))


class FsmCreateJobOperator(FsmJobOperator):
    """Create a job on a property, once.

    See :class:`~fsm_provider.operators.writes.FsmWriteOperator`. If nobody knows what became of
    the request (a timeout or reset after sending, a 5xx, an unreadable response), the task fails
    without a retry and reports that the job may exist.

    :param property_id: the property's identifier (templated).
    :param job: the payload: a dictionary under the service's names or in snake_case, or a
        :class:`fsm_provider.api.JobCreate` (templated). Other fields go under ``extra_fields``.
    :param key: identifies the job; default: the task in its run (templated). If property or payload
        have changed since it was sent, the task fails, and names what was sent.
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the job under the service's own names; its identifier is the XCom ``id`` as well. If an
        earlier attempt or another task created it: ``id``, ``propertyID``, ``customerReference``
        and its times. If the connection has ``web_url``, ``links`` has the job's page as ``web``.
    :raises FsmInputError: when the DAG is parsed, naming each bad field of the payload without a
        template.
    """

    template_fields: tuple[str, ...] = (
        *FsmJobOperator.template_fields,
        "property_id",
        "job",
        "key",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    operator_extra_links: tuple[BaseOperatorLink, ...] = (FsmJobLink(), FsmUncertainLink())
    takes_a_job: ClassVar[bool] = True
    made: JsonObject | None = None

    def __init__(
        self,
        *,
        property_id: int | str,
        job: JobCreate | JobFields | dict[str, Any],
        key: str | None = None,
        once_per: Literal["run", "key"] | str = "run",
        if_uncertain: Literal["fail", "create"] | str = "fail",
        find_existing: FindExisting | None = None,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            once_per=once_per, if_uncertain=if_uncertain, fsm_conn_id=fsm_conn_id, **kwargs
        )
        self.find_existing = find_existing
        self.property_id = property_id
        self.job = job
        self.key = key
        self._is_keyed = key is not None
        from fsm_provider.api.payloads import JobRequest, parse_payload

        with bad_arguments_refused():
            self.options(literals_only=True)
            self.check_keys({"key": key})
            given = {"property_id": property_id, "job": job, "key": key}
            parse_payload(JobRequest, _literal_part(given), "")

    def perform(self, context: Context) -> JsonObject:
        from fsm_provider.api.payloads import JobRequest, parse_payload
        from fsm_provider.api.settings import job_page_url

        if self._is_keyed:
            check_found("key", self.key)
        given = {"property_id": self.property_id, "job": self.job, "key": self.key}
        asked = parse_payload(JobRequest, given, "")
        self.check_keys({"key": asked.key})
        task = Task.from_context(context, self.task_id)
        job: JsonObject
        write = self.plan(task, asked, asked.request(), task.place)
        [job] = self.write_once(context, task, [write])
        self.made = job
        push_xcom(context, "id", job["id"])
        web_url = self.hook.settings.web_url
        if web_url:
            links = job.get("links")
            page = job_page_url(web_url, job["id"], asked.property_id)
            job["links"] = {**(links if isinstance(links, dict) else {}), "web": page}
        return job


class FsmCreateJobsOperator(FsmJobOperator):
    """Create many jobs, each once: see :class:`~fsm_provider.operators.writes.FsmWriteOperator`.

    All jobs are checked before the first is sent. Airflow's retries resend only what another
    attempt could create. It ends early if the service is unreachable, rejects the token or asks for
    a long wait, and after twenty lost responses in a row.

    :param jobs: ``{"property_id": ..., "job": {...}, "key": ...}`` each, as a list, the output of
        another task, or a template that renders JSON, such as ``{{ ... | tojson }}`` (templated).
        Without a ``key``, property and payload identify a job. Inputs with the same key are one
        job, and equal ones without a key are refused.
    :param max_concurrency: concurrent requests, 1 to 64 (templated).
    :param max_jobs: maximum jobs of an attempt; more fail the task before the first is sent
        (templated).
    :param dry_run: send and record nothing: the outcomes say what the ledger knows (templated).
    :param fail_on: which outcomes fail the task at the end, once Airflow's retries have sent what
        they could: ``any`` other than created and existing; only an ``uncertain`` one; ``all``, if
        none is created or existing; or ``none`` (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: one :class:`~fsm_provider.operators.jobs.JobOutcome` for each input, in order; in XCom,
        too, if outcomes fail the task.
    :raises FsmInputError: when the DAG is parsed, naming each bad field of each job.
    """

    template_fields: tuple[str, ...] = (
        *FsmJobOperator.template_fields,
        "jobs",
        "max_concurrency",
        "max_jobs",
        "dry_run_only",
        "fail_on",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"jobs": "json"}
    option_parsers: ClassVar[OptionParsers] = {
        **FsmJobOperator.option_parsers,
        "max_concurrency": partial(parse_count, max_value=64),
        "max_jobs": lambda name, value: None if value is None else parse_count(name, value),
        "dry_run_only": lambda _, value: parse_flag("dry_run", value),
        "fail_on": partial(parse_choice, choices=("any", "uncertain", "all", "none")),
    }

    def __init__(
        self,
        *,
        jobs: Any,
        max_concurrency: int | str = 4,
        max_jobs: int | str | None = None,
        dry_run: bool | str = False,
        fail_on: Literal["any", "uncertain", "all", "none"] | str = "any",
        once_per: Literal["run", "key"] | str = "run",
        if_uncertain: Literal["fail", "create"] | str = "fail",
        find_existing: FindExisting | None = None,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            once_per=once_per, if_uncertain=if_uncertain, fsm_conn_id=fsm_conn_id, **kwargs
        )
        self.find_existing = find_existing
        self.jobs = jobs
        self.max_concurrency = max_concurrency
        self.max_jobs = max_jobs
        self.dry_run_only = dry_run  # BaseOperator.dry_run is a method
        self.fail_on = fail_on
        from fsm_provider.api.payloads import parse_jobs

        with bad_arguments_refused():
            self.options(literals_only=True)
            if isinstance(jobs, list | tuple):
                parse_jobs(map(_literal_part, jobs))

    def perform(self, context: Context) -> list[JobOutcome]:
        options = self.options()
        is_dry_run = options["dry_run_only"]
        task = Task.from_context(context, self.task_id)
        planned = self._plan_all(task)
        # Inputs with the same key are one write.
        writes = {write.intended.id: write for write in planned}
        with self.runner(context, task, writes.values(), options["max_concurrency"]) as runner:
            if not is_dry_run:
                _check_number(runner, options["max_jobs"])
                runner.run()
        web_url = self.hook.settings.web_url
        outcomes = []
        for index, planned_write in enumerate(planned):
            write = writes[planned_write.intended.id]
            error = runner.error_of(write)
            outcomes.append(job_outcome(index, write, error, web_url=web_url, dry_run=is_dry_run))
        summary = summary_of(outcomes, runner.stop_reason)
        self.log.info("%s%s", "Dry run: " if is_dry_run else "", summary)
        failed = [outcome for outcome in outcomes if outcome["outcome"] not in MADE]
        if failed and not is_dry_run:
            push_xcom(context, "return_value", outcomes)
            is_failure = _is_failure(options["fail_on"], outcomes)
            self._fail_or_go_on(context, runner, failed, summary, is_failure)
        return outcomes

    def _plan_all(self, task: Task) -> list[WriteAttempt]:
        """Check all jobs, and plan a write for each."""
        from fsm_provider.api.payloads import parse_jobs

        jobs = parse_json("jobs", self.jobs)
        check_found("jobs", jobs)
        if isinstance(jobs, Mapping) or not hasattr(jobs, "__iter__"):
            raise FsmInputError(f"jobs: should be a list of jobs, not {type(jobs).__name__}")
        checked = parse_jobs(jobs, refuse_equal=True)
        keys = {f"jobs[{index}].key": asked.key for index, (asked, _) in enumerate(checked)}
        self.check_keys(keys)
        writes = []
        for asked, request in checked:
            place = digest_for([task.place, request.path, asked.job.body()])
            writes.append(self.plan(task, asked, request, place))
        return writes

    def _fail_or_go_on(
        self,
        context: Context,
        runner: Runner,
        failed: list[JobOutcome],
        summary: str,
        is_failure: bool,
    ) -> None:
        """Fail the task, unless it may pass with the outcomes that failed.

        It fails if ``fail_on`` says so, if Airflow can retry it, or if sending was stopped, unless
        only because the service was not reached or limits the rate.
        """
        from fsm_provider.writes.runner import UNAVAILABLE

        transient_error = _first_transient_error(runner)
        was_killed = runner.stop_reason == STOPPED
        retry_could_help = was_killed or transient_error is not None
        has_attempts = "ti" in context and context["ti"].try_number <= context["ti"].max_tries
        may_retry = retry_could_help and has_attempts
        was_stopped = runner.stop_reason and not isinstance(transient_error, UNAVAILABLE)
        if not (is_failure or may_retry or was_killed or was_stopped):
            self.log.warning("The task goes on, as fail_on is '%s': %s", self.fail_on, summary)
            return
        lines = []
        for outcome in failed:
            name = outcome["customerReference"] or outcome["key"]
            lines.append(
                f"jobs[{outcome['index']}] ({name}) {outcome['outcome']}: {outcome['error']}"
            )
        fail_in_part(
            summary,
            lines,
            all_are_in="the log or XCom",
            retry=retry_could_help,
            transient_error=transient_error,
        )


def _check_number(runner: Runner, max_jobs: int | None) -> None:
    """Refuse to create more jobs than ``max_jobs`` allows."""
    if max_jobs is None:
        return
    number = len(runner.writes_to_send())
    if number > max_jobs:
        raise FsmInputError(
            f"max_jobs: {number} jobs are to be created, and one attempt may create {max_jobs}: "
            "none was sent"
        )


def _is_failure(fail_on: str, outcomes: Sequence[JobOutcome]) -> bool:
    """Return whether outcomes, some of which failed, fail the task by ``fail_on``."""
    kinds = {outcome["outcome"] for outcome in outcomes}
    if fail_on == "uncertain":
        return "uncertain" in kinds
    if fail_on == "all":
        return not kinds & MADE
    return fail_on == "any"


def _first_transient_error(runner: Runner) -> FsmError | None:
    """Return the first transient error; None if the token was refused."""
    errors = [write.error for write in runner.writes.values() if write.error is not None]
    if any(isinstance(error, FsmUnauthorisedError) for error in errors):
        return None
    for error in errors:
        if not error.permanent and not isinstance(error, FsmNotSentError):
            return error
    return None


def job_id_or_skip(outcome: JobOutcome) -> int:
    """Return the id of a job that exists, for ``create_jobs.output.map(job_id_or_skip)``.

    Another task can be expanded over that.

    :raises AirflowSkipException: if the outcome is another, which skips its map index.
    """
    if outcome["jobID"] is None:
        raise AirflowSkipException(f"{outcome['key']}: {outcome['outcome']}: {outcome['error']}")
    return outcome["jobID"]


def _literal_part(request: Any) -> Any:
    """Return a job without its templates; a property or payload that is one gets a valid value."""
    if not isinstance(request, dict):
        return request if is_literal(request) else {"property_id": 0, "job": {}}
    valid: JsonObject = {"property_id": 0, "job": {}}
    literal = {name: value for name, value in valid.items() if name in request}
    literal.update(_literals_of(request))
    job = request.get("job")
    if isinstance(job, dict):
        literal["job"] = _literals_of(job)
    return literal


def _literals_of(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if is_literal(value)}
