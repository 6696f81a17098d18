"""Operators for the operations that the specification only names (section 1): any path, any record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fsm_provider.operators.base import FsmBaseOperator, is_known, permanent_errors_fail_the_task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class FsmRequestOperator(FsmBaseOperator):
    """Send one request to the service.

    Only a GET is ever repeated after it may have reached the service; any other whose outcome is
    unknown fails the task without a retry.

    :param path: begins with ``/`` and holds no query (templated).
    :param method: the HTTP method.
    :param query_params: query parameters (templated).
    :param json: the body, JSON values (templated).
    :param headers: further headers, e.g. ``{"X-API-VERSION": "2.0"}`` (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the parsed JSON of the answer, None where it has no body.
    """

    template_fields = ("fsm_conn_id", "path", "query_params", "json", "headers")
    template_fields_renderers: ClassVar[dict[str, str]] = {"json": "json"}

    def __init__(
        self,
        *,
        path: str,
        method: str = "GET",
        query_params: dict[str, Any] | None = None,
        json: Any = None,
        headers: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.method = method
        self.query_params = query_params
        self.json = json
        self.headers = headers
        if method.upper() not in METHODS:
            raise ValueError(f"method: {method!r} is none of {', '.join(METHODS)}")
        _check_path_if_known(path)

    def execute(self, context: Context) -> Any:
        """Send the request."""
        with permanent_errors_fail_the_task():
            answer = self.hook.request(
                self.method, self.path, self.query_params, self.json, headers=self.headers
            )
        self.log.info("%s %s succeeded", self.method.upper(), self.path)
        return answer


class FsmListOperator(FsmBaseOperator):
    """List all records of a path that answers with the service's envelope (2.5).

    :param path: begins with ``/`` and holds no query (templated).
    :param query_params: query parameters, sent again with each page (templated).
    :param max_pages: a longer listing is an error.
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the records as the service gives them, in its order.
    """

    template_fields = ("fsm_conn_id", "path", "query_params")

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
