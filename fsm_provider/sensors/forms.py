"""Sensors that wait for completed forms."""

from __future__ import annotations

import json
import time
from ast import literal_eval
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from inspect import unwrap
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from airflow.providers.common.compat.sdk import PokeReturnValue, conf

from fsm_provider import compat
from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.forms import FormFilter, reference_to
from fsm_provider.api.validation import parse_choice, parse_count, parse_time
from fsm_provider.operators.base import ALL_FILTERS, FormFilterArguments, bad_arguments_are_refused, is_known
from fsm_provider.operators.forms import XCOM
from fsm_provider.sensors.base import FsmBaseSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.polling.waits import Criteria, Deferral

SINCE = "fsm_since"
"""Key in the task's state store: the bound of an attempt's first poll in reschedule mode."""
FILTERS = tuple(name for name in ALL_FILTERS if name != "created_since")


class FsmFormSensor(FormFilterArguments, FsmBaseSensor):
    """Wait for newly completed forms on a property, a job, or the entire account.

    Succeeds when at least ``minimum_forms`` forms match, with one of each of ``form_names``. All modes poll
    on the worker, and so have the same result, timeout and errors. A deferred sensor is woken when a poll may
    find enough; ``exponential_backoff`` is for the other modes.

    :param job: the job, in place of ``job_id``: the output of the task that creates it, its record, or its
        identifier. The task that creates it becomes a dependency (templated).
    :param property: the property, in place of ``property_id``: likewise (templated).
    :param since: forms created at or after this time; ISO 8601 or a ``datetime``, in UTC if it has no zone.
        Default: when the record of ``job`` was created, else the start of the run's data interval, else the
        run's ``run_after``; never all history. It stays what it is at the first poll (templated).
    :param form_names: only forms with these names count, and each name needs a form (templated).
    :param minimum_forms: number of forms, at least 1 (templated).
    :param xcom: what XCom holds of each form: ``references`` (identifiers, name, times), ``ids``, or
        ``full`` records, with the URL of the PDF: it may be signed, and XCom is clear text.
    :param deferrable: wait in the triggerer.

    For other arguments see Airflow's ``BaseSensorOperator``.

    :return: the forms that count, in the form that ``xcom`` selects.
    """

    narrowing: ClassVar[tuple[str, ...]] = (*FILTERS, "job", "property", "since")
    template_fields: tuple[str, ...] = ("fsm_conn_id", *narrowing, "query_params", "minimum_forms")

    def __init__(
        self,
        *,
        job: Any = None,
        property: Any = None,
        since: datetime | str | None = None,
        form_names: str | list[str] | None = None,
        minimum_forms: int | str = 1,
        property_id: int | str | None = None,
        job_id: int | str | None = None,
        updated_since: datetime | str | None = None,
        form_category: str | None = None,
        form_name_id: int | str | None = None,
        created_by_type: str | None = None,
        created_by_id: int | str | None = None,
        query_params: dict[str, Any] | None = None,
        xcom: Literal["references", "ids", "full"] = "references",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        failure_tolerance: timedelta | float = 600.0,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(failure_tolerance=failure_tolerance, fsm_conn_id=fsm_conn_id, **kwargs)
        self.job = job
        self.property = property
        self.since = since
        self.form_names = form_names
        self.minimum_forms = minimum_forms
        self.property_id = property_id
        self.job_id = job_id
        self.updated_since = updated_since
        self.form_category = form_category
        self.form_name_id = form_name_id
        self.created_by_type = created_by_type
        self.created_by_id = created_by_id
        self.query_params = query_params
        self.xcom = xcom
        self.deferrable = deferrable
        self._before: Deferral | None = None
        self._is_fixed = self._is_resumed = False
        with bad_arguments_are_refused():
            self.check_filters()
            parse_choice("xcom", xcom, XCOM)
            for name, identifier in (("job", job_id), ("property", property_id)):
                if getattr(self, name) is not None and identifier is not None:
                    raise FsmInputError(f"{name}: is another way to give {name}_id; give one of them")
            if is_known(minimum_forms):
                parse_count("minimum_forms", minimum_forms)
            if since is not None and is_known(since):
                parse_time("since", since)

    @classmethod
    def argument_with(cls, name: str) -> str | None:
        """Return the argument that stands for another operator's."""
        return "since" if name == "created_since" else None

    def target(self, context: Context) -> str:
        """Describe the forms."""
        wanted, criteria = self._asked(context)
        return criteria.describe(wanted)

    def poll(self, context: Context) -> PokeReturnValue:
        """List the forms once."""
        from fsm_provider.api.models import Form
        from fsm_provider.polling.polls import list_once
        from fsm_provider.polling.waits import Deferral

        wanted, criteria = self._asked(context)
        if self._before is not None and self._before.known is not None:
            self._missing = criteria.missing(dict(self._before.known), {})
        elif "found" not in self._missing:
            self._missing = criteria.missing({}, {}) | self._missing
        client = self.hook.client
        as_reference = Form.as_json if self.xcom == "full" else reference_to
        if self._before is None and self.deferrable:
            since = cast("str | None", self.since)
            self._before = Deferral(client.settings.service, self._began, self._deadline, since)
        listing = list_once(client, wanted, self.query_params, as_reference)
        found, others = criteria.split(listing.forms)
        if criteria.are_met(found):
            references = {form.id: form.reference for form in listing.forms if form.id in found}
            result = list(found) if self.xcom == "ids" else list(references.values())
            return PokeReturnValue(is_done=True, xcom_value=result)
        is_narrow = wanted.property_id is not None or wanted.job_id is not None
        self._missing = criteria.missing(found, others if is_narrow else {})
        if self._before is not None:
            self._before = self._before.after(listing.service, found, listing.started)
        return PokeReturnValue(is_done=False)

    def defer_if_wanted(self, context: Context) -> None:
        """Defer a deferrable sensor, unless it has timed out."""
        from fsm_provider.triggers.forms import MIN_DEFERRAL, TIMEOUT_GRACE, FsmFormTrigger

        wait, now = self._before, time.time()
        if wait is None or now >= wait.deadline:
            return
        if not self._is_resumed and compat.no_triggerer_runs():
            self.log.warning("Deferred, but no triggerer runs, says Airflow: start one (airflow triggerer)")
        if self._failing_since is not None:
            wait = replace(wait, in_vain=wait.in_vain + 1, failing_since=self._failing_since)
        wanted, criteria = self._asked(context)
        self.defer(
            trigger=FsmFormTrigger(
                fsm_conn_id=self.fsm_conn_id,
                filters=wanted.as_dict(),
                minimum_forms=criteria.minimum_forms,
                form_names=list(criteria.form_names),
                query_params=self.query_params,
                poll_interval=self.poke_interval,
                failure_tolerance=self.failure_tolerance,
                wait=asdict(wait),
            ),
            method_name="execute_complete",
            # A timeout resumes the task just as another event does, so it must not come before MIN_DEFERRAL.
            timeout=timedelta(seconds=max(wait.deadline - now, MIN_DEFERRAL) + TIMEOUT_GRACE),
        )

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Poll again, as after any other poll."""
        if next_method == "execute_complete":
            return self.execute_complete(context, (next_kwargs or {}).get("event"))
        if not compat.is_deferral_timeout(next_method, next_kwargs):
            return super().resume_execution(next_method, next_kwargs, context)
        # The trigger, if it runs, ends before.
        self._hint = "no triggerer has polled: does one run (airflow triggerer)? Is execution_timeout over?"
        self._began, self._deadline = time.time() - self.timeout, time.time()
        return self._resume(context)

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Poll again after the trigger's event."""
        from fsm_provider.polling.waits import Deferral

        if not isinstance(event, dict) or "wait" not in event:
            raise RuntimeError(f"the task resumed with an event that FsmFormTrigger does not emit: {event!r}")
        self._before = wait = Deferral(**event["wait"])
        self._began, self._deadline, self._failing_since = wait.began, wait.deadline, wait.failing_since
        self.since, self._is_fixed = wait.since, True
        return self._resume(context)

    def _resume(self, context: Context) -> Any:
        self._is_resumed = True
        self.timeout = max(self._deadline - time.time(), 0.0)
        return unwrap(FsmBaseSensor.execute)(self, context)  # Airflow lets only a task runner call execute

    def _asked(self, context: Context) -> tuple[FormFilter, Criteria]:
        """Return the filter, and when its forms are enough."""
        from fsm_provider.polling.waits import Criteria

        self._fix_since(context)
        wanted = self.form_filter()
        names = wanted.form_names or ()
        criteria = Criteria(parse_count("minimum_forms", self.minimum_forms), tuple(names))
        found: dict[str, Any] = {"form_names": None, "created_since": self.since}
        for name, given in (("job", self.job), ("property", self.property)):
            if given is not None:
                found[f"{name}_id"] = _identified(name, given)[0]
        return replace(wanted, **found), criteria

    def _fix_since(self, context: Context) -> None:
        """Have ``since`` be that of the first poll, whatever its template gives at this one."""
        if self._is_fixed:
            return
        self._refuse_none()
        self._is_fixed = True
        given = self._given | compat.arguments_for_mapped_task(self)
        if self.since is None and not given & {"since", "updated_since"}:
            _, created = _identified("job", self.job)
            self.since = created or compat.start_of_run(context).astimezone(UTC).isoformat()
        if self.since is None:
            return
        self.since = parse_time("since", self.since).isoformat()
        if parse_time("since", self.since) > datetime.now(UTC):
            self.log.warning("since: %s is in the future; no form counts before", self.since)
        store: Any = context.get("task_state_store")  # None before Airflow 3.3
        if self.reschedule and not self.deferrable and store is not None:
            key = f"{SINCE}/{context['ti'].try_number}"
            self.since = store.get(key, self.since)
            store.set(key, self.since)


def _identified(name: str, given: Any) -> tuple[Any, str | None]:
    """Return the identifier in what ``job`` or ``property`` is given, and when the job was created.

    :raises FsmInputError: if there is none.
    """
    if isinstance(given, str) and given.lstrip().startswith("{"):
        for parse in (json.loads, literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError):
                given = parse(given)
                break
    if isinstance(given, list | tuple):
        raise FsmInputError(
            f"{name}: is a list: each map index of a mapped task gives one. Use .expand({name}=...), or map "
            "a task group"
        )
    if not isinstance(given, Mapping):
        return given, None
    key = f"{name}ID" if f"{name}ID" in given else "id"
    if given.get(key) is None:
        raise FsmInputError(f"{name}: is a record without {name}ID and id")
    created = given.get("createdOnDateTime") if name == "job" and key == "id" else None
    with suppress(FsmInputError):
        return given[key], parse_time("since", created).isoformat()
    return given[key], None
