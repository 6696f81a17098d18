"""Sensors that wait for completed forms.

How a deferred one goes back and forth between worker and triggerer is told in
``fsm_provider/polling/waits.py``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from inspect import unwrap
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import PokeReturnValue, conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.forms import ALL_FILTERS, reference_to
from fsm_provider.api.validation import (
    JsonObject,
    parse_choice,
    parse_count,
    parse_flag,
    parse_time,
    pluralize,
)
from fsm_provider.operators.base import (
    FormFilterArguments,
    bad_arguments_refused,
    is_literal,
    permanent_errors_fail_the_task,
)
from fsm_provider.operators.forms import XCOM
from fsm_provider.sensors.base import FsmBaseSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.polling.polls import Criteria, ListingResult
    from fsm_provider.polling.waiting import Waiting
    from fsm_provider.polling.waits import WaitState

NO_TRIGGERER = (
    "no triggerer has polled: does one run (airflow triggerer)? Is execution_timeout over?"
)
CLOCKS_DIFFER = (
    "The service's clock is %+.0f s from Airflow's, so forms count that were created since %s by "
    "the service's: correct the clocks, or the connection's server_timezone"
)
SAID_FROM = 60.0  # seconds between the clocks, from which on the log says so
SINCE = "fsm_since"  # key of the task state store
WORDS = {"property_id": "of property", "job_id": "of job"}
"""How the log names filters; the others have their own name."""
FILTERS = tuple(name for name in ALL_FILTERS if name != "created_since")
MAX_NAMES = 5
MAX_NAME_LENGTH = 80


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
        interval, else the run's ``run_after``; never all history. The last two are moved by what
        the service's clock differs. On Airflow 3.3, a later attempt keeps that of the first poll,
        unless its template gives an earlier one (templated).
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
        self._wait_state: WaitState | None = None  # of a deferrable sensor, since its first poll
        self._clock_offset: float | None = 0.0  # by which ``since`` is moved; None: not known yet
        with bad_arguments_refused():
            self.check_filters()
            parse_choice("xcom", xcom, XCOM)
            self.deferrable: bool = parse_flag("deferrable", deferrable)
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
        """Fix for all polls of this process what is filtered and when forms are enough."""
        from fsm_provider.polling.places import Identified, identified
        from fsm_provider.polling.polls import Criteria

        wanted = self.form_filter()
        minimum = parse_count("minimum_forms", self.minimum_forms)
        self._criteria = Criteria(minimum, tuple(wanted.form_names or ()))
        job = Identified()
        identifiers = {}
        if self.property is not None:
            identifiers["property_id"] = identified("property", self.property).identifier
        if self.job is not None:
            job = identified("job", self.job)
            identifiers["job_id"] = job.identifier
        if self._wait_state is None:
            self.since = self._first_since(job.created, context)
        self._wanted = replace(wanted, form_names=None, created_since=self.since, **identifiers)
        self._sent = self._wanted  # to the service, which may be asked for more than is wanted
        if self._clock_offset:
            self._move_since(self._clock_offset)
        # What a timeout says if no poll of this process succeeds.
        known = None if self._wait_state is None else self._wait_state.known
        self._missing = missing_forms(self._criteria, dict(known or ()))
        if known is None:
            self._missing["text"] = "no poll has succeeded"
        # For people: also the property that the job's record shows.
        self._shown_filters: Mapping[str, object] = self._wanted.as_dict()
        if job.property_id is not None:
            self._shown_filters = {"property_id": job.property_id, **self._shown_filters}
        return _described(self._criteria, self._shown_filters)

    def poll(self) -> PokeReturnValue:
        from fsm_provider.polling.waits import WaitState

        if self._wait_state is None and self.deferrable:
            service = self.hook.client.settings.service
            self._wait_state = WaitState(service, self._began, self._deadline, self.since)
        listing = self._list()
        if self._clock_offset is None:
            self._clock_offset = listing.clock_offset
            if listing.clock_offset:
                self._move_since(listing.clock_offset)
                if self._is_first_process and abs(listing.clock_offset) > SAID_FROM:
                    since = self._wanted.created_since
                    self.log.warning(CLOCKS_DIFFER, listing.clock_offset, since)
                listing = self._list()
        forms = {form.id: form for form in listing.forms}  # one may be on two pages
        counted = [form for form in forms.values() if self._criteria.counts(form.name)]
        names_by_id = {form.id: form.name for form in counted}
        if self._criteria.are_met(names_by_id):
            field = "id" if self.xcom == "ids" else "reference"
            result = [getattr(form, field) for form in counted]
            return PokeReturnValue(is_done=True, xcom_value=result)
        others = []
        is_whole_account = self._wanted.property_id is None and self._wanted.job_id is None
        if not is_whole_account:
            others = [form.name for form in forms.values() if form.id not in names_by_id]
        self._missing = missing_forms(self._criteria, names_by_id, others)
        if self._wait_state is not None:
            self._wait_state = self._wait_state.after_poll(
                listing.service, names_by_id, listing.started
            )
        return PokeReturnValue(is_done=False)

    def _list(self) -> ListingResult:
        from fsm_provider.api.models import Form
        from fsm_provider.polling.polls import list_once

        client = self.hook.client
        reference_for = Form.as_json if self.xcom == "full" else reference_to
        return self.read(
            lambda: list_once(client, self._wanted, self.query_params, reference_for, self._sent)
        )

    def _move_since(self, offset: float) -> None:
        """Read ``since``, which Airflow's clock has given, by the service's."""
        bound = parse_time("since", self.since) + timedelta(seconds=offset)
        self._wanted = replace(self._wanted, created_since=bound)
        # A service may only seem ahead, as its zone is not server_timezone: from the later bound it
        # would leave out forms that count.
        if offset < 0:
            self._sent = self._wanted

    def defer_if_wanted(self, pause: float) -> None:
        from fsm_provider.triggers.forms import MIN_DEFERRAL, TIMEOUT_GRACE, FsmFormTrigger

        state = self._wait_state
        now = time.time()
        if state is None or now + MIN_DEFERRAL > state.deadline:
            return
        if self._failing_since is not None:
            state = state.after_failure(self._failing_since)
        self.defer(
            trigger=FsmFormTrigger(
                fsm_conn_id=self.fsm_conn_id,
                filters=self._wanted.as_dict(),
                minimum_forms=self._criteria.minimum_forms,
                form_names=list(self._criteria.form_names),
                query_params=self.query_params,
                poll_interval=self.poke_interval,
                failure_tolerance=self.failure_tolerance,
                wait=asdict(
                    replace(state, clock_offset=self._clock_offset, paused_until=now + pause)
                ),
            ),
            method_name="execute_complete",  # no method: resume_execution knows it by this name
            kwargs=self._waiting(state).as_kwargs(),
            timeout=timedelta(seconds=state.deadline - now + TIMEOUT_GRACE),
        )

    def _waiting(self, state: WaitState) -> Waiting:
        from fsm_provider.polling.waiting import Waiting

        place = {name: str(value) for name, value in self._shown_filters.items()}
        bound = self._wanted.created_since or self._wanted.updated_since
        return Waiting(
            fsm_conn_id=self.fsm_conn_id,
            job_id=place.get("job_id"),
            property_id=place.get("property_id"),
            missing=self._missing["form_names"],
            found=sorted({name for _, name in state.known or ()}),
            text=self._missing["text"],
            since=state.began,
            until=state.deadline,
            polled_at=state.polled_at,
            problem=self._problem,
            forms_since=bound.timestamp() if isinstance(bound, datetime) else None,
        )

    def resume_execution(
        self, next_method: str, next_kwargs: JsonObject | None, context: Context
    ) -> Any:
        """Poll again after the trigger's event, as after any other poll."""
        from fsm_provider.polling.waits import WaitState

        arguments = next_kwargs or {}
        is_timeout = "timeout" in str(arguments.get("error")).lower()
        if next_method == "execute_complete":
            event = arguments.get("event") or {}
            with permanent_errors_fail_the_task():
                state = WaitState.from_json(event.get("wait", {}), self.timeout)
            self._wait_state = state
            self._began = state.began
            self._deadline = state.deadline
            self._failing_since = state.failing_since
            self._clock_offset = state.clock_offset
            self.since = state.since
        elif next_method == "__fail__" and is_timeout:
            # Airflow has ended the deferral: the trigger, if it runs, ends before.
            self._hint = NO_TRIGGERER
            self._began = time.time() - self.timeout
            self._deadline = time.time()
        else:
            return super().resume_execution(next_method, next_kwargs, context)
        self._has_begun = True
        self.timeout: float = max(self._deadline - time.time(), 0.0)
        # Airflow lets only a task runner call execute.
        return unwrap(FsmBaseSensor.execute)(self, context)

    def _first_since(self, created: str | None, context: Context) -> str | None:
        """Return the bound, as text; None: ``updated_since`` is given alone.

        The sensor stores a bound that was given, since Airflow 3.3: of the stored one and that of a
        later attempt, whose template may give another, the earlier one counts.

        :param created: when the job was created, if its record shows it.
        """
        since = self.since
        if since is None and "updated_since" in self._given:
            return None
        if since is None:
            since = created
        if since is None:
            since = _start_of_run(context)
            self._clock_offset = (
                None  # the start is by Airflow's clock: a listing shows how far off
            )
        bound = parse_time("since", since)
        store: Any = context.get("task_state_store")  # None before Airflow 3.3
        if self.since is not None and store is not None:
            stored = parse_time("since", store.get(SINCE, bound.isoformat()))
            bound = min(bound, stored)
            store.set(SINCE, bound.isoformat())
        if bound > datetime.now(UTC):
            self.log.warning("since: %s is in the future; no form counts before", bound.isoformat())
        return bound.isoformat()


def _start_of_run(context: Context) -> Any:
    """Return the start of the run's data interval, or else of the run."""
    # A run that an asset or a hand has triggered has no data interval.
    start = context.get("data_interval_start")
    if start is None and "dag_run" not in context:
        raise FsmInputError("since: is missing: only a task has a run that gives it")
    return start or context["dag_run"].run_after


def _described(criteria: Criteria, filters: Mapping[str, object]) -> str:
    """Return what a sensor waits for, in words."""
    names = criteria.form_names
    minimum = criteria.minimum_forms
    forms = "a form" if minimum == 1 else f"{minimum} forms"
    if names and minimum <= len(names):
        forms = _listed(names)
    elif names:
        forms += f" named {_listed(names)}"
    parts = [forms]
    for name, value in filters.items():
        words = WORDS.get(name, name.replace("_", " "))
        parts.append(f"{words} {value}")
    return ", ".join(parts)


def missing_forms(
    criteria: Criteria, names_by_id: Mapping[int, str], others: Collection[str] = ()
) -> JsonObject:
    """Return the XCom of a timeout.

    :param names_by_id: the forms that count.
    :param others: the names of the other forms that the listing has shown.
    """
    wanted = list(dict.fromkeys(criteria.form_names))
    present = list(names_by_id.values())
    missing = [name for name in wanted if name not in present]
    needed = max(criteria.minimum_forms, len(wanted))
    text = f"{len(present)} of {pluralize(needed, 'form')}"
    if missing:
        text += f": {_listed(missing)} {_is_or_are(missing)} missing"
    if present and wanted:
        text += f"; there {_is_or_are(present)} {_counted(present)}"
    if others:
        text += f"; {pluralize(len(others), 'other form')} since then: {_counted(others)}"
    return {"text": text, "form_names": missing, "found": list(names_by_id)}


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(name[:MAX_NAME_LENGTH] for name in list(names)[:MAX_NAMES])
    if len(names) <= MAX_NAMES:
        return shown
    return f"{shown} and {len(names) - MAX_NAMES} more"


def _is_or_are(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _counted(names: Iterable[str]) -> str:
    """List names, the most frequent first and with their numbers."""
    counts = Counter(map(_printable, names))
    texts = []
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        number = counts[name]
        texts.append(name if number == 1 else f"{name} ({number})")
    return _listed(texts)


def _printable(name: str) -> str:
    """Return a name, as Python writes it if it cannot be printed as it is."""
    if not name:
        return "(no name)"
    if not name.isprintable():
        return repr(name)
    return name
