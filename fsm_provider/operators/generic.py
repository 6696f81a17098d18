"""Operators for the operations that the specification only names (section 1): any path, any record."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from fsm_provider.api.inputs import read_choice
from fsm_provider.ledger import Ledger, Write
from fsm_provider.operators.base import (
    FsmBaseOperator,
    FsmWriteOperator,
    Readers,
    bad_arguments_are_refused,
    is_known,
    permanent_errors_fail_the_task,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class FsmRequestOperator(FsmWriteOperator):
    """Send one request to the service.

    Only a GET is ever repeated after it may have reached the service; any other is a write, which is sent
    once (Airflow 3.3 and newer): a retry, or the task when it is cleared, gives the answer that an earlier
    try has got. A write whose outcome is unknown fails the task without a retry.

    :param path: begins with ``/`` and holds no query (templated).
    :param method: the HTTP method.
    :param query_params: query parameters (templated).
    :param json: the body, JSON values (templated).
    :param headers: further headers, e.g. ``{"X-API-VERSION": "2.0"}`` (templated).
    :param if_uncertain: what to do where an earlier try sent the write and did not learn what came of it:
        ``fail``, without a retry, or ``send`` it again (templated).
    :param if_already_sent: what to do where the write succeeded before the task was cleared: ``reuse``
        its answer, or ``send`` it again (templated). A retry always reuses it.
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the parsed JSON of the answer, None where it has no body.
    """

    template_fields: tuple[str, ...] = (
        *("fsm_conn_id", "path", "query_params", "json", "headers"),
        *("if_uncertain", "if_already_sent"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"json": "json"}
    readers: ClassVar[Readers] = {
        "if_uncertain": partial(read_choice, choices=("fail", "send")),
        "if_already_sent": partial(read_choice, choices=("reuse", "send")),
    }

    def __init__(
        self,
        *,
        path: str,
        method: str = "GET",
        query_params: dict[str, Any] | None = None,
        json: Any = None,
        headers: dict[str, str] | None = None,
        if_uncertain: str = "fail",
        if_already_sent: str = "reuse",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.method = method
        self.query_params = query_params
        self.json = json
        self.headers = headers
        self.if_uncertain = if_uncertain
        self.if_already_sent = if_already_sent
        with bad_arguments_are_refused():
            self.options(only_known=True)
            read_choice("method", method.upper(), METHODS)
            _check_path_if_known(path)

    def execute(self, context: Context) -> Any:
        """Send the request."""
        with permanent_errors_fail_the_task():
            options = self.options()
            if self.method.upper() == "GET":
                return self._send()["answer"]
            content = {"params": self.query_params, "json": self.json, "headers": self.headers}
            write = Write(self.method.upper(), self.path, content)
            with Ledger.of(
                context,
                repeat_uncertain=options["if_uncertain"] == "send",
                repeat_made=options["if_already_sent"] == "send",
            ) as ledger:
                ledger.expect([write])
                return ledger.once(write, self._send)["answer"]

    def _send(self) -> dict[str, Any]:
        answer = self.hook.request(self.method, self.path, self.query_params, self.json, headers=self.headers)
        self.log.info("%s %s succeeded", self.method.upper(), self.path)
        return {"answer": answer}


class FsmListOperator(FsmBaseOperator):
    """List all records of a path that answers with the service's envelope (2.5).

    :param path: begins with ``/`` and holds no query (templated).
    :param query_params: query parameters, sent again with each page (templated).
    :param max_pages: a longer listing is an error.
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the records as the service gives them, in its order.
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
            _check_path_if_known(path)

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """List the records."""
        with permanent_errors_fail_the_task():
            listing = self.hook.paginate(self.path, self.query_params, max_pages=self.max_pages)
            records = list(listing)
        self.log.info("Listed %s records of %s", len(records), self.path)
        return records


def _check_path_if_known(path: Any) -> None:
    from fsm_provider.api.inputs import read_path

    if is_known(path):
        read_path(path)
