"""Sensors that wait for completed forms."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowSensorTimeout,
    AirflowSkipException,
    PokeReturnValue,
    conf,
)

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.compat import (
    arguments_for_mapped_task,
    is_deferral_timeout,
    no_triggerer_runs,
    start_of_run,
)
from fsm_provider.operators.base import (
    FsmFormResultOperator,
    bad_arguments_are_refused,
    is_known,
    permanent_errors_fail_the_task,
)
from fsm_provider.sensors.base import FsmBaseSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.form_filter import FormFilter, FormReference
    from fsm_provider.polling.criteria import FormCriteria
    from fsm_provider.polling.form_waits import FormWait


class FsmFormSensor(FsmFormResultOperator, FsmBaseSensor):
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

    For the other arguments see :class:`~fsm_provider.operators.base.FsmFormResultOperator`,
    :class:`~fsm_provider.sensors.base.FsmBaseSensor` and Airflow's ``BaseSensorOperator``.

    :return: the forms that count, in the form that ``xcom`` selects.
    """

    template_fields: tuple[str, ...] = (
        *FsmFormResultOperator.template_fields,
        "since",
        "minimum_forms",
        "form_names",
    )
    narrowing: ClassVar[tuple[str, ...]] = (*FsmFormResultOperator.narrowing, "since", "form_names")

    def __init__(
        self,
        *,
        since: datetime | str | None = None,
        minimum_forms: int | str = 1,
        form_names: str | list[str] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.since = since
        self.minimum_forms = minimum_forms
        self.form_names = form_names
        self._given |= {name for name in ("since", "form_names") if getattr(self, name) is not None}
        self.deferrable = deferrable
        self._shown_others = ""
        self._is_resumed = False
        with bad_arguments_are_refused():
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

    def target(self, context: Context) -> str:
        """Describe the forms."""
        from fsm_provider.polling.wait_status import target_for

        return target_for(self._filters(context), self._criteria())

    def poll(self, context: Context) -> PokeReturnValue:
        """List the forms once, and log which are missing."""
        from fsm_provider.polling.wait_status import listed

        wait, result = self._poll(context)
        if result is not None:
            return PokeReturnValue(is_done=True, xcom_value=result)
        criteria, missing = wait.criteria, wait.criteria.missing(wait.found.values())
        self.log.info(
            "%s of %s forms%s",
            len(wait.found),
            max(criteria.minimum_forms, len(criteria.form_names)),
            f", none named {listed(missing)}" if missing else "",
        )
        if self._status is not None:
            self._status.others = wait.others.values()
            if (named := self._status.other_forms()) and named != self._shown_others:
                self.log.info("%s", named)
                self._shown_others = named
        return PokeReturnValue(is_done=False)

    def defer_if_wanted(self, context: Context) -> None:
        """Defer a deferrable sensor."""
        if self.deferrable:
            self._wait_in_the_triggerer(context, datetime.now(UTC) + self._max_wait)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the deferral; a timeout raises ``AirflowSensorTimeout``, which is not retried."""
        if is_deferral_timeout(next_method, next_kwargs):
            # The trigger, if it runs, ends before.
            limit = self.execution_timeout
            if limit is None or limit.total_seconds() > self.timeout:
                cause = "no triggerer has polled until then: does one run (airflow triggerer)?"
            else:
                cause = f"its execution_timeout is {limit}"
            target = self.target(context)
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
            # The other modes, too, poll once more after the deadline.
            with suppress(FsmError, AirflowException):
                if (records := self._poll(context)[1]) is not None:
                    return records
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
                return self._full_records(context, datetime.fromisoformat(deadline))

    def _full_records(self, context: Context, deadline: datetime) -> list[Any]:
        """Return the records of the forms that the trigger found, or wait on."""
        failure: FsmError | None = None
        try:
            _, records = self._poll(context)
        except FsmError as error:
            failure = error
            if not self._is_tolerated(error, context):
                self._handle_error(context, error, deadline)
        else:
            if records is not None:
                return records
            self._failing_since = None
            self.log.warning("Some of the forms found have moved or are gone; waiting for others")
        # Alone: the shared forms have just turned out to be outdated.
        return self._wait_on(context, deadline, failure, shared=False)

    def _handle_error(self, context: Context, error: FsmError, deadline: datetime) -> NoReturn:
        if self.silent_fail and not error.permanent:
            self.log.error("Polling failed, and goes on until the timeout: %s", error)
            self._wait_on(context, deadline, error)
        if self.never_fail:
            raise AirflowSkipException("Skipping due to never_fail is set to True.") from error
        with permanent_errors_fail_the_task():
            raise error

    def _wait_on(
        self, context: Context, deadline: datetime, error: FsmError | None = None, *, shared: bool = True
    ) -> NoReturn:
        if deadline <= datetime.now(UTC):
            status = self._status_for(context, deadline - self._max_wait)
            if error is not None:
                status.fail(error)
            raise AirflowSensorTimeout(status.timeout())
        self._wait_in_the_triggerer(context, deadline, shared=shared)

    @property
    def _is_one_process(self) -> bool:
        return self.deferrable or super()._is_one_process

    def _poll(self, context: Context) -> tuple[FormWait, list[Any] | None]:
        """Return the wait after a listing, and its forms as XCom values, None if they are not enough."""
        from fsm_provider.api.forms import for_xcom, reference_to
        from fsm_provider.polling.form_waits import FormWait

        with permanent_errors_fail_the_task():
            wait = FormWait(self._filters(context), self._criteria())
            with self._connection_may_be_lost(context):
                listed = self.hook.list_forms(params=self.query_params, **wait.wanted.as_dict())
                forms = {form.id: form for form in listed}
        for form in forms.values():
            wait.add(reference_to(form))
        found = wait.forms()
        return wait, None if found is None else for_xcom([forms[one["id"]] for one in found], self.xcom)

    def _has_polled(self, context: Context) -> bool:
        return self._is_resumed or super()._has_polled(context)

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
                began=(deadline - self._max_wait).isoformat(),
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
