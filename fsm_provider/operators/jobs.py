"""Operators that create jobs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowSkipException

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.job_urls import job_page_url, jobs_url
from fsm_provider.api.validation import (
    parse_choice,
    parse_count,
    parse_counts_by_name,
    parse_flag,
    parse_json,
    refuse_none,
)
from fsm_provider.links.jobs import FsmJobLink, FsmJobsLink
from fsm_provider.operators.base import (
    FsmArgumentError,
    OptionParsers,
    bad_arguments_are_refused,
    fail_in_part,
    is_known,
    permanent_errors_fail_the_task,
)
from fsm_provider.operators.writes import FsmOneWriteOperator, FsmWriteOnceOperator, once_options
from fsm_provider.writes.lookups import FindExisting, find_job
from fsm_provider.writes.lookups import find_by as find_by
from fsm_provider.writes.outcomes import JobOutcome as JobOutcome

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.payloads import JobCreate, JobRequest
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.writes.bulk import BulkJobCreator


KEPT_FIELDS = ("id", "createdOnDateTime", "lastUpdatedOnDateTime", "propertyID", "customerReference", "links")
"""The fields of a created job that the ledger keeps."""


class FsmJobOperator(FsmWriteOnceOperator):
    """Base of the operators that create jobs, each once.

    The task's state store holds an intent before a job is sent, and the job afterwards. If a retry, a cleared
    task or a task whose worker died finds the job, it returns that job and creates nothing; if it finds only
    the intent, it reports that the job may exist. Another property or payload makes another job, unless it
    has the same ``key``. A cleared task fails if its new job may be an earlier one, changed.

    :param once_per: what creates a job once: each ``run`` of the task; or each ``key``, whatever run, DAG or
        Airflow asks, for which the connection has to name a database as ``state_conn_id`` (templated).
    :param if_uncertain: what to do if the job was sent without learning the outcome: ``fail`` without a
        retry, or ``create`` it again, at the risk of two (templated).
    :param if_already_done: what to do if the job was created before the task was cleared: ``reuse`` it, or
        ``create`` another (templated). A retry always reuses it.
    :param find_existing: a function that looks for a job whose creation is uncertain, after the request and
        in later attempts: given the hook and the :class:`~fsm_provider.api.payloads.JobRequest`, it returns
        the id of the job, or None. Without a job, ``if_uncertain`` decides; if it fails, nothing is sent.
        :func:`find_by` makes one for services that list jobs.
    :param headers: further headers of each request (templated).
    """

    template_fields: tuple[str, ...] = (
        *("fsm_conn_id", "once_per", "if_uncertain", "if_already_done", "headers"),
    )
    option_parsers: ClassVar[OptionParsers] = once_options("create")

    def __init__(self, *, find_existing: FindExisting | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.find_existing = find_existing
        if find_existing is not None and not callable(find_existing):
            raise FsmArgumentError(f"find_existing: should be a function, not {find_existing!r}")

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a payload that is a model as a dictionary, as Airflow does not render models."""
        from fsm_provider.api.payloads import JobCreate, JobRequest

        # seen_oids holds what .expand() took from another task, which must not be rendered.
        if isinstance(content, JobCreate | JobRequest) and id(content) not in (seen_oids or ()):
            content = content.model_dump(by_alias=True, exclude_unset=True)
        return super().render_template(content, context, jinja_env, seen_oids)


class FsmCreateJobOperator(FsmJobOperator, FsmOneWriteOperator):
    """Create a job on a property, once: see :class:`FsmJobOperator`.

    The payload is checked when the DAG is parsed, except for fields that hold a template; those are checked
    before anything is sent. If the outcome is unknown (a timeout or reset after sending, a 5xx, an unreadable
    response), the task fails without a retry and reports that the job may exist.

    :param property_id: the property's identifier (templated).
    :param job: the payload: a dictionary under the service's names or in snake_case, or a
        :class:`fsm_provider.api.JobCreate` (templated). Fields that the specification does not show go
        under ``extra_fields``.
    :param key: identifies the job for a retry or a cleared task even if the payload has changed; default:
        property and payload identify it (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the job under the service's own names, as it was when it was created. If an earlier attempt
        created it, what the ledger has of it, which is nobody's name or telephone number: the fields of
        :data:`KEPT_FIELDS`; ``id`` and ``links`` of a job of :class:`FsmCreateJobsOperator`; ``id`` of one
        that ``find_existing`` found. If the connection has ``web_url``, ``links`` has the job's page as
        ``web``.
    :raises FsmInputError: when the DAG is parsed, naming each bad field of the payload.
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
        from fsm_provider.api.payloads import JobRequest, check

        with bad_arguments_are_refused():
            self.options(only_known=True)
            self.check_keys({"key": key})
            check(JobRequest, _known_part(self._request()), "")

    @classmethod
    def argument_with(cls, name: str) -> str | None:
        """Return ``job`` for one of its fields."""
        from fsm_provider.api.payloads import JobRequest
        from fsm_provider.api.validation import place_inside

        return place_inside(JobRequest, (name,))

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the job."""
        from fsm_provider.api.payloads import JobRequest, check
        from fsm_provider.writes.job_outcomes import write_for

        with permanent_errors_fail_the_task():
            request = check(JobRequest, self._request(), "")
            self.check_keys({"key": request.key})
            with self.ledger(context) as ledger:
                result: dict[str, Any] = self.write_once(
                    ledger,
                    write_for(request),
                    partial(self._create, request),
                    keep=_without_people,
                    find=partial(find_job, self.find_existing, request) if self.find_existing else None,
                )
        job = result.copy()
        if web_url := self.hook.web_url:
            page = job_page_url(web_url, job["id"], request.property_id)
            links = job.get("links")
            job["links"] = {**(links if isinstance(links, dict) else {}), "web": page}
        return job

    def _create(self, request: JobRequest, hook: FsmHook, headers: Mapping[str, str]) -> dict[str, Any]:
        job = hook.client.send_job(request, {**(self.headers or {}), **headers}).as_json()
        self.log.info("%s: created job %s", request, job["id"])
        return job

    def _request(self) -> dict[str, Any]:
        return {"property_id": self.property_id, "job": self.job, "key": self.key}


class FsmCreateJobsOperator(FsmJobOperator):
    """Create many jobs, each once: see :class:`FsmJobOperator`.

    All jobs are checked before the first is sent. The outcomes that the ledger knows are loaded before the
    connection is read, so that they are reported however the task ends. Killed at any time and run again, it
    creates the missing jobs. Airflow's retries resend only what another attempt could create; other failures
    fail the task at the end, without a retry. The task ends early, with the rest unsent, if the service is
    unreachable, rejects the token or asks for a long wait, and after twenty uncertain outcomes in a row.

    :param jobs: ``{"property_id": ..., "job": {...}, "key": ...}`` each, as a list, the output of
        another task, or a template that renders JSON, such as ``{{ ... | tojson }}`` (templated). ``job``
        is as in :class:`FsmCreateJobOperator`. ``key`` is optional; inputs with the same key are one
        job, and equal ones without a key are refused. See :func:`~fsm_provider.api.job_rows.jobs_from_rows`.
    :param max_concurrency: concurrent requests, 1 to 64 (templated).
    :param max_jobs: maximum jobs that an attempt may create, without those that exist already; more fail the
        task before the first is sent (templated).
    :param dry_run: check all jobs and log them as a table, with what the ledger knows of each; send nothing
        (templated).
    :param on_error: after a job that is rejected or uncertain, send the others (``fail_at_end``) or nothing
        more (``fail_fast``) (templated).
    :param fail_on: which outcomes fail the task at the end: ``any`` other than created and existing; only an
        ``uncertain`` or unknown one; ``all``, if none is created or existing; or ``none``. First, Airflow's
        retries send what another attempt could create. A task that was stopped fails, and so does one whose
        token is refused, or with 20 uncertain outcomes in a row (templated).
    :param existing_jobs: ids by key of uncertain jobs that a person has found in the service. They are not
        sent; their outcome is ``existing`` (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: one :class:`~fsm_provider.operators.jobs.JobOutcome` for each input, in order, even if the task
        fails.
    :raises FsmInputError: when the DAG is parsed, naming each bad field of each job.
    """

    template_fields: tuple[str, ...] = (
        *FsmJobOperator.template_fields,
        *("jobs", "max_concurrency", "max_jobs", "dry_run_only", "on_error", "fail_on", "existing_jobs"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"jobs": "json"}
    operator_extra_links: tuple[BaseOperatorLink, ...] = (FsmJobsLink(),)
    option_parsers: ClassVar[OptionParsers] = {
        **FsmJobOperator.option_parsers,
        "max_concurrency": partial(parse_count, max_value=64),
        "max_jobs": lambda name, value: None if value is None else parse_count(name, value),
        "dry_run_only": lambda _, value: parse_flag("dry_run", value),
        "on_error": partial(parse_choice, choices=("fail_at_end", "fail_fast")),
        "fail_on": partial(parse_choice, choices=("any", "uncertain", "all", "none")),
        "existing_jobs": lambda name, value: {} if value is None else parse_counts_by_name(name, value),
    }
    _creator: BulkJobCreator | None = None

    def __init__(
        self,
        *,
        jobs: Any,
        max_concurrency: int | str = 4,
        max_jobs: int | str | None = None,
        dry_run: bool | str = False,
        on_error: str = "fail_at_end",
        fail_on: str = "any",
        existing_jobs: dict[str, int] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.jobs = jobs
        self.max_concurrency = max_concurrency
        self.max_jobs = max_jobs
        self.dry_run_only = dry_run  # BaseOperator.dry_run is a method
        self.on_error = on_error
        self.fail_on = fail_on
        self.existing_jobs = existing_jobs
        from fsm_provider.api.payloads import check_job_requests

        with bad_arguments_are_refused():
            self.options(only_known=True)
            if isinstance(jobs, list | tuple):
                check_job_requests(map(_known_part, jobs))

    def execute(self, context: Context) -> list[JobOutcome]:
        """Create the jobs that the ledger does not hold."""
        from fsm_provider.api.payloads import check_job_requests, refuse_equal_jobs
        from fsm_provider.writes.bulk import BulkJobCreator

        with permanent_errors_fail_the_task():
            options = self.options()
            requests = check_job_requests(_parse_jobs(self.jobs))
            refuse_equal_jobs(requests)
            self.check_keys({f"jobs[{index}].key": one.key for index, one in enumerate(requests)})
            self._creator = creator = BulkJobCreator(
                requests,
                hook=self.hook,
                concurrency=options["max_concurrency"],
                fail_fast=options["on_error"] == "fail_fast",
                existing_jobs=options["existing_jobs"],
                find_existing=self.find_existing,
                headers=options["headers"],
            )
            complete = self._attempt(context, creator, options)
        if not complete and not options["dry_run_only"]:
            self._fail_or_go_on(context, creator, options["fail_on"])
        return creator.outcomes.for_inputs

    def _attempt(self, context: Context, creator: BulkJobCreator, options: dict[str, Any]) -> bool:
        """Send what is missing, and return whether nothing is left to do; otherwise push the outcomes."""
        from fsm_provider.state.entries import SupersededError

        ledger, has_news, outcomes = None, True, creator.outcomes
        try:
            with self.ledger(context) as ledger:
                creator.load_outcomes(ledger)
                if url := jobs_url(outcomes.web_url):
                    context["ti"].xcom_push(key=FsmJobsLink.key, value=url)
                if (max_jobs := options["max_jobs"]) is not None and creator.to_send > max_jobs:
                    raise FsmInputError(
                        f"max_jobs: {creator.to_send} jobs are to be created, one attempt may create "
                        f"{max_jobs}. None was sent"
                    )
                if options["dry_run_only"]:
                    creator.dry_run()
                else:
                    creator.run(ledger)
            has_news = not outcomes.complete
        except SupersededError:
            has_news = False  # the other attempt's outcomes stay
            raise
        finally:
            if has_news:
                if ledger:
                    ledger.check_current()
                if not options["dry_run_only"]:
                    creator.count_remaining()
                context["ti"].xcom_push(key="return_value", value=outcomes.for_inputs)
        return outcomes.complete

    def _fail_or_go_on(self, context: Context, creator: BulkJobCreator, fail_on: str) -> None:
        """Fail the task if its outcomes do, or another attempt could help."""
        from fsm_provider.writes.job_outcomes import is_complete

        outcomes, retry = creator.outcomes, creator.another_attempt_could_help
        if (retry and not _is_last(context)) or creator.fails(fail_on):
            failed = [one for one in outcomes.for_inputs if not is_complete(one)]
            fail_in_part(
                outcomes.summary,
                [f"jobs[{one['index']}] {one['outcome']}: {one['error']}" for one in failed],
                all_are_in="the log, or the result in XCom",
                retry=retry,
                passing_error=creator.passing_error,
            )
        self.log.warning("The task goes on, as fail_on is '%s': %s", fail_on, outcomes.summary)

    def on_kill(self) -> None:
        """Send nothing more; requests in flight are finished and recorded before the task ends."""
        if self._creator:
            self._creator.interrupt()


def job_id_or_skip(outcome: JobOutcome) -> int:
    """Return the id of a job that exists; for ``create_jobs.output.map(job_id_or_skip)``, to be expanded.

    :raises AirflowSkipException: if the outcome is another, which skips its map index.
    """
    if outcome["jobID"] is None:
        raise AirflowSkipException(f"{outcome['key']}: {outcome['outcome']}: {outcome['error']}")
    return outcome["jobID"]


def _is_last(context: Context) -> bool:
    ti = context["ti"]
    return bool(ti.try_number > ti.max_tries)


def _without_people(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in KEPT_FIELDS if name in job}


def _known_part(request: Any) -> Any:
    """Replace templates by values that pass the checks."""
    if not isinstance(request, dict):
        return request if is_known(request) else {"property_id": 0, "job": {}}
    known = {name: value for name, value in request.items() if is_known(value)}
    for name, valid in {"property_id": 0, "job": {}}.items():
        if name in request:
            known.setdefault(name, valid)
    if isinstance(request.get("job"), dict):
        known["job"] = {name: value for name, value in request["job"].items() if is_known(value)}
    return known


def _parse_jobs(jobs: Any) -> list[Any]:
    jobs = parse_json("jobs", jobs)
    refuse_none("jobs", jobs)
    if isinstance(jobs, Mapping) or not hasattr(jobs, "__iter__"):
        raise FsmInputError(f"jobs: should be a list of jobs, not {type(jobs).__name__}")
    return list(jobs)
