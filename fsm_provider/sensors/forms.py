"""Sensors that wait for completed forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.compat import (
    arguments_for_mapped_task,
    is_deferral_timeout,
    no_triggerer_runs,
    reschedules,
    start_of_run,
    task_state_store,
)
from fsm_provider.operators.base import (
    FsmFormResultOperator,
    bad_arguments_are_refused,
    is_known,
    permanent_errors_fail_the_task,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.form_filter import FormFilter, FormReference
    from fsm_provider.polling.criteria import FormCriteria
    from fsm_provider.polling.wait_status import WaitStatus

FAILING_SINCE = "fsm_failing_since"
"""Key in the task's state store: since when the polls of a sensor in reschedule mode fail."""


class FsmFormSensor(FsmFormResultOperator, BaseSensorOperator):
    """Wait for newly completed forms on a property, a job, or the entire account.

    Succeeds when at least ``minimum_forms`` forms match, with one of each of ``form_names``. Poke,
    reschedule and deferrable mode have the same result, the same timeout and the same errors. A deferrable
    sensor polls once on the worker before it defers; ``exponential_backoff`` is for the other two modes.
    Deferred sensors share their requests (:class:`~fsm_provider.triggers.forms.FsmFormTrigger`).

    :param since: forms created at or after this time; ISO 8601 or a ``datetime``, in UTC if it has no zone.
        Default: the start of the run's data interval, else the run's ``run_after``; never all history.
        Another name for ``created_since`` (templated).
    :param minimum_forms: number of forms, at least 1 (templated).
    :param form_names: only forms with these names count, and each name needs a form (templated).
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two polls, at least 1.
    :param failure_tolerance: how long polls may fail with transient errors (the service is unreachable,
        busy or broken) before the task fails with the last error; seconds, or a ``timedelta``. In
        reschedule mode it needs Airflow 3.3: before, the first error fails the task. An error that is not
        transient, such as a refused token, fails the task at once.
    :param log_interval: seconds between two lines of the log that say how the wait goes, at least 1; None:
        none.

    For the other arguments see :class:`~fsm_provider.operators.base.FsmFormResultOperator` and Airflow's
    ``BaseSensorOperator``.

    :return: the forms that count, in the form that ``xcom`` selects.
    """

    template_fields: tuple[str, ...] = (
        *FsmFormResultOperator.template_fields,
        "since",
        "minimum_forms",
        "form_names",
    )
    narrowing: ClassVar[tuple[str, ...]] = (*FsmFormResultOperator.narrowing, "since", "form_names")
    ui_color = "#e8f4ea"

    def __init__(
        self,
        *,
        since: datetime | str | None = None,
        minimum_forms: int | str = 1,
        form_names: str | list[str] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        failure_tolerance: timedelta | float = 600.0,
        log_interval: float | None = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.since = since
        self.minimum_forms = minimum_forms
        self.form_names = form_names
        self._given |= {name for name in ("since", "form_names") if getattr(self, name) is not None}
        self.deferrable = deferrable
        if isinstance(failure_tolerance, timedelta):
            failure_tolerance = failure_tolerance.total_seconds()
        self.failure_tolerance = failure_tolerance
        self.log_interval = log_interval
        self._status: WaitStatus | None = None
        self._shown_others = ""
        self._failing_since: datetime | None = None
        self._is_resumed = False
        with bad_arguments_are_refused():
            if self.poke_interval < 1:
                raise FsmInputError(f"poke_interval: {self.poke_interval:g} s is less than 1 s")
            if failure_tolerance < 0:
                raise FsmInputError(f"failure_tolerance: {failure_tolerance:g} s is negative")
            if log_interval is not None and log_interval < 1:
                raise FsmInputError(f"log_interval: {log_interval:g} s is less than 1 s")
            if since is not None and self.created_since is not None:
                raise FsmInputError("since: is another name for created_since; give one of them")
            if is_known([minimum_forms, form_names]):
                self._criteria()
            if since is not None and is_known(since):
                self._since()

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], context: Context, *args: Any, **kwargs: Any
    ) -> None:
        """Render, and have Rendered Templates show the default of ``since``; mapped tasks call only this."""
        super()._do_render_template_fields(parent, template_fields, context, *args, **kwargs)
        given = self._given | arguments_for_mapped_task(self)
        if not given & {"since", "created_since", "updated_since"} and "dag_run" in context:
            self.since = start_of_run(context).astimezone(UTC).isoformat()

    def execute(self, context: Context) -> Any:
        """Wait; the message of a timeout says for what, and how that went."""
        try:
            return super().execute(context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            if self._status is None or not str(error).startswith("Sensor has timed out"):
                raise
            raise type(error)(self._status.timeout()) from None

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Poll once; a deferrable sensor defers if there are not enough forms."""
        with permanent_errors_fail_the_task():
            criteria = self._criteria()
            status = self._status or self._begin(context)
        try:
            counted, result, status.others = self._poll(context)
        except FsmError as error:
            status.fail(error)
            if not self._is_tolerated(error, context):
                raise
            self._show_progress(status)
            if self.deferrable:
                self._wait_in_the_triggerer(context, datetime.now(UTC) + timedelta(seconds=self.timeout))
            return False
        status.succeed(datetime.now(UTC))
        self._forget_failures(context)
        if criteria.is_met_by(counted):
            return PokeReturnValue(is_done=True, xcom_value=result)
        missing = criteria.missing(counted)
        self.log.info(
            "%s of %s forms%s; the next poll is in %g s",
            len(counted),
            max(criteria.minimum_forms, len(criteria.form_names)),
            f", none named {', '.join(missing)}" if missing else "",
            self.poke_interval,
        )
        if (others := status.other_forms()) and others != self._shown_others:
            self.log.info("%s", others)
            self._shown_others = others
        self._show_progress(status)
        if self.deferrable:
            self._wait_in_the_triggerer(context, datetime.now(UTC) + timedelta(seconds=self.timeout))
        return False

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the deferral; a timeout raises ``AirflowSensorTimeout``, which is not retried."""
        if is_deferral_timeout(next_method, next_kwargs):
            # The trigger, if it runs, ends before.
            limit = self.execution_timeout
            if limit is None or limit.total_seconds() > self.timeout:
                cause = "no triggerer has polled until then: does one run (airflow triggerer)?"
            else:
                cause = f"its execution_timeout is {limit}"
            target = self._status_for(context, datetime.now(UTC)).target()
            message = f"Sensor has timed out: waited for {target}; {cause}"
            next_method, next_kwargs = "execute_complete", {"event": {"timed_out": message}}
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSkipException as skipped:
            if isinstance(skipped.__cause__, AirflowSensorTimeout):
                raise AirflowSkipException(str(skipped.__cause__)) from None
            raise

    def execute_complete(
        self, context: Context, event: Any = None, deadline: str = "", failing_since: str | None = None
    ) -> Any:
        """Return the forms that the trigger found, or raise its error.

        :param deadline: when the sensor times out, ISO 8601.
        :param failing_since: since when the worker's polls after the trigger's events fail, ISO 8601.
        :raises FsmError: the trigger's error, if it is not permanent.
        :raises AirflowSensorTimeout: if the trigger's wait has timed out.
        :raises RuntimeError: if the event is not one of the trigger's.
        """
        from fsm_provider.api.errors import error_from_dict

        self._is_resumed = True
        self._failing_since = datetime.fromisoformat(failing_since) if failing_since else None
        if not isinstance(event, dict) or not event.keys() & {"forms", "error", "timed_out"}:
            raise RuntimeError(f"the task resumed with an event that FsmFormTrigger does not emit: {event!r}")
        if "timed_out" in event:
            raise AirflowSensorTimeout(event["timed_out"])
        if "error" in event:
            self._handle_error(context, error_from_dict(event["error"]), datetime.fromisoformat(deadline))
        references: list[FormReference] = event["forms"]
        self.log.info("%s forms were completed", len(references))
        match self.xcom:
            case "references":
                return references
            case "ids":
                return [reference["id"] for reference in references]
            case "full":
                ends = datetime.fromisoformat(deadline)
                records = self._full_records(context, ends)
                if records is None:
                    # Alone: the shared forms have just turned out to be outdated.
                    self._wait_on(context, ends, shared=False)
                return records

    def _full_records(self, context: Context, deadline: datetime) -> list[Any] | None:
        """Return the records of the forms that the trigger found; None if the wait has to go on."""
        try:
            counted, records, _ = self._poll(context)
        except FsmError as error:
            if not self._is_tolerated(error, context):
                self._handle_error(context, error, deadline)
            return None
        if self._criteria().is_met_by(counted):
            return records
        self._failing_since = None
        self.log.warning("Some of the forms found have moved or are gone; waiting for others")
        return None

    def _handle_error(self, context: Context, error: FsmError, deadline: datetime) -> NoReturn:
        if self.silent_fail and not error.permanent:
            self.log.error("Polling for forms failed, and goes on until the timeout: %s", error)
            self._wait_on(context, deadline, error)
        if self.never_fail:
            raise AirflowSkipException("Skipping due to never_fail is set to True.") from error
        with permanent_errors_fail_the_task():
            raise error

    def _wait_on(
        self, context: Context, deadline: datetime, error: FsmError | None = None, *, shared: bool = True
    ) -> NoReturn:
        if deadline <= datetime.now(UTC):
            status = self._status_for(context, deadline - timedelta(seconds=self.timeout), polls=None)
            if error is not None:
                status.fail(error)
            raise AirflowSensorTimeout(status.timeout())
        self._wait_in_the_triggerer(context, deadline, shared=shared)

    def _is_tolerated(self, error: FsmError, context: Context) -> bool:
        """Record a failed poll, and return whether the wait goes on."""
        if error.permanent or self._failing_for(context) >= self.failure_tolerance:
            return False
        self.log.warning(
            "Polling for forms failed, and goes on for up to %g s: %s", self.failure_tolerance, error
        )
        return True

    def _failing_for(self, context: Context) -> float:
        """Record a failed poll, and return the seconds since the first of the failures in a row."""
        now = datetime.now(UTC)
        since = self._recorded_failure(context)
        if since is None:
            if self._is_one_process:
                self._failing_since = now
            elif (store := task_state_store(context)) is not None:
                store.set(FAILING_SINCE, {"try": context["ti"].try_number, "since": now.isoformat()})
            else:
                return float("inf")
            since = now
        return (now - since).total_seconds()

    def _recorded_failure(self, context: Context) -> datetime | None:
        if self._is_one_process:
            return self._failing_since
        store = task_state_store(context)
        recorded = store.get(FAILING_SINCE) if store is not None else None
        if not isinstance(recorded, dict) or recorded.get("try") != context["ti"].try_number:
            return None
        return datetime.fromisoformat(recorded["since"])

    def _forget_failures(self, context: Context) -> None:
        if self._recorded_failure(context) is None:
            return
        self._failing_since = None
        if not self._is_one_process:
            task_state_store(context).delete(FAILING_SINCE)

    @property
    def _is_one_process(self) -> bool:
        """Whether one process makes all of an attempt's polls on the worker."""
        return self.deferrable or not self.reschedule

    def _begin(self, context: Context) -> WaitStatus:
        """Begin the wait in this process; log what it is for, unless an earlier process has."""
        now = datetime.now(UTC)
        began, polls = reschedules(context) if self.reschedule else (None, 0)
        self._status = self._status_for(context, began or now, polls)
        if began is None:
            self.log.info("%s", self._status.start(self.poke_interval))
        self._shown_at = began or now
        if began is not None and self.log_interval is not None:
            last_poll = (now - began) * (1 - 1 / max(polls, 1))
            self._shown_at += last_poll - last_poll % timedelta(seconds=self.log_interval)
        return self._status

    def _status_for(self, context: Context, began: datetime, polls: int | None = 0) -> WaitStatus:
        from fsm_provider.polling.wait_status import WaitStatus

        return WaitStatus(
            wanted=self._filters(context),
            criteria=self._criteria(),
            began=began,
            until=began + timedelta(seconds=self.timeout),
            polls=polls,
        )

    def _show_progress(self, status: WaitStatus) -> None:
        now = datetime.now(UTC)
        if self.log_interval is not None and (now - self._shown_at).total_seconds() >= self.log_interval:
            self._shown_at = now
            self.log.info("%s", status.progress())

    def _poll(self, context: Context) -> tuple[list[FormReference], list[Any], list[str]]:
        """Return the forms that count, as references and as XCom values, and the names of the others.

        The names are those of the wait's property or job.
        """
        from fsm_provider.api.forms import for_xcom, reference_to
        from fsm_provider.polling.poller import connection_not_found

        with permanent_errors_fail_the_task():
            filters = self._filters(context).as_dict()
            try:
                listed = self.hook.list_forms(params=self.query_params, **filters)
                forms = {form.id: form for form in listed}
            except AirflowNotFoundException:
                if not self._has_polled(context):
                    raise
                raise connection_not_found(self.fsm_conn_id) from None
            criteria, references = self._criteria(), [reference_to(form) for form in forms.values()]
        counted = criteria.wanted(references)
        others = [one["formName"] or "" for one in references if not criteria.counts(one)]
        result = for_xcom([forms[reference["id"]] for reference in counted], self.xcom)
        return counted, result, others if filters.keys() & {"property_id", "job_id"} else []

    def _has_polled(self, context: Context) -> bool:
        """Whether there was a poll before this one, which found the connection."""
        return self._is_resumed or (self.reschedule and reschedules(context)[0] is not None)

    def _wait_in_the_triggerer(
        self, context: Context, deadline: datetime, *, shared: bool = True
    ) -> NoReturn:
        from fsm_provider.triggers.forms import MIN_DEFERRAL, TIMEOUT_GRACE, FsmFormTrigger

        criteria, wanted, now = self._criteria(), self._filters(context), datetime.now(UTC)
        if not self._is_resumed and no_triggerer_runs():
            self.log.warning(
                "Deferred, but no triggerer runs, says Airflow's health check: the wait goes on when one "
                "is started (airflow triggerer)"
            )
        # A timeout resumes the task just as another event does, so it must not come before MIN_DEFERRAL.
        ends = max(deadline, now + timedelta(seconds=MIN_DEFERRAL))
        kwargs = {"deadline": deadline.isoformat()}
        if self._is_resumed and self._failing_since is not None:
            kwargs["failing_since"] = self._failing_since.isoformat()
        self.defer(
            trigger=FsmFormTrigger(
                fsm_conn_id=self.fsm_conn_id,
                filters=wanted.as_dict(),
                minimum_forms=criteria.minimum_forms,
                form_names=list(criteria.form_names),
                query_params=self.query_params,
                poll_interval=self.poke_interval,
                failure_tolerance=self.failure_tolerance,
                shared=shared,
                began=(deadline - timedelta(seconds=self.timeout)).isoformat(),
                deadline=ends.isoformat(),
                log_interval=self.log_interval,
            ),
            method_name="execute_complete",
            kwargs=kwargs,
            timeout=ends - now + timedelta(seconds=TIMEOUT_GRACE),
        )

    def _filters(self, context: Context) -> FormFilter:
        given = self.form_filter()
        if self.since is not None:
            return replace(given, created_since=self._since())
        if given.created_since is None and given.updated_since is None:
            return replace(given, created_since=start_of_run(context))
        return given

    def _since(self) -> datetime:
        from fsm_provider.api.validation import parse_time

        return parse_time("since", self.since)

    def _criteria(self) -> FormCriteria:
        from fsm_provider.api.validation import parse_count, parse_names
        from fsm_provider.polling.criteria import FormCriteria

        minimum_forms = parse_count("minimum_forms", self.minimum_forms)
        if self.form_names is None:
            return FormCriteria(minimum_forms=minimum_forms)
        names = parse_names("form_names", self.form_names)
        if not names:
            raise FsmInputError("form_names: is an empty list: leave it out if any form counts")
        return FormCriteria(minimum_forms=minimum_forms, form_names=names)
