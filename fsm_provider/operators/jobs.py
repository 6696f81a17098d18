"""Operators that create jobs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowSkipException

from fsm_provider.api.errors import FsmError, FsmInputError, FsmResponseError, FsmUnauthorisedError
from fsm_provider.api.validation import (
    parse_choice,
    parse_count,
    parse_flag,
    parse_json,
    parse_path,
    refuse_none,
    spelled,
)
from fsm_provider.links.jobs import FsmJobLink, FsmJobsLink, job_page_url, jobs_url
from fsm_provider.operators.base import (
    FsmArgumentError,
    OptionParsers,
    bad_arguments_are_refused,
    fail_in_part,
    is_known,
    permanent_errors_fail_the_task,
)
from fsm_provider.operators.writes import STOPPED, FsmWriteOperator
from fsm_provider.writes.outcomes import JobOutcome as JobOutcome

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.payloads import JobCreate, JobFields, JobRequest
    from fsm_provider.api.retry import TimeLimit
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.writes.ledger import Row, Write
    from fsm_provider.writes.runner import Pending, Runner

FindExisting = Callable[["FsmHook", "JobRequest"], "int | str | None"]
"""Given the hook and the request: the id of the job that is there, or None."""


def find_by(
    path: str, match: str = "customerReference", params: Mapping[str, Any] | None = None
) -> FindExisting:
    """Return a function that finds a job in a listing, for services that list jobs.

    A job is found if its field ``match`` has the value that was sent, without regard to capitals and blanks
    around it, and its property, if it names one, is the property.

    :param path: of the listing; ``{property_id}`` is replaced.
    :param match: a field of the request and of the records, under the service's name.
    :param params: query parameters, such as a filter on the time.
    """

    def find(hook: FsmHook, request: JobRequest) -> int | str | None:
        if (wanted := request.job.body().get(match)) is None:
            return None
        place, text = spelled(request.property_id), str(wanted).strip().casefold()
        listing = hook.client.pages(parse_path(path.format(property_id=place)), params=params)
        found = {
            record["id"]
            for page in listing
            for record in page.data
            if str(record.get(match)).strip().casefold() == text
            and (record.get("propertyID") in (None, "") or spelled(record["propertyID"]) == place)
        }
        if len(found) > 1:
            raise FsmInputError(f"{match}: {len(found)} jobs have {wanted!r}: {sorted(found)}")
        if not found and listing.mismatch:
            raise FsmResponseError(f"{match}: no job has {wanted!r}, but {listing.mismatch}")
        return found.pop() if found else None

    return find


class FsmJobOperator(FsmWriteOperator):
    """Base of the operators that create jobs, with the arguments of its base.

    :param find_existing: a function that looks for a job whose creation is uncertain, once no request of it
        can be on its way: given the hook and the :class:`~fsm_provider.api.payloads.JobRequest`, it returns
        the id of the job, or None. Without a job, ``if_uncertain`` decides; if it fails, nothing is sent.
        :func:`find_by` makes one for services that list jobs.
    """

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

    def send_job(self, write: Write, headers: Mapping[str, str], limit: TimeLimit) -> dict[str, Any]:
        return self.hook.client.send_job(write.payload, {**(self.headers or {}), **headers}, limit).as_json()

    def find_job(self, write: Write) -> int | None:
        job_id = self.find_existing(self.hook, write.payload) if self.find_existing else None
        return None if job_id is None else parse_count("find_existing", job_id)


class FsmCreateJobOperator(FsmJobOperator):
    """Create a job on a property, once: see :class:`~fsm_provider.operators.writes.FsmWriteOperator`.

    The payload is checked when the DAG is parsed, except for fields that hold a template; those are checked
    before anything is sent. If nobody knows what became of the request (a timeout or reset after sending, a
    5xx, an unreadable response), the task fails without a retry and reports that the job may exist.

    :param property_id: the property's identifier (templated).
    :param job: the payload: a dictionary under the service's names or in snake_case, or a
        :class:`fsm_provider.api.JobCreate` (templated). Fields that the specification does not show go
        under ``extra_fields``.
    :param key: identifies the job; default: the task in its run (templated). A retry or a cleared task whose
        property or payload has changed since the job was sent fails, and names what was sent.
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the job under the service's own names, as it was when it was created; its identifier is the XCom
        ``id`` as well, for ``create.output["id"]``. If an earlier attempt or
        another task created it, what the ledger has of it: ``id``, ``propertyID``, ``customerReference`` and
        its times. If the connection has ``web_url``, ``links`` has the job's page as ``web``.
    :raises FsmInputError: when the DAG is parsed, naming each bad field of the payload.
    """

    template_fields: tuple[str, ...] = (*FsmJobOperator.template_fields, "property_id", "job", "key")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    operator_extra_links: tuple[BaseOperatorLink, ...] = (FsmJobLink(),)

    def __init__(
        self,
        *,
        property_id: int | str,
        job: JobCreate | JobFields | dict[str, Any],
        key: str | None = None,
        once_per: Literal["run", "key"] | str = "run",
        if_uncertain: Literal["fail", "create"] | str = "fail",
        find_existing: FindExisting | None = None,
        headers: dict[str, str] | None = None,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            once_per=once_per,
            if_uncertain=if_uncertain,
            find_existing=find_existing,
            headers=headers,
            fsm_conn_id=fsm_conn_id,
            **kwargs,
        )
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
        from fsm_provider.api.payloads import JOB_FIELDS

        return "job" if name in JOB_FIELDS else None

    def execute(self, context: Context) -> dict[str, Any]:
        from fsm_provider.api.payloads import JobRequest, check

        with permanent_errors_fail_the_task():
            request = check(JobRequest, self._request(), "")
            self.check_keys({"key": request.key})
            write = _write_for(request, self.place_in_run(context))
            find = self.find_job if self.find_existing else None
            job: dict[str, Any]
            (job,) = self.write_once(context, [write], self.send_job, find=find, existing=_job_of)
            self.log.info("Job %s: %s", job["id"], request)
            if "ti" in context:
                context["ti"].xcom_push(key="id", value=job["id"])
            if web_url := self.hook.settings.web_url:
                page = job_page_url(web_url, job["id"], request.property_id)
                links = job.get("links")
                job = {**job, "links": {**(links if isinstance(links, dict) else {}), "web": page}}
            return job

    def _request(self) -> dict[str, Any]:
        return {"property_id": self.property_id, "job": self.job, "key": self.key}


class FsmCreateJobsOperator(FsmJobOperator):
    """Create many jobs, each once: see :class:`~fsm_provider.operators.writes.FsmWriteOperator`.

    All jobs are checked before the first is sent. Killed at any time and run again, it creates the missing
    jobs. Airflow's retries resend only what another attempt could create; other failures fail the task at the
    end, without a retry. The task ends early, with the rest unsent, if the service is unreachable, rejects
    the token or asks for a long wait, and after twenty lost responses in a row.

    :param jobs: ``{"property_id": ..., "job": {...}, "key": ...}`` each, as a list, the output of
        another task, or a template that renders JSON, such as ``{{ ... | tojson }}`` (templated). ``job``
        is as in :class:`FsmCreateJobOperator`. Without a ``key``, property and payload identify a job. Inputs
        with the same key are one job, and equal ones without a key are refused. See
        :func:`~fsm_provider.api.job_rows.jobs_from_rows`.
    :param max_concurrency: concurrent requests, 1 to 64 (templated).
    :param max_jobs: maximum jobs that an attempt may create, without those that exist already; more fail the
        task before the first is sent (templated).
    :param dry_run: check all jobs and log them as a table, with what the ledger knows of each; send nothing
        (templated).
    :param fail_on: which outcomes fail the task at the end: ``any`` other than created and existing; only an
        ``uncertain`` or unknown one; ``all``, if none is created or existing; or ``none``. First, Airflow's
        retries send what another attempt could create. A task that was stopped fails, and so does one whose
        token is refused, or with twenty lost responses in a row (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: one :class:`~fsm_provider.operators.jobs.JobOutcome` for each input, in order, even if the task
        fails later than at its input or at opening the ledger.
    :raises FsmInputError: when the DAG is parsed, naming each bad field of each job.
    """

    template_fields: tuple[str, ...] = (
        *(*FsmJobOperator.template_fields, "jobs", "max_concurrency", "max_jobs", "dry_run_only", "fail_on"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"jobs": "json"}
    operator_extra_links: tuple[BaseOperatorLink, ...] = (FsmJobsLink(),)
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
        headers: dict[str, str] | None = None,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            once_per=once_per,
            if_uncertain=if_uncertain,
            find_existing=find_existing,
            headers=headers,
            fsm_conn_id=fsm_conn_id,
            **kwargs,
        )
        self.jobs = jobs
        self.max_concurrency = max_concurrency
        self.max_jobs = max_jobs
        self.dry_run_only = dry_run  # BaseOperator.dry_run is a method
        self.fail_on = fail_on
        from fsm_provider.api.payloads import check_job_requests

        with bad_arguments_are_refused():
            self.options(only_known=True)
            if isinstance(jobs, list | tuple):
                check_job_requests(map(_known_part, jobs))

    def execute(self, context: Context) -> list[JobOutcome]:
        from fsm_provider.api.payloads import check_job_requests, refuse_equal_jobs
        from fsm_provider.state.task import digest_for

        with permanent_errors_fail_the_task():
            options = self.options()
            requests = check_job_requests(_parse_jobs(self.jobs))
            refuse_equal_jobs(requests)
            self.check_keys({f"jobs[{index}].key": one.key for index, one in enumerate(requests)})
            place = self.place_in_run(context)
            writes = [_write_for(one, digest_for([place, *one.content], 32)) for one in requests]
            find = self.find_job if self.find_existing else None
            threads = options["max_concurrency"]
            with self.runner(context, self.send_job, find=find, concurrency=threads) as runner:
                return self._run(context, runner, writes, options)

    def _run(
        self, context: Context, runner: Runner, writes: list[Write], options: dict[str, Any]
    ) -> list[JobOutcome]:
        """Send what is missing; if that is not all, push the outcomes, however it ends."""
        from fsm_provider.writes.outcomes import MADE, What, job_outcomes, summary_of

        jobs, is_dry_run = {one.id: one for one in writes}, options["dry_run_only"]
        web_url = self.hook.settings.web_url
        unsent: What = "unknown"
        is_current = True
        try:
            runner.load(jobs.values())
            unsent = "not_created"
            to_create = sum(one.row.state == "free" for one in runner.pending.values())
            if (max_jobs := options["max_jobs"]) is not None and to_create > max_jobs:
                raise FsmInputError(
                    f"max_jobs: {to_create} jobs are to be created, and one attempt may create {max_jobs}: "
                    "none was sent"
                )
            if is_dry_run:
                self.log.info("Dry run: nothing was sent\n%s", _table(runner))
                return job_outcomes(writes, runner, unsent="valid", web_url=web_url)
            if url := jobs_url(web_url):
                context["ti"].xcom_push(key=FsmJobsLink.key, value=url)
            runner.ended = partial(self._report, runner, count(1))
            runner.run()
        except FsmError as error:
            runner.stop(str(error))
            raise
        except Exception:
            is_current = runner.ledger.is_shared  # Airflow's store refuses an attempt that was replaced
            raise
        finally:
            if not is_dry_run:
                outcomes = job_outcomes(writes, runner, unsent=unsent, web_url=web_url)
                for one in {one["key"]: one["outcome"] for one in outcomes}.values():
                    self.hook.metrics.incr("writes", outcome=one)
                if "ti" in context and is_current and any(one["outcome"] not in MADE for one in outcomes):
                    context["ti"].xcom_push(key="return_value", value=outcomes)
        self.log.info(summary_of(outcomes, runner.stop_reason))
        self._fail_or_go_on(context, runner, outcomes, options["fail_on"])
        return outcomes

    def _report(self, runner: Runner, ended: Iterator[int], one: Pending) -> None:
        from fsm_provider.writes.outcomes import error_of, what_became

        error, progress = error_of(one, runner), f"{next(ended)} of {len(runner.pending)}"
        level, details = (logging.ERROR, error) if error else (logging.INFO, f"job {one.row.result_id}")
        self.log.log(level, "%s: %s: %s: %s", progress, one.write.payload, what_became(one), details)

    def _fail_or_go_on(
        self, context: Context, runner: Runner, outcomes: list[JobOutcome], fail_on: str
    ) -> None:
        """Fail the task if its outcomes do, or another attempt could help."""
        from fsm_provider.writes.outcomes import MADE, fails, summary_of
        from fsm_provider.writes.runner import PASSING

        if not (failed := [one for one in outcomes if one["outcome"] not in MADE]):
            return
        errors = [one.error for one in runner.pending.values() if one.error]
        is_refused = any(isinstance(error, FsmUnauthorisedError) for error in errors)
        passing = None if is_refused else next((one for one in errors if not one.permanent), None)
        retry = passing is not None or runner.stop_reason == STOPPED
        is_last = "ti" not in context or context["ti"].try_number > context["ti"].max_tries
        summary = summary_of(outcomes, runner.stop_reason)
        needs_a_person = runner.stop_reason and not isinstance(passing, PASSING)
        is_stopped = needs_a_person or runner.stop_reason == STOPPED
        if (retry and not is_last) or is_stopped or fails(outcomes, fail_on):
            fail_in_part(
                summary,
                [f"jobs[{one['index']}] ({_name(one)}) {one['outcome']}: {one['error']}" for one in failed],
                all_are_in="the log, or the result in XCom",
                retry=retry,
                passing_error=passing,
            )
        self.log.warning("The task goes on, as fail_on is '%s': %s", fail_on, summary)


def job_id_or_skip(outcome: JobOutcome) -> int:
    """Return the id of a job that exists; for ``create_jobs.output.map(job_id_or_skip)``, to be expanded.

    :raises AirflowSkipException: if the outcome is another, which skips its map index.
    """
    if outcome["jobID"] is None:
        raise AirflowSkipException(f"{outcome['key']}: {outcome['outcome']}: {outcome['error']}")
    return outcome["jobID"]


def _write_for(request: JobRequest, place: str) -> Write:
    """Return the write that creates a job.

    :param place: its key, if it has none.
    """
    from fsm_provider.writes.ledger import Write

    return Write(
        method="POST",
        path=request.path,
        content=request.job.body(),
        key=request.key or place,
        key_is_given=request.key is not None,
        kind="job",
        property_id=spelled(request.property_id),
        reference=request.job.customer_reference,
        payload=request,
    )


def _job_of(row: Row) -> dict[str, Any]:
    from fsm_provider.writes.outcomes import as_number

    about = {"propertyID": as_number(row.property_id), "customerReference": row.reference}
    return {**(row.result or {}), **{name: value for name, value in about.items() if value is not None}}


def _name(outcome: JobOutcome) -> str:
    reference = outcome["customerReference"]
    return f"customerReference {reference}" if reference else f"key {outcome['key']}"


def _table(runner: Runner) -> str:
    from fsm_provider.terminal import aligned
    from fsm_provider.writes.outcomes import what_became

    rows = [("job", "property", "known", "payload")]
    for index, one in enumerate(runner.pending.values()):
        known: str = "new" if one.row.state == "free" else what_became(one)
        payload = json.dumps(one.write.content, ensure_ascii=False)
        known = f"job {one.row.result_id}" if known == "existing" else known.replace("not_created", "refused")
        rows.append((str(index), str(one.write.property_id), known, payload))
    return "\n".join(aligned(rows))


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
