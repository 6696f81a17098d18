"""Sensors that wait for completed forms."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.compat import is_deferral_timeout, start_of_run, task_state_store
from fsm_provider.operators.base import (
    FsmFormsToXComOperator,
    bad_arguments_are_refused,
    is_known,
    permanent_errors_fail_the_task,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.forms import FormDemand, FormFilter, Reference

FAILING_SINCE = "fsm_failing_since"
"""The key of the task's state store under which a sensor in reschedule mode counts its patience."""


class FsmFormSensor(FsmFormsToXComOperator, BaseSensorOperator):
    """Wait for newly completed forms on a property, a job, or the whole account (4.3).

    Done when at least ``minimum_forms`` forms match, and there is one of each of ``form_names``. In
    poke, reschedule and deferrable mode alike: the same answer, the same timeout, the same errors.
    The deferrable form looks once on the worker before it defers; ``exponential_backoff`` is for the
    other two. Deferred sensors share their requests (:class:`~fsm_provider.triggers.forms.FsmFormTrigger`).

    :param since: forms created at or after; ISO 8601 or a time, in UTC where it has no zone. Default:
        the start of the run's data interval, else the time the run was to start after; never all
        history. Another name for ``created_since`` (templated).
    :param minimum_forms: so many forms, at least 1 (templated).
    :param form_names: only forms of these names count, and each name has to have one (templated).
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two looks, at least 1.
    :param failure_tolerance: how long looks may go on failing while the service cannot be reached, is
        busy or is broken, before the task fails with the last error; seconds, or a ``timedelta``. In
        reschedule mode it needs Airflow 3.3: before, the first error fails the task. An error that time
        alone does not mend, such as a refused token, fails the task at once.

    The further arguments are those of :class:`~fsm_provider.operators.base.FsmFormsToXComOperator` and
    of Airflow's ``BaseSensorOperator``.

    :return: the forms that count, as ``xcom`` says.
    """

    template_fields: tuple[str, ...] = (
        *FsmFormsToXComOperator.template_fields,
        "since",
        "minimum_forms",
        "form_names",
    )
    ui_color = "#e8f4ea"

    def __init__(
        self,
        *,
        since: datetime | str | None = None,
        minimum_forms: int | str = 1,
        form_names: str | list[str] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        failure_tolerance: timedelta | float = 600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.since = since
        self.minimum_forms = minimum_forms
        self.form_names = form_names
        self.deferrable = deferrable
        if isinstance(failure_tolerance, timedelta):
            failure_tolerance = failure_tolerance.total_seconds()
        self.failure_tolerance = failure_tolerance
        self._failing_since: datetime | None = None
        with bad_arguments_are_refused():
            if self.poke_interval < 1:
                raise FsmInputError(f"poke_interval: {self.poke_interval:g} s is less than 1 s")
            if failure_tolerance < 0:
                raise FsmInputError(f"failure_tolerance: {failure_tolerance:g} s is less than nothing")
            if since is not None and self.created_since is not None:
                raise FsmInputError("since: is another name for created_since; give one of them")
            if is_known([minimum_forms, form_names]):
                self._demand()
            if since is not None and is_known(since):
                self._since()

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Look once; a deferrable sensor defers where the forms are not enough."""
        demand = self._demand()
        try:
            counted, result = self._look(context)
        except FsmError as error:
            self._bear(error, context)
            if self.deferrable:
                self._wait_in_the_triggerer(context, datetime.now(UTC) + timedelta(seconds=self.timeout))
            return False
        self._forget_failures(context)
        if demand.is_met_by(counted):
            return PokeReturnValue(is_done=True, xcom_value=result)
        missing = demand.missing(counted)
        self.log.info(
            "%s of %s forms%s; the next look is in %g s",
            len(counted),
            max(demand.minimum_forms, len(demand.form_names)),
            f", none named {', '.join(missing)}" if missing else "",
            self.poke_interval,
        )
        if self.deferrable:
            self._wait_in_the_triggerer(context, datetime.now(UTC) + timedelta(seconds=self.timeout))
        return False

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after the deferral; a timeout is one in every version, and is not retried."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowException as error:
            if not is_deferral_timeout(error):
                raise
            raise AirflowSensorTimeout(f"Sensor has timed out: {error}") from error

    def execute_complete(self, context: Context, event: Any = None, deadline: str = "") -> Any:
        """Take what the trigger found, or raise the error that it met."""
        if not isinstance(event, dict) or not event.keys() & {"forms", "error"}:
            raise RuntimeError(f"the trigger fired with an event that is none of its own: {event!r}")
        if "error" in event:
            self._take_error(context, event["error"], deadline)
        references: list[Reference] = event["forms"]
        self.log.info("%s forms were completed", len(references))
        match self.xcom:
            case "references":
                return references
            case "ids":
                return [reference["id"] for reference in references]
            case "full":
                return self._look(context)[1]

    def _take_error(self, context: Context, description: dict[str, Any], deadline: str) -> None:
        from fsm_provider.api.errors import error_from_dict

        error = error_from_dict(description)
        if self.silent_fail and not error.permanent:
            self.log.error("Looking for forms failed, and goes on until the timeout: %s", error)
            if (ends := datetime.fromisoformat(deadline)) <= datetime.now(UTC):
                raise AirflowSensorTimeout(
                    f"Sensor has timed out at {deadline}; the last look failed: {error}"
                )
            self._wait_in_the_triggerer(context, ends)
        if self.never_fail:
            raise AirflowSkipException("Skipping due to never_fail is set to True.") from error
        with permanent_errors_fail_the_task():
            raise error

    def _bear(self, error: FsmError, context: Context) -> None:
        """Let a failed look pass, or raise its error where patience is over."""
        from fsm_provider.api.retry import is_transient

        if not is_transient(error) or self._failing_for(context) >= self.failure_tolerance:
            raise error
        self.log.warning(
            "Looking for forms failed, and goes on for up to %g s: %s", self.failure_tolerance, error
        )

    def _failing_for(self, context: Context) -> float:
        """Note a failed look, and give the seconds since the first of those in a row."""
        now = datetime.now(UTC)
        since = self._noted_failure(context)
        if since is None:
            if self._is_one_process:
                self._failing_since = now
            elif (store := task_state_store(context)) is not None:
                store.set(FAILING_SINCE, {"try": context["ti"].try_number, "since": now.isoformat()})
            else:
                return float("inf")
            since = now
        return (now - since).total_seconds()

    def _noted_failure(self, context: Context) -> datetime | None:
        if self._is_one_process:
            return self._failing_since
        store = task_state_store(context)
        noted = store.get(FAILING_SINCE) if store is not None else None
        if not isinstance(noted, dict) or noted.get("try") != context["ti"].try_number:
            return None
        return datetime.fromisoformat(noted["since"])

    def _forget_failures(self, context: Context) -> None:
        if self._noted_failure(context) is None:
            return
        self._failing_since = None
        if not self._is_one_process:
            task_state_store(context).delete(FAILING_SINCE)

    @property
    def _is_one_process(self) -> bool:
        """Whether the worker's looks of one try are one process's, and not each a process's own."""
        return self.deferrable or not self.reschedule

    def _look(self, context: Context) -> tuple[list[Reference], list[Any]]:
        """Give the forms that count, as references and as they go to XCom."""
        from fsm_provider.api.forms import for_xcom, reference_to

        with permanent_errors_fail_the_task():
            filters = self._filters(context).as_dict()
            forms = {form.id: form for form in self.hook.list_forms(params=self.query_params, **filters)}
            counted = self._demand().wanted(map(reference_to, forms.values()))
        return counted, for_xcom([forms[reference["id"]] for reference in counted], self.xcom)

    def _wait_in_the_triggerer(self, context: Context, deadline: datetime) -> None:
        from fsm_provider.triggers.forms import EARLIEST_EVENT, SHARED_FOR, FsmFormTrigger

        demand, wanted, now = self._demand(), self._filters(context), datetime.now(UTC)
        age = wanted.age(now)
        self.defer(
            trigger=FsmFormTrigger(
                fsm_conn_id=self.fsm_conn_id,
                filters=wanted.as_dict(),
                minimum_forms=demand.minimum_forms,
                form_names=list(demand.form_names),
                query_params=self.query_params,
                poll_interval=self.poke_interval,
                failure_tolerance=self.failure_tolerance,
                shared=age is not None and age <= SHARED_FOR,
            ),
            method_name="execute_complete",
            kwargs={"deadline": deadline.isoformat()},
            # A timeout resumes the task as an event does, and must not come earlier.
            timeout=max(deadline - now, timedelta(seconds=EARLIEST_EVENT)),
        )

    def _filters(self, context: Context) -> FormFilter:
        given = self.form_filter()
        if self.since is not None:
            return replace(given, created_since=self._since())
        if given.created_since is None and given.updated_since is None:
            return replace(given, created_since=start_of_run(context))
        return given

    def _since(self) -> datetime:
        from fsm_provider.api.inputs import read_time

        return read_time("since", self.since)

    def _demand(self) -> FormDemand:
        from fsm_provider.api.forms import FormDemand
        from fsm_provider.api.inputs import read_count, read_names

        return FormDemand(
            minimum_forms=read_count("minimum_forms", self.minimum_forms),
            form_names=read_names("form_names", self.form_names or ()),
        )
