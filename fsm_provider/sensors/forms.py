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
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import PokeReturnValue, conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.forms import ALL_FILTERS, reference_to
from fsm_provider.api.validation import parse_choice, parse_count, parse_identifier, parse_time
from fsm_provider.operators.base import FormFilterArguments, bad_arguments_refused, is_literal
from fsm_provider.operators.forms import XCOM
from fsm_provider.sensors.base import FsmBaseSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.polling.waits import WaitState

NO_TRIGGERER = (
    "no triggerer has polled: does one run (airflow triggerer)? Is execution_timeout over?"
)
SINCE = "fsm_since"  # key of the task state store
WORDS = {"property_id": "of property", "job_id": "of job"}
FILTERS = tuple(name for name in ALL_FILTERS if name != "created_since")


class FsmFormSensor(FormFilterArguments, FsmBaseSensor):
    """Wait for newly completed forms on a property, a job, or the entire account.

    Succeeds when at least ``minimum_forms`` forms match, with one of each of ``form_names``. All
    modes poll on the worker, and so have the same result, timeout and errors. A deferred sensor is
    woken when a poll may find enough; ``exponential_backoff`` is for the other modes.

    :param job: the job, in place of ``job_id``: the output of the task that creates it, its record,
        or its identifier. The task that creates it becomes a dependency (templated).
    :param property: the property, in place of ``property_id``: likewise (templated).
    :param since: forms created at or after this time; ISO 8601 or a ``datetime``, in UTC if it has
        no zone. Default: when the record of ``job`` was created, else the start of the run's data
        interval, else the run's ``run_after``; never all history. It stays what it is at the first
        poll (templated).
    :param form_names: only forms with these names count, and each name needs a form (templated).
    :param minimum_forms: number of forms, at least 1 (templated).
    :param xcom: what XCom holds of each form: ``references`` (identifiers, name, times), ``ids``,
        or ``full`` records, with the URL of the PDF: it may be signed, and XCom is clear text.
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
        self.since: Any = since
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
        self._before: WaitState | None = None
        with bad_arguments_refused():
            self.check_filters()
            parse_choice("xcom", xcom, XCOM)
            for name, identifier in (("job", job_id), ("property", property_id)):
                if getattr(self, name) is not None and identifier is not None:
                    raise FsmInputError(
                        f"{name}: is another way to give {name}_id; give one of them"
                    )
            if is_literal(minimum_forms):
                parse_count("minimum_forms", minimum_forms)
            if since is not None and is_literal(since):
                parse_time("since", since)

    def begin(self, context: Context) -> str:
        """Have the filters, and when forms are enough, for all polls of this process; describe
        them.
        """
        from fsm_provider.polling.waits import Criteria, listed

        wanted = self.form_filter()
        minimum, names = (
            parse_count("minimum_forms", self.minimum_forms),
            tuple(wanted.form_names or ()),
        )
        found: dict[str, Any] = {}
        created = place = None
        for name, given in (("property", self.property), ("job", self.job)):
            if given is not None:
                found[f"{name}_id"], created, place = _identified(name, given)
        if self._before is None:
            self.since = self._first_since(created, context)
        self._wanted = replace(wanted, form_names=None, created_since=self.since, **found)
        self._criteria = Criteria(minimum, names)
        known = self._before and self._before.known
        self._missing = self._criteria.missing(dict(known or ()))
        if known is None:
            self._missing["text"] = "no poll has succeeded"
        forms = "a form" if minimum == 1 else f"{minimum} forms"
        if names:
            forms = listed(names) if minimum <= len(names) else f"{forms} named {listed(names)}"
        shown: dict[str, Any] = {**self._wanted.as_dict()}
        if place is not None:
            shown = {"property_id": place} | shown
        described = [
            f"{WORDS.get(name, name.replace('_', ' '))} {value}" for name, value in shown.items()
        ]
        return ", ".join([forms, *described])

    def poll(self) -> PokeReturnValue:
        from fsm_provider.api.models import Form
        from fsm_provider.polling.polls import list_once
        from fsm_provider.polling.waits import WaitState

        client = self.hook.client
        if self._before is None and self.deferrable:
            self._before = WaitState(
                client.settings.service, self._began, self._deadline, self.since
            )
        as_reference = Form.as_json if self.xcom == "full" else reference_to
        listing = list_once(client, self._wanted, self.query_params, as_reference)
        forms = {form.id: form for form in listing.forms}
        found = {one: form.name for one, form in forms.items() if self._criteria.counts(form.name)}
        if self._criteria.are_met(found):
            result = list(found) if self.xcom == "ids" else [forms[one].reference for one in found]
            return PokeReturnValue(is_done=True, xcom_value=result)
        is_narrow = self._wanted.property_id is not None or self._wanted.job_id is not None
        others = [form.name for one, form in forms.items() if one not in found]
        self._missing = self._criteria.missing(found, others if is_narrow else ())
        if self._before is not None:
            self._before = self._before.after(listing.service, found, listing.started)
        return PokeReturnValue(is_done=False)

    def defer_if_wanted(self) -> None:
        from fsm_provider.triggers.forms import MIN_DEFERRAL, TIMEOUT_GRACE, FsmFormTrigger

        wait, now = self._before, time.time()
        if wait is None or now >= wait.deadline:
            return
        if self._failing_since is not None:
            wait = replace(
                wait, futile_wakes=wait.futile_wakes + 1, failing_since=self._failing_since
            )
        self.defer(
            trigger=FsmFormTrigger(
                fsm_conn_id=self.fsm_conn_id,
                filters=self._wanted.as_dict(),
                minimum_forms=self._criteria.minimum_forms,
                form_names=list(self._criteria.form_names),
                query_params=self.query_params,
                poll_interval=self.poke_interval,
                failure_tolerance=self.failure_tolerance,
                wait=asdict(wait),
            ),
            method_name="execute_complete",
            # A timeout resumes the task just as another event does, so it must not come before
            # MIN_DEFERRAL.
            timeout=timedelta(seconds=max(wait.deadline - now, MIN_DEFERRAL) + TIMEOUT_GRACE),
        )

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Poll again after the trigger's event, as after any other poll."""
        from fsm_provider.polling.waits import WaitState

        if next_method == "execute_complete":
            self._before = before = WaitState(**(next_kwargs or {})["event"]["wait"])
            self._began, self._deadline = before.began, before.deadline
            self._failing_since, self.since = before.failing_since, before.since
        elif (
            next_method == "__fail__" and "timeout" in str((next_kwargs or {}).get("error")).lower()
        ):
            # Airflow has ended the deferral: the trigger, if it runs, ends before.
            self._hint = NO_TRIGGERER
            self._began, self._deadline = time.time() - self.timeout, time.time()
        else:
            return super().resume_execution(next_method, next_kwargs, context)
        self.timeout: float = max(self._deadline - time.time(), 0.0)
        return unwrap(FsmBaseSensor.execute)(
            self, context
        )  # Airflow lets only a task runner call execute

    def _first_since(self, created: str | None, context: Context) -> str | None:
        """Return the bound of the first poll: later attempts keep it, whatever the template gives
        then.
        """
        since = self.since
        if since is None and not self._given & {"since", "updated_since"}:
            # A run that an asset or a hand has triggered has no data interval.
            since = created or context.get("data_interval_start") or context["dag_run"].run_after
        if since is None:
            return None
        bound = parse_time("since", since)
        store: Any = context.get("task_state_store")  # None before Airflow 3.3
        if self.since is not None and store is not None:
            bound = min(bound, parse_time("since", store.get(SINCE, bound.isoformat())))
            store.set(SINCE, bound.isoformat())
        if bound > datetime.now(UTC):
            self.log.warning("since: %s is in the future; no form counts before", bound.isoformat())
        return bound.isoformat()


def _identified(name: str, given: Any) -> tuple[Any, str | None, str | None]:
    """Return the identifier in what ``job`` or ``property`` is given; when the job was created, and
    where.
    """
    if isinstance(given, str) and given.lstrip().startswith("{"):
        for parse in (json.loads, literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError):
                given = parse(given)
                break
    if hasattr(given, "__iter__") and not isinstance(given, str | Mapping):  # Airflow's is no list
        raise FsmInputError(
            f"{name}: is a list: each map index of a mapped task gives one. Use "
            f".expand({name}=...), or map a task group"
        )
    if not isinstance(given, Mapping):
        return given, None, None
    key = f"{name}ID" if f"{name}ID" in given else "id"
    if given.get(key) is None:
        raise FsmInputError(f"{name}: is a record without {name}ID and id")
    created = place = None
    if name == "job":
        with suppress(FsmInputError):
            place = str(parse_identifier("property", given.get("propertyID")))
        with suppress(FsmInputError):
            created = parse_time(
                "since", given.get("createdOnDateTime") if key == "id" else None
            ).isoformat()
    return given[key], created, place
