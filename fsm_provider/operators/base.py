"""Base classes of the operators: the connection, options, and which failures Airflow retries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from inspect import signature
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.form_filter import FORM_FILTERS, FormFilter
from fsm_provider.api.metrics import counted_write
from fsm_provider.api.validation import (
    close_names,
    parse_choice,
    parse_headers,
    parse_path,
    parse_text,
    refuse_none,
)
from fsm_provider.compat import arguments_for_mapped_task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.forms import FormsXCom
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.writes.ledger import Ledger
    from fsm_provider.writes.write import Write

MAX_SHOWN_FAILURES = 20


class FsmBaseOperator(BaseOperator):
    """Base of the operators.

    :param fsm_conn_id: the Airflow connection.
    """

    ui_color = "#e8f4ea"

    def __init__(self, *, fsm_conn_id: str = "fsm_default", **kwargs: Any) -> None:
        try:
            super().__init__(**kwargs)
        except (TypeError, AirflowException):
            if unknown := _unknown_arguments(type(self), kwargs):
                raise FsmArgumentError(unknown) from None
            raise
        self.fsm_conn_id = fsm_conn_id

    @classmethod
    def argument_with(cls, name: str) -> str | None:
        """Return the argument that has a field of this name, None if there is none."""
        return None

    @cached_property
    def hook(self) -> FsmHook:
        """The hook, imported only when a task runs."""
        from fsm_provider.hooks.fsm import FsmHook

        return FsmHook(self.fsm_conn_id)


def _unknown_arguments(operator: type[FsmBaseOperator], given: Iterable[str]) -> str:
    """Describe the arguments that an operator does not have, with those that are close."""
    constructors = [vars(one)["__init__"] for one in operator.__mro__ if "__init__" in vars(one)]
    known = {name for one in constructors[:-1] for name in signature(one).parameters} - {"self", "kwargs"}
    problems = []
    for name in sorted(set(given) - known):
        hint = ""
        if place := operator.argument_with(name):
            hint = f": it belongs in {place}"
        elif close := close_names(name, known):
            hint = f": did you mean {close}?"
        problems.append(f"{name}: is not an argument of {operator.__name__}{hint}")
    return "; ".join(problems)


OptionParsers = dict[str, Callable[[str, Any], Any]]


class FsmOptionsOperator(FsmBaseOperator):
    """Base of operators with options that are checked, as they may be templates."""

    option_parsers: ClassVar[OptionParsers] = {}
    """A parser for each option: takes its name and value, returns the parsed value or raises."""

    def options(self, *, only_known: bool = False) -> dict[str, Any]:
        """Parse the options.

        :param only_known: leave out options that hold a template, as they do when the DAG is parsed.
        :raises FsmInputError: naming the bad option.
        """
        given = {name: getattr(self, name) for name in self.option_parsers}
        return {
            name: self.option_parsers[name](name, value)
            for name, value in given.items()
            if is_known(value) or not only_known
        }


def once_options(again: str) -> OptionParsers:
    """Return the parsers of the options of :class:`FsmOneWriteOperator`.

    :param again: what the options call to send a write again.
    """
    return {
        "once_per": partial(parse_choice, choices=("run", "key")),
        "if_uncertain": partial(parse_choice, choices=("fail", again)),
        "if_already_done": partial(parse_choice, choices=("reuse", again)),
        "headers": parse_headers,
    }


class FsmOneWriteOperator(FsmOptionsOperator):
    """Base of operators that send one or more writes to the service, each once.

    The ledger is in Airflow, for each task instance of each run; or, if the connection has ``state_conn_id``,
    in a SQL database, which mapped tasks of a run share.

    :param once_per: what sends a write once: each ``run`` of the task; or each ``key``, whatever run, DAG or
        Airflow asks, which needs the database, and a key for each write (templated).
    :param if_uncertain: what to do if a write was sent without learning the outcome.
    :param if_already_done: what to do if a write was done before the task was cleared.
    :param headers: further headers of each request.
    """

    def __init__(
        self,
        *,
        once_per: str = "run",
        if_uncertain: str = "fail",
        if_already_done: str = "reuse",
        headers: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.once_per = once_per
        self.if_uncertain = if_uncertain
        self.if_already_done = if_already_done
        self.headers = headers

    def options(self, *, only_known: bool = False) -> dict[str, Any]:
        """Parse the options; see :meth:`FsmOptionsOperator.options`."""
        options = super().options(only_known=only_known)
        if options.get("once_per") == "key" and options.get("if_already_done", "reuse") != "reuse":
            raise FsmInputError(
                "if_already_done: should be 'reuse' with once_per='key', where nothing is sent again"
            )
        return options

    def check_keys(self, keys: Mapping[str, Any]) -> None:
        """Check that each write has a key, if it is sent once for each.

        :param keys: by the name of the argument.
        :raises FsmInputError: naming each that is missing, or one that its template has not found.
        """
        if self.once_per != "key":
            return
        if missing := [name for name, key in keys.items() if key in (None, "")]:
            raise FsmInputError(f"{', '.join(missing)}: is missing; once_per='key' needs it")
        for name, key in keys.items():
            if is_known(key):
                parse_text(name, key)

    def ledger(self, context: Context) -> Ledger:
        """Open the task's ledger."""
        from fsm_provider.writes.ledgers import open_ledger

        options = self.options()
        return open_ledger(
            context,
            self.hook,
            once_per=options["once_per"],
            repeat_uncertain=options["if_uncertain"] != "fail",
            repeat_done=options["if_already_done"] != "reuse",
        )

    @cached_property
    def _stopping(self) -> Event:
        return Event()

    def write_once(
        self,
        ledger: Ledger,
        write: Write,
        send: Callable[[FsmHook, Mapping[str, str]], Any],
        keep: Callable[[Any], Any] = lambda result: result,
        find: Callable[[FsmHook], Any] | None = None,
    ) -> Any:
        """Return the result of a write; send it unless the ledger knows its result.

        The connection is read before the intent is stored. See :meth:`Ledger.run_once`.

        :param send: called with the hook and further headers.
        """
        hook = self.hook
        hook.sleep = partial(ledger.wait, stopping=self._stopping)
        ledger.load([write])
        ledger.expect([write])
        with counted_write(hook.metrics) as created:
            return ledger.run_once(
                write,
                lambda: created(send(hook, ledger.headers())),
                prepare=lambda: hook.client,
                keep=keep,
                find=partial(find, hook) if find else None,
                stopping=self._stopping,
            )

    def on_kill(self) -> None:
        """End a wait before a request; a request in flight is finished and recorded."""
        # Airflow calls this in a signal handler of the waiting thread, which may hold the event's lock.
        Thread(target=self._stopping.set).start()


class FsmFormFilterOperator(FsmBaseOperator):
    """Base of operators that list completed forms. Each form is also checked here against the filters.

    :param property_id: forms of one property.
    :param job_id: forms of one job.
    :param created_since: created at or after this time: ISO 8601 or a datetime, UTC unless it has a zone.
    :param updated_since: last updated at or after this time, as for ``created_since``.
    :param form_category: category of the form, checked by the service only.
    :param form_name_id: identifier of the form's name, checked by the service only.
    :param created_by_type: type of the creator.
    :param created_by_id: identifier of the creator.
    :param query_params: query parameters that the specification does not show.
    """

    template_fields: tuple[str, ...] = ("fsm_conn_id", *FORM_FILTERS, "query_params")
    narrowing: ClassVar[tuple[str, ...]] = tuple(FORM_FILTERS)
    """The arguments that narrow the set of matching forms."""

    def __init__(
        self,
        *,
        property_id: int | str | None = None,
        job_id: int | str | None = None,
        created_since: datetime | str | None = None,
        updated_since: datetime | str | None = None,
        form_category: str | None = None,
        form_name_id: int | str | None = None,
        created_by_type: str | None = None,
        created_by_id: int | str | None = None,
        query_params: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.property_id = property_id
        self.job_id = job_id
        self.created_since = created_since
        self.updated_since = updated_since
        self.form_category = form_category
        self.form_name_id = form_name_id
        self.created_by_type = created_by_type
        self.created_by_id = created_by_id
        self.query_params = query_params
        self._given = {name for name in FORM_FILTERS if getattr(self, name) is not None}
        with bad_arguments_are_refused():
            self.form_filter(only_known=True)

    def form_filter(self, *, only_known: bool = False) -> FormFilter:
        """Return the filter that the arguments describe.

        :param only_known: leave out arguments that hold a template, as they do when the DAG is parsed.
        :raises FsmInputError: naming the argument that has the wrong type.
        """
        if not only_known:
            self._refuse_none()
        given = {name: getattr(self, name) for name in FORM_FILTERS}
        return FormFilter(
            **{name: value for name, value in given.items() if not only_known or is_known(value)}
        )

    def _refuse_none(self) -> None:
        """Check that every given filter still has a value: without it, too many forms would match.

        :raises FsmInputError: naming the argument that a template or a task's output has made None.
        """
        mapped = arguments_for_mapped_task(self).intersection(self.narrowing)
        for name in sorted(self._given | mapped):
            refuse_none(name, getattr(self, name))


class FsmFormResultOperator(FsmFormFilterOperator):
    """Base of operators that pass completed forms to other tasks; see :class:`FsmFormFilterOperator`.

    :param xcom: what XCom holds of each form: ``references`` (identifiers, name, times), ``ids``, or
        ``full`` records, with the URL of the PDF: it may be signed, and XCom is clear text.
    """

    def __init__(self, *, xcom: FormsXCom = "references", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.xcom = xcom
        with bad_arguments_are_refused():
            parse_choice("xcom", xcom, ("references", "ids", "full"))


class FsmArgumentError(FsmInputError, AirflowFailException):
    """A bad argument. It breaks the import of the DAG, or fails a mapped task without a retry."""


@contextmanager
def bad_arguments_are_refused() -> Iterator[None]:
    """Raise :class:`FsmArgumentError` for bad input; wraps the checks of a constructor."""
    try:
        yield
    except FsmInputError as error:
        raise FsmArgumentError(error.message) from None


@contextmanager
def permanent_errors_fail_the_task() -> Iterator[None]:
    """Fail the task without a retry for permanent errors; leave the others to Airflow's retries.

    The text of a permanent error says all; with its cause, Airflow would log it twice.
    """
    try:
        yield
    except FsmError as error:
        if error.permanent:
            raise AirflowFailException(str(error)) from None
        raise


def fail_in_part(
    summary: str, failures: Sequence[str], *, all_are_in: str, retry: bool, passing_error: FsmError | None
) -> NoReturn:
    """Fail a task that has done part of its work.

    :param failures: one line each; the first ``MAX_SHOWN_FAILURES`` are shown.
    :param all_are_in: where to find all of them.
    :param retry: whether Airflow may retry the task.
    :param passing_error: an error that another attempt may not meet, for a retry policy.
    :raises AirflowException: if ``retry``.
    :raises AirflowFailException: if not.
    """
    lines = [summary, *failures[:MAX_SHOWN_FAILURES]]
    if len(failures) > MAX_SHOWN_FAILURES:
        lines.append(f"and {len(failures) - MAX_SHOWN_FAILURES} more: see {all_are_in}")
    if retry:
        raise AirflowException("\n".join(lines)) from passing_error
    raise AirflowFailException("\n".join(lines))


def is_known(value: Any) -> bool:
    """Return whether a value is already what it will be when the task runs: no template, no XCom."""
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, Mapping):
        return all(map(is_known, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_known, value))
    return not hasattr(value, "resolve")


def check_path_if_known(path: Any) -> None:
    """Check a path, unless it holds a template.

    :raises FsmInputError: if it would lead elsewhere, or contains a query.
    """
    if is_known(path):
        parse_path(path)
