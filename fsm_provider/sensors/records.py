"""A sensor that waits for records of any path, such as a job with a status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import PokeReturnValue

from fsm_provider.api.errors import FsmInputError, FsmResponseError
from fsm_provider.api.validation import (
    MISSING_AS_TEXT,
    JsonObject,
    parse_count,
    parse_flag,
    parse_names,
    parse_params,
    pluralize,
)
from fsm_provider.operators.base import PATH, OptionParsers, bad_arguments_refused
from fsm_provider.sensors.base import FsmBaseSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

MAX_SHOWN_FIELDS = 10
LACKS_FIELD = (
    "predicate: raised KeyError %s. The record has %s: where it may lack a field, use "
    "record.get(%s)"
)


def _parse_query(name: str, value: Any) -> JsonObject:
    query = parse_params(name, value)
    for parameter, text in query.items():  # without one, too many records would count
        if text is None or text in MISSING_AS_TEXT:
            raise FsmInputError(
                f"query_params: {parameter} is {text}: its template has found nothing"
            )
    return query


class FsmRecordSensor(FsmBaseSensor):
    """Wait for records of any path, e.g. for a job whose status has changed.

    Succeeds when a function of the DAG file, the predicate, accepts at least ``minimum_records``
    records. Use ``mode="reschedule"`` for a long wait; the sensor is not deferrable, because a
    triggerer runs no code of a DAG.

    :param path: of a listing, or of one record with ``single``; begins with ``/`` and holds no
        query (templated).
    :param predicate: called with each record at each poll; returns True if it counts, else False.
        Anything else fails the task without a retry. What it raises is raised.
    :param query_params: query parameters, sent again with each page (templated).
    :param single: the path returns one record instead of a listing.
    :param minimum_records: number of records, at least 1 (templated).
    :param fields: the fields to return of each record that counts, None if it lacks one. The first
        one identifies a record, so each record has to have it, as an integer or text (templated).
    :param fsm_conn_id: the Airflow connection (templated).

    For other arguments see Airflow's ``BaseSensorOperator``.

    :return: ``fields`` of each record that counts, as a list of dictionaries.
    """

    template_fields: tuple[str, ...] = (
        "fsm_conn_id",
        "path",
        "query_params",
        "minimum_records",
        "fields",
    )
    option_parsers: ClassVar[OptionParsers] = {
        **PATH,
        "query_params": _parse_query,
        "minimum_records": parse_count,
        "fields": parse_names,
    }

    def __init__(
        self,
        *,
        path: str,
        predicate: Callable[[JsonObject], bool],
        query_params: dict[str, Any] | None = None,
        single: bool = False,
        minimum_records: int | str = 1,
        fields: str | list[str] | tuple[str, ...] = ("id",),
        failure_tolerance: timedelta | float = 600.0,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(failure_tolerance=failure_tolerance, fsm_conn_id=fsm_conn_id, **kwargs)
        self.path = path
        self.predicate = predicate
        self.query_params = query_params
        self.minimum_records = minimum_records
        self.fields = fields
        with bad_arguments_refused():
            self.single: bool = parse_flag("single", single)
            if not callable(predicate):
                raise FsmInputError(
                    f"predicate: should be a function, not {type(predicate).__name__}"
                )
            self.options(literals_only=True)

    def begin(self, context: Context) -> str:
        self._options = self.options()
        number = self._options["minimum_records"]
        if self.single and number > 1:
            raise FsmInputError(
                f"minimum_records: {number} is more than the one record of single=True"
            )
        records = "a record" if number == 1 else f"{number} records"
        name = getattr(self.predicate, "__name__", type(self.predicate).__name__)
        return f"{records} of {self.path} that {name} accepts"

    def poll(self) -> PokeReturnValue:
        minimum = self._options["minimum_records"]
        names = self._options["fields"]
        latest: dict[str, JsonObject | None] = {}  # a record may have moved to a later page
        for index, record in enumerate(self._records()):
            key = self._identifier(record, names[0], index)
            latest[key] = None
            if self._accepts(record):
                latest[key] = {name: record.get(name) for name in names}
        accepted = [fields for fields in latest.values() if fields is not None]
        text = f"{len(accepted)} of {pluralize(minimum, 'record')}, of {len(latest)} at {self.path}"
        self._missing = {"text": text, "found": accepted}
        return PokeReturnValue(is_done=len(accepted) >= minimum, xcom_value=accepted)

    def _records(self) -> Iterator[Any]:
        params = self._options["query_params"]
        client = self.hook.client
        if self.single:
            yield self.read(lambda: client.request("GET", self.path, params))
            return
        pages = client.pages(self.path, params=params).pages_with_warning()
        while True:
            page = self.read(lambda: next(pages, None))
            if page is None:
                return
            yield from page.data

    def _accepts(self, record: JsonObject) -> bool:
        """Return whether the predicate accepts a record.

        :raises FsmInputError: if it returns no bool: a coroutine, or any text, would be true.
        """
        try:
            answer = self.predicate(record)
        except KeyError as error:
            self.log.error(LACKS_FIELD, error, _fields_of(record), error)
            raise
        if isinstance(answer, bool):
            return answer
        answer_type = type(answer)
        shown = answer_type.__name__
        if answer_type.__module__ != "builtins":  # numpy has a bool of its own
            shown = f"{answer_type.__module__}.{shown}"
        if isinstance(answer, int | float | str | None):
            shown += f" {answer!r:.12}"  # no more of it, as it may be a secret
        raise FsmInputError(
            f"predicate: returned {shown}, not True or False: let it return a comparison, such as "
            "record.get('status') == 'Done', or bool(...) of it, and be no async function"
        )

    def _identifier(self, record: Any, field: str, index: int) -> str:
        """Return what identifies a record, as text: the service has numbers as text, too."""
        where = f"index {index} of GET {self.path}"
        if not isinstance(record, dict):
            raise FsmResponseError(f"{where} is no record but {type(record).__name__}")
        identifier = record.get(field)
        is_text_or_number = isinstance(identifier, int | str) and not isinstance(identifier, bool)
        if is_text_or_number and identifier != "":
            return str(identifier)
        hint = ". If this is a listing, leave out single=True" if self.single else ""
        raise FsmInputError(
            f"fields: {where} has no integer or text as {field!r}: let the first of fields be "
            f"one that identifies each record; it has {_fields_of(record)}{hint}"
        )


def _fields_of(record: JsonObject) -> str:
    return ", ".join(list(record)[:MAX_SHOWN_FIELDS]) or "none"
