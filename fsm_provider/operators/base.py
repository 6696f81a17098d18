"""Base classes of the operators: the connection, options, and which failures Airflow retries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.validation import parse_path, refuse_none

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.forms import FormFilter
    from fsm_provider.hooks.fsm import FsmHook

MAX_SHOWN_FAILURES = 20
OTHER_NAMES = {"created_since": "since", "data": "json", "http_conn_id": "fsm_conn_id"}
OptionParsers = dict[str, Callable[[str, Any], Any]]
PATH: OptionParsers = {"path": lambda _, path: parse_path(path)}


class FsmBaseOperator(BaseOperator):
    """Base of the operators.

    :param fsm_conn_id: the Airflow connection (templated).
    """

    ui_color = "#e8f4ea"
    takes_a_job: ClassVar[bool] = False
    option_parsers: ClassVar[OptionParsers] = {}
    """A parser for each option, called with its name and its value, which may have been a template.
    """

    def __init__(self, *, fsm_conn_id: str = "fsm_default", **kwargs: Any) -> None:
        try:
            super().__init__(**kwargs)
        except (TypeError, AirflowException):
            if unknown := _unknown_arguments(type(self), kwargs):
                raise FsmArgumentError(unknown) from None
            raise
        self.fsm_conn_id = fsm_conn_id

    def execute(self, context: Context) -> Any:
        with permanent_errors_fail_the_task():
            return self.perform(context)

    def perform(self, context: Context) -> Any:
        raise NotImplementedError

    def options(self, *, literals_only: bool = False) -> dict[str, Any]:
        """Parse the options; ``literals_only`` leaves out those that hold a template when the DAG is
        parsed.
        """
        return {
            name: parse(name, getattr(self, name))
            for name, parse in self.option_parsers.items()
            if is_literal(getattr(self, name)) or not literals_only
        }

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a template; in a native environment, too, text without one stays so, and None is
        text.
        """
        if isinstance(content, str) and is_literal(content):
            return content
        rendered = super().render_template(content, context, jinja_env, seen_oids)
        return "None" if isinstance(content, str) and rendered is None else rendered

    @cached_property
    def hook(self) -> FsmHook:
        from fsm_provider.hooks.fsm import FsmHook

        return FsmHook(self.fsm_conn_id)


def _unknown_arguments(operator: type[FsmBaseOperator], given: Iterable[str]) -> str:
    from difflib import get_close_matches

    from fsm_provider.api.payloads import JOB_FIELDS

    constructors = [vars(one)["__init__"] for one in operator.__mro__ if "__init__" in vars(one)]
    known = {name for one in constructors[:-1] for name in signature(one).parameters} - {
        "self",
        "kwargs",
    }
    problems = []
    for name in sorted(set(given) - known):
        close = get_close_matches(OTHER_NAMES.get(name, name), known, n=1, cutoff=0.7)
        hint = f": did you mean {close[0]}?" if close else ""
        if operator.takes_a_job and name in JOB_FIELDS:
            hint = ": it belongs in job"
        problems.append(f"{name}: is not an argument of {operator.__name__}{hint}")
    return "; ".join(problems)


class FormFilterArguments:
    """Base of operators that list completed forms. Each form is also checked here against the
    filters.

    :param property_id: forms of one property (templated, as all of these).
    :param job_id: forms of one job.
    :param created_since: created at or after this time: ISO 8601 or a datetime, UTC unless it has a
        zone.
    :param updated_since: last updated at or after this time, as for ``created_since``.
    :param form_category: category of the form, checked by the service only.
    :param form_name_id: identifier of the form's name, checked by the service only.
    :param created_by_type: type of the creator.
    :param created_by_id: identifier of the creator.
    :param form_names: only forms with one of these names, checked here: a name, or a list.
    :param query_params: query parameters that the specification does not show.
    """

    narrowing: ClassVar[tuple[str, ...]]
    """The arguments that narrow the set of matching forms."""

    def check_filters(self) -> None:
        """Check the filters when the DAG is parsed, and note which are given."""
        self._given = {name for name in self.narrowing if getattr(self, name) is not None}
        self.form_filter(literals_only=True)

    def form_filter(self, *, literals_only: bool = False) -> FormFilter:
        """Return the filter that the arguments describe; ``literals_only`` leaves out those with a
        template.
        """
        from fsm_provider.api.forms import ALL_FILTERS, FormFilter

        given = {name: getattr(self, name) for name in ALL_FILTERS if name in self.narrowing}
        if literals_only:
            return FormFilter(**{name: value for name, value in given.items() if is_literal(value)})
        if getattr(self, "_BaseOperator__from_mapped", False):  # what it maps may be None
            self._given |= vars(self)["_BaseOperator__init_kwargs"].keys() & {*self.narrowing}
        for name in sorted(self._given):  # without a value, too many forms would match
            refuse_none(name, getattr(self, name))
        return FormFilter(**given)


class FsmArgumentError(FsmInputError, AirflowFailException):
    """A bad argument. It breaks the import of the DAG, or fails a mapped task without a retry."""


@contextmanager
def bad_arguments_refused() -> Iterator[None]:
    """Raise :class:`FsmArgumentError` for bad input; wraps the checks of a constructor."""
    try:
        yield
    except FsmInputError as error:
        raise FsmArgumentError(error.message) from None


@contextmanager
def permanent_errors_fail_the_task() -> Iterator[None]:
    """Fail the task without a retry for permanent errors; leave the others to Airflow's retries."""
    try:
        yield
    except FsmError as error:
        if error.permanent:
            raise AirflowFailException(
                str(error)
            ) from None  # with its cause, Airflow would log it twice
        raise


def fail_in_part(
    summary: str,
    failures: Sequence[str],
    *,
    all_are_in: str,
    retry: bool,
    passing_error: FsmError | None,
) -> NoReturn:
    """Fail a task that has done part of its work.

    :param failures: one line each; the first ``MAX_SHOWN_FAILURES`` are shown, ``all_are_in`` has
        the rest.
    :param passing_error: an error that another attempt may not meet, for a retry policy.
    """
    lines = [summary, *failures[:MAX_SHOWN_FAILURES]]
    if len(failures) > MAX_SHOWN_FAILURES:
        lines.append(f"and {len(failures) - MAX_SHOWN_FAILURES} more: see {all_are_in}")
    if retry:
        raise AirflowException("\n".join(lines)) from passing_error
    raise AirflowFailException("\n".join(lines))


def is_literal(value: Any) -> bool:
    """Return whether a value is already what it will be when the task runs: no template, no XCom."""
    if isinstance(value, str):
        return not any(mark in value for mark in ("{{", "{%", "{#"))
    if isinstance(value, Mapping):
        return all(map(is_literal, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_literal, value))
    return not hasattr(value, "resolve")
