"""The fake service, for tests and demonstrations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from fsm_provider.testing.app import create_app
from fsm_provider.testing.delivering import Deliveries, DeliveryThreads, RecordedDelivery
from fsm_provider.testing.engineer import Engineer, EngineerThread
from fsm_provider.testing.failing import FakeFaults
from fsm_provider.testing.front import Front
from fsm_provider.testing.records import FakeRecords
from fsm_provider.testing.script import matches
from fsm_provider.testing.server import BackgroundServer, listen
from fsm_provider.testing.settings import Dialect, EventTypesStyle, Settings
from fsm_provider.testing.state import RecordedRequest

T = TypeVar("T")


class FakeFieldService(FakeRecords, FakeFaults):
    """The four endpoints of the field-service API on 127.0.0.1, with their state.

    Records are the service's own JSON as dicts, with its field names and every field of the
    specification. What the specification does not show is a parameter; ``settings`` changes it while the
    service runs::

        with FakeFieldService(engineer=Engineer(after=1)) as service:
            monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", service.connection_json())
            dag.test()
            assert [job["customerReference"] for job in service.jobs] == ["PO-1"]

    :meth:`fail` makes it fail, in the ways of :mod:`fsm_provider.testing.faults`. A browser gets a page for
    each job at its ``links.self``, and a list of them at ``/jobs``, without a token.

    :param token: the one accepted bearer token.
    :param port: port to listen on; 0: any free one.
    :param base_path: path below which the endpoints are, e.g. ``/api/v2``.
    :param page_size: records per page.
    :param dialect: types of the pagination fields. ``specified``: booleans and
        integers for assets, strings for forms; ``typed`` or ``string``: the one or the other for
        both. A missing next or previous cursor is null, or ``""`` with strings.
    :param cursor_param: query parameter that carries a cursor.
    :param page_size_param: query parameter that sets another page size; None: there is none.
    :param engineer: who completes forms against new jobs; None: nobody.
    :param latency: seconds between handling a request and responding.
    :param properties: the identifiers of existing properties; None: any integer.
    :param forbidden_tokens: tokens that get a 403.
    :param event_types_style: how several event types are parsed from the query. ``last``: only the last of a
        repeated ``eventTypes``; ``all``: each of them; ``brackets``: each
        ``eventTypes[]``; ``comma``: the last, split at commas.
    :param idempotency_header: the header that has the key of a write. One that is sent again with its key
        takes effect once and is answered as it was first, but by a 422 if its content has changed; a refusal
        is forgotten. None: there is none.
    :param deliveries: how registered webhooks are notified of new jobs; only those with a target on
        127.0.0.1 are.
    """

    def __init__(
        self,
        *,
        token: str = "fake-token",  # noqa: S107 - a fake's
        port: int = 0,
        base_path: str = "",
        page_size: int = 100,
        dialect: Dialect = "specified",
        cursor_param: str = "cursor",
        page_size_param: str | None = None,
        engineer: Engineer | None = None,
        latency: float = 0.0,
        properties: Iterable[int] | None = None,
        forbidden_tokens: Iterable[str] = (),
        event_types_style: EventTypesStyle = "last",
        idempotency_header: str | None = None,
        deliveries: Deliveries | None = None,
    ) -> None:
        self.settings: Settings = Settings(
            token=token,
            forbidden_tokens=frozenset(forbidden_tokens),
            page_size=page_size,
            dialect=dialect,
            cursor_param=cursor_param,
            page_size_param=page_size_param,
            event_types_style=event_types_style,
            latency=latency,
            idempotency_header=idempotency_header,
        )
        self._port = port
        self._base_path = f"/{base_path.strip('/')}" if base_path.strip("/") else ""
        FakeRecords.__init__(self, properties)
        FakeFaults.__init__(self, self._state.changed)
        if port:
            self._state.base_url = self._url()
        self._server: BackgroundServer | None = None
        self._delivery = DeliveryThreads(deliveries or Deliveries(), self._state.record_delivery)
        self._state.on_job_created.append(self._deliver)
        self._engineer: EngineerThread | None = None
        if engineer is not None:
            self._engineer = EngineerThread(engineer, self._state.complete_form)
            self._state.on_job_created.append(self._engineer.job_created)

    def start(self) -> Self:
        """Start the service; returns once it accepts connections.

        After a stop, it starts on the same port, with its records.
        """
        if self._server is None:
            listener = listen(self._port)
            self._port = listener.getsockname()[1]
            self._state.base_url = self._url()
            stopping = asyncio.Event()
            app = create_app(self.settings, self._state, base_path=self._base_path)
            front = Front(
                app,
                self.settings,
                self._state,
                self._script,
                base_path=self._base_path,
                stopping=stopping,
            )
            self._server = BackgroundServer(front, listener, stopping)
            self._server.start()
            self._delivery.start()
            if self._engineer is not None:
                self._engineer.start()
        return self

    def stop(self) -> None:
        """Close all connections, and cancel scheduled forms and deliveries; may be called twice."""
        self._delivery.stop()
        if self._engineer is not None:
            self._engineer.stop()
        if self._server is not None:
            self._server.stop()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """The service's URL, e.g. ``http://127.0.0.1:49152/api``; known once started.

        With ``port=0`` neither the URL nor a record with links is available before that.
        """
        return self._state.base_url

    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port}{self._base_path}"

    def connection(self) -> dict[str, Any]:
        """Make the Airflow connection to this service, in Airflow's JSON form."""
        extra: dict[str, Any] = {}
        if self.settings.cursor_param != "cursor":
            extra["cursor_param"] = self.settings.cursor_param
        if self.settings.page_size_param is not None:
            extra["page_size_param"] = self.settings.page_size_param
        if self.settings.idempotency_header is not None:
            extra["idempotency_header"] = self.settings.idempotency_header
        return {
            "conn_type": "fsm",
            "host": self.base_url,
            "password": self.settings.token,
            "extra": extra,
        }

    def connection_json(self) -> str:
        """Make the connection as JSON text, for ``AIRFLOW_CONN_<ID>``."""
        return json.dumps(self.connection())

    @property
    def requests(self) -> list[RecordedRequest]:
        """The requests handled so far, in the order of their responses."""
        with self._state.changed:
            return list(self._state.requests)

    def requests_to(self, method: str, path_pattern: str) -> list[RecordedRequest]:
        """Return the requests to a path.

        :param method: e.g. ``GET``; ``*`` is any.
        :param path_pattern: relative to the base URL; ``*`` matches anything:
            ``/properties/*/jobs``.
        """
        return [
            request
            for request in self.requests
            if matches(request.method, request.path, method_pattern=method, path_pattern=path_pattern)
        ]

    @property
    def deliveries(self) -> list[RecordedDelivery]:
        """The attempts at webhook deliveries so far, in the order of their responses."""
        with self._state.changed:
            return list(self._state.deliveries)

    def _deliver(self, job_id: int) -> None:
        with self._state.changed:
            job, webhooks = dict(self._state.jobs[job_id]), list(self._state.webhooks)
        self._delivery.job_created(job, webhooks)

    def clear_requests(self) -> None:
        """Clear the recorded requests."""
        with self._state.changed:
            self._state.requests.clear()

    def wait_for(self, predicate: Callable[[], T], timeout: float) -> T:
        """Return the result of ``predicate`` as soon as it is true.

        It is called at once and after every request, change and fault::

            [form] = service.wait_for(lambda: service.forms, timeout=5)

        :param predicate: must not send a request to this service, which waits meanwhile.
        :param timeout: seconds.
        :raises TimeoutError: if it is still false after ``timeout``.
        """
        with self._state.changed:
            result = self._state.changed.wait_for(predicate, timeout)
        if not result:
            raise TimeoutError(f"Still false after {timeout} s")
        return result
