"""Operators for any other operation of the service: any path, any record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fsm_provider.api.validation import parse_choice, parse_text
from fsm_provider.operators.base import (
    FsmBaseOperator,
    OptionParsers,
    bad_arguments_are_refused,
    check_path_if_known,
    permanent_errors_fail_the_task,
)
from fsm_provider.operators.writes import FsmOneWriteOperator, once_options
from fsm_provider.writes.write import Write

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.hooks.fsm import FsmHook

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class FsmRequestOperator(FsmOneWriteOperator):
    """Send one request to the service.

    Only a GET is repeated after it may have reached the service, and a write for which the connection's
    ``idempotency_header`` sends a key. Any other method is a write and is sent once: a retry or a cleared
    task returns the response to an earlier attempt. A write whose outcome is unknown fails the task without a
    retry.

    :param path: begins with ``/`` and holds no query (templated).
    :param method: the HTTP method.
    :param query_params: query parameters (templated).
    :param json: the body, JSON values (templated).
    :param headers: further headers, e.g. ``{"X-API-VERSION": "2.0"}`` (templated).
    :param key: identifies the write even if its content has changed; default: path, query, body and headers
        identify it (templated).
    :param once_per: what sends the write once: each ``run`` of the task; or each ``key``, whatever run, DAG
        or Airflow asks, for which the connection has to name a database as ``state_conn_id`` (templated).
    :param if_uncertain: what to do if an earlier attempt sent the write without learning the outcome:
        ``fail`` without a retry, or ``send`` it again (templated).
    :param if_already_done: what to do if the write succeeded before the task was cleared: ``reuse`` the
        response, or ``send`` it again (templated). A retry always reuses it.
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the parsed JSON of the response; None if it has no body.
    """

    template_fields: tuple[str, ...] = (
        *("fsm_conn_id", "path", "query_params", "json", "headers", "key"),
        *("once_per", "if_uncertain", "if_already_done"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"json": "json"}
    option_parsers: ClassVar[OptionParsers] = once_options("send")

    def __init__(
        self,
        *,
        path: str,
        method: str = "GET",
        query_params: dict[str, Any] | None = None,
        json: Any = None,
        key: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.method = method.upper()
        self.query_params = query_params
        self.json = json
        self.key = key
        with bad_arguments_are_refused():
            self.options(only_known=True)
            parse_choice("method", self.method, METHODS)
            self.check_keys({"key": key})
            check_path_if_known(path)

    def execute(self, context: Context) -> Any:
        """Send the request."""
        with permanent_errors_fail_the_task():
            if self.method == "GET":
                return self._send(self.hook, {})["answer"]
            content = {"params": self.query_params, "json": self.json, "headers": self.headers}
            self.check_keys({"key": self.key})
            key = None if self.key in (None, "") else str(parse_text("key", self.key))
            write = Write(self.method, self.path, content, given_key=key)
            with self.ledger(context) as ledger:
                return self.write_once(ledger, write, self._send)["answer"]

    def _send(self, hook: FsmHook, further: Mapping[str, str]) -> dict[str, Any]:
        headers = {**(self.headers or {}), **further}
        response = hook.request(self.method, self.path, self.query_params, self.json, headers=headers)
        self.log.info("%s %s succeeded", self.method, self.path)
        return {"answer": response}


class FsmListOperator(FsmBaseOperator):
    """List all records of a path that returns the service's envelope of paginated records.

    :param path: begins with ``/`` and holds no query (templated).
    :param query_params: query parameters, sent again with each page (templated).
    :param max_pages: maximum pages; a longer listing is an error.
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the records as the service returns them, in its order.
    """

    template_fields: tuple[str, ...] = ("fsm_conn_id", "path", "query_params")

    def __init__(
        self,
        *,
        path: str,
        query_params: dict[str, Any] | None = None,
        max_pages: int = 10_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.query_params = query_params
        self.max_pages = max_pages
        with bad_arguments_are_refused():
            check_path_if_known(path)

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """List the records."""
        with permanent_errors_fail_the_task():
            listing = self.hook.paginate(self.path, self.query_params, max_pages=self.max_pages)
            records = list(listing)
        self.log.info("Listed %s records of %s", len(records), self.path)
        return records
