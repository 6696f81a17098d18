"""Operators that create jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowSkipException

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import FsmInputError, FsmNotSentError, FsmUnauthorisedError
from fsm_provider.api.validation import (
    parse_choice,
    parse_count,
    parse_flag,
    parse_json,
    refuse_none,
)
from fsm_provider.links import FsmJobLink, FsmUncertainLink, job_page_url
from fsm_provider.operators.base import (
    OptionParsers,
    bad_arguments_refused,
    fail_in_part,
    is_literal,
)
from fsm_provider.operators.writes import STOPPED, FsmWriteOperator
from fsm_provider.state.task import Task
from fsm_provider.writes.outcomes import MADE, job_outcome, summary_of
from fsm_provider.writes.outcomes import JobOutcome as JobOutcome

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.payloads import JobCreate, JobFields, JobRequest
    from fsm_provider.api.request import TimeLimit
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.writes.ledger import WriteAttempt
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

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a payload that is a model as a dictionary, as Airflow does not render models."""
        from fsm_provider.api.payloads import JobCreate, JobRequest

        # seen_oids holds what .expand() took from another task, which must not be rendered.
        if isinstance(content, JobCreate | JobRequest) and id(content) not in (seen_oids or ()):
            content = content.model_dump(by_alias=True, exclude_unset=True)
        return super().render_template(content, context, jinja_env, seen_oids)

    def plan(self, task: Task, request: JobRequest, place: str) -> WriteAttempt:
        from fsm_provider.writes.ledger import WriteAttempt, planned

        what, content, key = f"POST {request.path}", request.job.body(), request.key or place
        about = {
            "property_id": str(request.property_id),
            "reference": request.job.customer_reference,
        }
        row = planned(task, self.hook.settings.service, what, content, key, "job", **about)
        return WriteAttempt(row, request.key is not None, request)

    def send_write(
        self, write: WriteAttempt, headers: dict[str, str], limit: TimeLimit
    ) -> dict[str, Any]:
        asked: JobRequest = write.payload
        create_job = self.hook.client.create_job
        return create_job(asked.property_id, asked.job, headers=headers, limit=limit).as_json()


class FsmCreateJobOperator(FsmJobOperator):
    """Create a job on a property, once: see
    :class:`~fsm_provider.operators.writes.FsmWriteOperator`.

    If nobody knows what became of the request (a timeout or reset after sending, a 5xx, an
    unreadable response), the task fails without a retry and reports that the job may exist.

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
    made: dict[str, Any] | None = None

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
        from fsm_provider.api.payloads import JobRequest, check

        with bad_arguments_refused():
            self.options(literals_only=True)
            self.check_keys({"key": key})
            check(
                JobRequest, _literal_part({"property_id": property_id, "job": job, "key": key}), ""
            )

    def perform(self, context: Context) -> dict[str, Any]:
        from fsm_provider.api.payloads import JobRequest, check

        given = {"property_id": self.property_id, "job": self.job, "key": self.key}
        request = check(JobRequest, given, "")
        self.check_keys({"key": request.key})
        task = Task.from_context(context, self.task_id)
        writes = [self.plan(task, request, task.place)]
        job: dict[str, Any] = self.write_once(context, task, writes)[0]
        self.made = job
        if "ti" in context:
            context["ti"].xcom_push(key="id", value=job["id"])
        if web_url := self.hook.settings.web_url:
            page = job_page_url(web_url, job["id"], request.property_id)
            links = job.get("links")
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
        *(
            *FsmJobOperator.template_fields,
            "jobs",
            "max_concurrency",
            "max_jobs",
            "dry_run_only",
            "fail_on",
        ),
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
        from fsm_provider.api.payloads import check_job_requests

        with bad_arguments_refused():
            self.options(literals_only=True)
            if isinstance(jobs, list | tuple):
                check_job_requests(map(_literal_part, jobs))

    def perform(self, context: Context) -> list[JobOutcome]:
        from fsm_provider.api.payloads import check_job_requests

        options, task = self.options(), Task.from_context(context, self.task_id)
        jobs = parse_json("jobs", self.jobs)
        refuse_none("jobs", jobs)
        if isinstance(jobs, Mapping) or not hasattr(jobs, "__iter__"):
            raise FsmInputError(f"jobs: should be a list of jobs, not {type(jobs).__name__}")
        requests = check_job_requests(jobs, refuse_equal=True)
        self.check_keys({f"jobs[{index}].key": one.key for index, one in enumerate(requests)})
        inputs = [self.plan(task, one, digest_for([task.place, *one.content])) for one in requests]
        writes = {one.planned.id: one for one in inputs}
        is_dry_run, max_jobs = options["dry_run_only"], options["max_jobs"]
        threads, web_url = options["max_concurrency"], self.hook.settings.web_url
        with self.runner(context, task, writes.values(), threads) as runner:
            if not is_dry_run:
                to_create = sum(
                    one.row.state == "free" or one.may_resend for one in writes.values()
                )
                if max_jobs is not None and to_create > max_jobs:
                    allowed = f"one attempt may create {max_jobs}: none was sent"
                    raise FsmInputError(
                        f"max_jobs: {to_create} jobs are to be created, and {allowed}"
                    )
                runner.run()
        outcomes = [
            job_outcome(index, one, runner.error_of(one), web_url=web_url, dry_run=is_dry_run)
            for index, one in enumerate(writes[one.planned.id] for one in inputs)
        ]
        summary = summary_of(outcomes, runner.stop_reason)
        self.log.info("%s%s", "Dry run: " * is_dry_run, summary)
        failed = [one for one in outcomes if one["outcome"] not in MADE]
        if failed and not is_dry_run:
            if "ti" in context:
                context["ti"].xcom_push(key="return_value", value=outcomes)
            has = {one["outcome"] for one in outcomes}
            fails = {
                "any": True,
                "uncertain": "uncertain" in has,
                "all": not has & MADE,
                "none": False,
            }
            is_failure = fails[options["fail_on"]]
            self._fail_or_go_on(context, runner, failed, summary, is_failure=is_failure)
        return outcomes

    def _fail_or_go_on(
        self,
        context: Context,
        runner: Runner,
        failed: list[JobOutcome],
        summary: str,
        *,
        is_failure: bool,
    ) -> None:
        """Fail the task if its outcomes are a failure, a person has to act, or another attempt
        could help.
        """
        from fsm_provider.writes.runner import TRANSIENT

        errors = [one.error for one in runner.writes.values() if one.error]
        errors = [one for one in errors if not isinstance(one, FsmNotSentError)]
        is_refused = any(isinstance(error, FsmUnauthorisedError) for error in errors)
        passing = None if is_refused else next((one for one in errors if not one.permanent), None)
        is_stopped = runner.stop_reason == STOPPED
        retry = passing is not None or is_stopped
        is_last = "ti" not in context or context["ti"].try_number > context["ti"].max_tries
        needs_a_person = is_stopped or (runner.stop_reason and not isinstance(passing, TRANSIENT))
        if (retry and not is_last) or needs_a_person or is_failure:
            text = "jobs[{index}] ({name}) {outcome}: {error}"
            lines = [
                text.format(**one, name=one["customerReference"] or one["key"]) for one in failed
            ]
            fail_in_part(
                summary, lines, all_are_in="the log or XCom", retry=retry, passing_error=passing
            )
        self.log.warning("The task goes on, as fail_on is '%s': %s", self.fail_on, summary)


def job_id_or_skip(outcome: JobOutcome) -> int:
    """Return the id of a job that exists; for ``create_jobs.output.map(job_id_or_skip)``, to be
    expanded.

    :raises AirflowSkipException: if the outcome is another, which skips its map index.
    """
    if outcome["jobID"] is None:
        raise AirflowSkipException(f"{outcome['key']}: {outcome['outcome']}: {outcome['error']}")
    return outcome["jobID"]


def _literal_part(request: Any) -> Any:
    """Replace templates by values that pass the checks."""
    valid: dict[str, Any] = {"property_id": 0, "job": {}}
    if not isinstance(request, dict):
        return request if is_literal(request) else valid
    known = {name: value for name, value in request.items() if is_literal(value)}
    known = {name: value for name, value in valid.items() if name in request} | known
    if isinstance(request.get("job"), dict):
        known["job"] = {name: value for name, value in request["job"].items() if is_literal(value)}
    return known
