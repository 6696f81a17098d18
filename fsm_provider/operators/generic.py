"""Operators for any other operation of the service: any path, any record."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.request import ApiRequest, write_json
from fsm_provider.api.validation import (
    JsonObject,
    checked_path,
    parse_choice,
    parse_headers,
    parse_json,
    parse_key,
    pluralize,
)
from fsm_provider.operators.base import PATH, FsmBaseOperator, OptionParsers, bad_arguments_refused
from fsm_provider.operators.writes import FsmWriteOperator
from fsm_provider.state.task import Task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class FsmRequestOperator(FsmWriteOperator):
    """Send one request to the service.

    A GET may be repeated. Any other method is a write and is sent once: see
    :class:`~fsm_provider.operators.writes.FsmWriteOperator`.

    :param path: begins with ``/`` and holds no query (templated).
    :param method: the HTTP method.
    :param query_params: query parameters (templated).
    :param json: the body: JSON values, or their text, as a template gives it (templated).
    :param headers: further headers, e.g. ``{"X-API-VERSION": "2.0"}`` (templated).
    :param key: identifies the write; default: the task in its run (templated). If path, query, body
        or headers have changed since it was sent, the task fails, and names what was sent.
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the parsed JSON of the response; None if it has no body. If an earlier attempt or
        another task has sent the write: its ``id`` and times.
    """

    template_fields: tuple[str, ...] = (
        *FsmWriteOperator.template_fields,
        "path",
        "query_params",
        "json",
        "headers",
        "key",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"json": "json"}
    option_parsers: ClassVar[OptionParsers] = {
        **FsmWriteOperator.option_parsers,
        **PATH,
        "headers": parse_headers,
        "json": parse_json,
    }

    def __init__(
        self,
        *,
        path: str,
        method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET",
        query_params: dict[str, Any] | None = None,
        json: Any = None,
        headers: dict[str, str] | None = None,
        key: str | None = None,
        once_per: Literal["run", "key"] | str = "run",
        if_uncertain: Literal["fail", "create"] | str = "fail",
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            once_per=once_per, if_uncertain=if_uncertain, fsm_conn_id=fsm_conn_id, **kwargs
        )
        self.path = path
        self.method = method.upper()
        self.query_params = query_params
        self.json = json
        self.headers = headers
        self.key = key
        self._is_keyed = key is not None
        with bad_arguments_refused():
            self.options(literals_only=True)
            parse_choice("method", self.method, METHODS)
            if self.method != "GET":
                self.check_keys({"key": key})

    def perform(self, context: Context) -> Any:
        path = checked_path(self.path)
        body = parse_json("json", self.json)
        if self.method == "GET":
            result = self.hook.request("GET", path, self.query_params, body, headers=self.headers)
            if isinstance(result, dict) and "pagination" in result:
                self.log.warning("%s is a listing: FsmListOperator returns all its pages", path)
            return result
        from fsm_provider.writes.attempt import WriteAttempt
        from fsm_provider.writes.ledger import new_entry

        self.check_keys({"key": self.key})
        task = Task.from_context(context, self.task_id)
        key = parse_key("key", self.key) if self._is_keyed else task.place
        try:  # before anything is recorded, refuse what has no one way to be written, such as NaN
            write_json(body)
            dumps([self.query_params, self.headers], allow_nan=False, sort_keys=True, default=str)
        except (TypeError, ValueError, RecursionError) as error:
            raise FsmInputError(
                f"{self.method} {path}: its content cannot be written as JSON: {error}"
            ) from None
        request = ApiRequest.build(self.method, path, self.query_params, body, self.headers)
        intended = new_entry(task, self.hook.settings.service, request, key)
        [result] = self.write_once(context, task, [WriteAttempt(request, intended, self._is_keyed)])
        return result


class FsmListOperator(FsmBaseOperator):
    """List all records of a path that returns the service's envelope of paginated records.

    :param path: begins with ``/`` and holds no query (templated).
    :param query_params: query parameters, sent again with each page (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the records as the service returns them, in its order.
    """

    template_fields: tuple[str, ...] = ("fsm_conn_id", "path", "query_params")
    option_parsers: ClassVar[OptionParsers] = PATH

    def __init__(
        self,
        *,
        path: str,
        query_params: dict[str, Any] | None = None,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(fsm_conn_id=fsm_conn_id, **kwargs)
        self.path = path
        self.query_params = query_params
        with bad_arguments_refused():
            self.options(literals_only=True)

    def perform(self, context: Context) -> list[JsonObject]:
        records = self.hook.paginate(self.path, self.query_params)
        self.log.info("Listed %s of %s", pluralize(len(records), "record"), self.path)
        return records
