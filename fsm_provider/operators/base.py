"""Base classes of the operators: the connection, options, and which failures Airflow retries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.validation import JsonObject, check_arguments, check_found, checked_path

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.sdk.bases.operator import BaseOperatorMeta as _AirflowsType

    from fsm_provider.api.forms import FormFilter
    from fsm_provider.hooks.fsm import FsmHook
else:
    _AirflowsType = type(BaseOperator)

MAX_SHOWN_FAILURES = 20
OptionParsers = dict[str, Callable[[str, Any], Any]]
"""A parser for each option: a function of the option's name and value."""


PATH: OptionParsers = {"path": lambda _, value: checked_path(value)}


class _OperatorType(_AirflowsType):
    """The type of the operators: it names each argument that an operator does not have.

    Airflow checks arguments before a constructor of ours runs.
    """

    __mro__: Any
    takes_a_job: bool

    @property
    def __signature__(cls) -> Any:
        """That of the constructor, which the method below would hide."""
        return signature(partial(cls.__init__, None))  # type: ignore[misc]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except (TypeError, AirflowException):
            from fsm_provider.api.payloads import JOB_FIELDS

            known: set[str] = set()
            for base in cls.__mro__:
                known.update(signature(base.__init__).parameters)
            given = [name for name in kwargs if not name.startswith("_")]  # which are Airflow's
            in_job = JOB_FIELDS if cls.takes_a_job else ()
            with bad_arguments_refused():
                check_arguments(cls.__name__, known, given, in_job)
            raise


class FsmBaseOperator(BaseOperator, metaclass=_OperatorType):
    """Base of the operators.

    A constructor checks the options that are no templates, with :meth:`options`. Airflow renders
    the templates, and calls :meth:`execute`; that calls :meth:`perform`, which an operator
    implements. By then :meth:`options` parses all of them.

    :param fsm_conn_id: the Airflow connection (templated).
    :raises FsmArgumentError: names each argument that the operator does not have.
    """

    ui_color = "#e8f4ea"
    takes_a_job: ClassVar[bool] = False
    option_parsers: ClassVar[OptionParsers] = {}
    """A parser for each option, which may have been a template."""

    def __init__(self, *, fsm_conn_id: str = "fsm_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fsm_conn_id = fsm_conn_id

    def execute(self, context: Context) -> Any:
        with permanent_errors_fail_the_task():
            return self.perform(context)

    def perform(self, context: Context) -> Any:
        """Do the operator's work; what it returns is the task's XCom."""
        raise NotImplementedError

    def options(self, *, literals_only: bool = False) -> JsonObject:
        """Return the parsed options by name.

        :param literals_only: leave out the options that hold a template, as when the DAG is parsed.
        :raises FsmInputError: names the first option that is not valid.
        """
        parsed = {}
        for name, parse in self.option_parsers.items():
            value = getattr(self, name)
            if is_literal(value) or not literals_only:
                parsed[name] = parse(name, value)
        return parsed

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a template.

        Jinja's native environment would also convert text without a template, such as ``"7"``:
        that stays text here. A template of which it makes None is the text ``None``, as in the
        environment that is not native.
        """
        is_text = isinstance(content, str)
        if is_text and is_literal(content):
            return content
        rendered = super().render_template(content, context, jinja_env, seen_oids)
        return "None" if is_text and rendered is None else rendered

    @cached_property
    def hook(self) -> FsmHook:
        from fsm_provider.hooks.fsm import FsmHook

        return FsmHook(self.fsm_conn_id)


class FormFilterArguments:
    """Base of operators that list completed forms.

    The service filters the forms, and each of them is checked here again.

    :param property_id: forms of one property (templated, as all of these).
    :param job_id: forms of one job.
    :param created_since: created at or after this time: ISO 8601 or a datetime, UTC unless it has a
        zone.
    :param updated_since: last updated at or after this time.
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
        """Check the filters when the DAG is parsed, and note which the DAG gives.

        :raises FsmInputError: names the first filter that is not valid.
        """
        self._given = {name for name in self.narrowing if getattr(self, name) is not None}
        self.form_filter(literals_only=True)

    def form_filter(self, *, literals_only: bool = False) -> FormFilter:
        """Return the filter that the arguments describe.

        :param literals_only: leave out the arguments with a template, as when the DAG is parsed.
        :raises FsmInputError: names the first filter that is not valid, or that is None though the
            DAG gives it a value: without it, too many forms would match.
        """
        from fsm_provider.api.forms import ALL_FILTERS, FormFilter

        filters = {name: getattr(self, name) for name in ALL_FILTERS if name in self.narrowing}
        if literals_only:
            literals = {name: value for name, value in filters.items() if is_literal(value)}
            return FormFilter(**literals)
        if getattr(self, "_BaseOperator__from_mapped", False):
            # The constructor may have got None for this map index: the DAG gives those, too.
            mapped = vars(self)["_BaseOperator__init_kwargs"]
            self._given |= mapped.keys() & set(self.narrowing)
        for name in sorted(self._given):
            check_found(name, getattr(self, name))
        return FormFilter(**filters)


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
            # Without its cause, which Airflow would log as a second error.
            raise AirflowFailException(str(error)) from None
        raise


def push_xcom(context: Context, key: str, value: Any) -> None:
    """Push an XCom; do nothing if the operator is called by hand, where there is no task."""
    if "ti" in context:
        context["ti"].xcom_push(key=key, value=value)


def fail_in_part(
    summary: str,
    failures: Sequence[str],
    *,
    all_are_in: str,
    retry: bool,
    transient_error: FsmError | None,
) -> NoReturn:
    """Fail a task that has done part of its work.

    :param failures: one line each, of which the first ``MAX_SHOWN_FAILURES`` are shown.
    :param all_are_in: where all of them are, for people: ``the log``.
    :param retry: whether Airflow may retry the task.
    :param transient_error: the cause, which a retry policy reads.
    """
    lines = [summary, *failures[:MAX_SHOWN_FAILURES]]
    not_shown = len(failures) - MAX_SHOWN_FAILURES
    if not_shown > 0:
        lines.append(f"and {not_shown} more: see {all_are_in}")
    text = "\n".join(lines)
    if retry:
        raise AirflowException(text) from transient_error
    raise AirflowFailException(text)


def is_literal(value: Any) -> bool:
    """Return whether a value has no template and no output of another task, also inside it."""
    if isinstance(value, str):
        has_template = "{{" in value or "{%" in value or "{#" in value
        return not has_template
    if isinstance(value, Mapping):
        return all(is_literal(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(is_literal(item) for item in value)
    return not hasattr(value, "resolve")  # as the output of a task has
