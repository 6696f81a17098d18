"""What the operators share: the connection, and which failures Airflow is to retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.inputs import read_choice

if TYPE_CHECKING:
    from fsm_provider.api.forms import FormFilter, FormsXCom
    from fsm_provider.hooks.fsm import FsmHook

SHOWN_FAILURES = 20


class FsmBaseOperator(BaseOperator):
    """Base of the operators.

    :param fsm_conn_id: the Airflow connection.
    """

    ui_color = "#e8f4ea"

    def __init__(self, *, fsm_conn_id: str = "fsm_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fsm_conn_id = fsm_conn_id

    @cached_property
    def hook(self) -> FsmHook:
        """The hook, imported only in a task that runs."""
        from fsm_provider.hooks.fsm import FsmHook

        return FsmHook(self.fsm_conn_id)


Readers = dict[str, Callable[[str, Any], Any]]


class FsmWriteOperator(FsmBaseOperator):
    """Base of what writes, to the service or a storage."""

    readers: ClassVar[Readers] = {}
    """What reads each option, or refuses it: name and value to value."""

    def options(self, *, only_known: bool = False) -> dict[str, Any]:
        """Read the options.

        :param only_known: leave out those that hold a template, as when the DAG is parsed.
        :raises FsmInputError: naming the option.
        """
        given = {name: getattr(self, name) for name in self.readers}
        return {
            name: self.readers[name](name, value)
            for name, value in given.items()
            if is_known(value) or not only_known
        }


FORM_FILTERS = (
    "property_id",
    "job_id",
    "created_since",
    "updated_since",
    "form_category",
    "form_name_id",
    "created_by_type",
    "created_by_id",
)


class FsmFormFilterOperator(FsmBaseOperator):
    """Base of what lists completed forms (4.3). Each form is checked against the filters here too.

    :param property_id: forms of one property.
    :param job_id: forms of one job.
    :param created_since: created at or after; ISO 8601 or a time, in UTC where it has no zone.
    :param updated_since: last updated at or after; likewise.
    :param form_category: category of the form; only the service can check it.
    :param form_name_id: identifier of the form's name; only the service can check it.
    :param created_by_type: type of the creator.
    :param created_by_id: identifier of the creator.
    :param query_params: query parameters that the specification does not show.
    """

    template_fields: tuple[str, ...] = ("fsm_conn_id", *FORM_FILTERS, "query_params")

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
        with bad_arguments_are_refused():
            self.form_filter(only_known=True)

    def form_filter(self, *, only_known: bool = False) -> FormFilter:
        """Make the filter of the arguments.

        :param only_known: leave out those that hold a template, as when the DAG is parsed.
        :raises FsmInputError: naming the argument that is not of its type.
        """
        from fsm_provider.api.forms import FormFilter

        given = {name: getattr(self, name) for name in FORM_FILTERS}
        return FormFilter(
            **{name: value for name, value in given.items() if not only_known or is_known(value)}
        )


class FsmFormsToXComOperator(FsmFormFilterOperator):
    """Base of what gives completed forms to other tasks, found by :class:`FsmFormFilterOperator`.

    :param xcom: what becomes of each form in XCom: ``references`` (identifiers, name, times), ``ids``,
        or ``full`` records, which hold the address of the PDF: it may be signed, and XCom is clear text.
    """

    def __init__(self, *, xcom: FormsXCom = "references", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.xcom = xcom
        with bad_arguments_are_refused():
            read_choice("xcom", xcom, ("references", "ids", "full"))


class FsmArgumentError(FsmInputError, AirflowFailException):
    """An argument that is refused: when the DAG is parsed, or when a mapped task starts, without a retry."""


@contextmanager
def bad_arguments_are_refused() -> Iterator[None]:
    """Raise :class:`FsmArgumentError` for bad input; around what a constructor checks."""
    try:
        yield
    except FsmInputError as error:
        raise FsmArgumentError(error.message) from None


@contextmanager
def permanent_errors_fail_the_task() -> Iterator[None]:
    """Fail the task without a retry for what no retry could mend; leave the rest to Airflow's retries."""
    try:
        yield
    except FsmError as error:
        if error.permanent:
            raise AirflowFailException(str(error)) from error
        raise


def fail_in_part(
    summary: str, failures: Sequence[str], *, all_are_in: str, retry: bool, passing_error: FsmError | None
) -> NoReturn:
    """Fail a task that has done a part of its work: with a retry where that could help.

    :param failures: a line each, of which the first are shown.
    :param all_are_in: where to find all of them.
    :param passing_error: one that another try might not meet, for a retry policy.
    """
    lines = [summary, *failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        lines.append(f"and {len(failures) - SHOWN_FAILURES} more: see {all_are_in}")
    if retry:
        raise AirflowException("\n".join(lines)) from passing_error
    raise AirflowFailException("\n".join(lines))


def is_known(value: Any) -> bool:
    """Tell whether a value is what it will be when the task runs: no template, no XCom."""
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, Mapping):
        return all(map(is_known, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_known, value))
    return value is None or isinstance(value, int | float) or not hasattr(value, "resolve")
