"""The fake service, for tests and demonstrations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from fsm_provider.testing.app import create_app
from fsm_provider.testing.delivering import Deliverer, Deliveries, RecordedDelivery
from fsm_provider.testing.engineer import Engineer
from fsm_provider.testing.failing import FakeFaults
from fsm_provider.testing.front import serve
from fsm_provider.testing.records import FakeRecords
from fsm_provider.testing.schedule import Schedule
from fsm_provider.testing.script import matches
from fsm_provider.testing.server import BackgroundServer, listen
from fsm_provider.testing.settings import Dialect, EventTypesStyle, Settings
from fsm_provider.testing.state import RecordedRequest
from fsm_provider.testing.wire import Record

T = TypeVar("T")


class FakeFieldService(FakeRecords, FakeFaults):
    """The four endpoints of the field-service API on 127.0.0.1, with their state.

    Records are the service's own JSON as dicts, with its field names and every field of the
    specification. What the specification does not show is a parameter; ``settings`` changes it
    while the service runs::

        with FakeFieldService(engineer=Engineer(after=1)) as service:
            monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", service.connection_json())
            dag.test()
            assert [job["customerReference"] for job in service.jobs] == ["PO-1"]

    :meth:`fail` makes it fail, in the ways of :mod:`fsm_provider.testing.faults`. A browser gets a
    page for each job at its ``links.self``, and a list of them at ``/jobs``, without a token;
    others get JSON.

    A test calls its methods from its own thread. The server, the engineer and the deliveries run
    in threads that :meth:`start` begins and :meth:`stop` ends; the records outlive both.

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
    :param event_types_style: how several event types are parsed from the query. ``last``: only the
        last of a repeated ``eventTypes``; ``all``: each of them; ``brackets``: each
        ``eventTypes[]``; ``comma``: the last, split at commas.
    :param idempotency_header: the header that has the key of a write. One that is sent again with
        its key takes effect once and is answered as it was first, but by a 422 if its content has
        changed; a refusal is forgotten. None: there is none.
    :param deliveries: how registered webhooks are notified of jobs; only those with a target on
        127.0.0.1 are.
    :param id_offset: what is added to each identifier: with 0, jobs begin at 1001 and forms at
        5001.
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
        id_offset: int = 0,
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
        self._base_path = ""
        if base_path.strip("/"):
            self._base_path = f"/{base_path.strip('/')}"
        FakeRecords.__init__(self, properties, id_offset, self.settings.now)
        FakeFaults.__init__(self, self._state.changed)
        if port:
            self._state.base_url = self._url()
        self._server: BackgroundServer | None = None
        self._deliverer = Deliverer(deliveries or Deliveries(), self._state.record_delivery)
        self._engineer = engineer
        self._work = Schedule("fsm-engineer", threads=1)
        self._state.on_job.append(self._job_changed)

    def start(self) -> Self:
        """Start the service; returns once it accepts connections.

        After a stop, it starts on the same port, with its records.
        """
        if self._server is not None:
            return self
        listener = listen(self._port)
        self._port = listener.getsockname()[1]
        self._state.base_url = self._url()
        app = create_app(self.settings, self._state, base_path=self._base_path)
        self._server = serve(
            app, listener, self.settings, self._state, self._script, self._base_path
        )
        self._deliverer.schedule.start()
        self._work.start()
        return self

    def stop(self) -> None:
        """Close all connections, and cancel scheduled forms and deliveries; may be called twice."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._work.stop()
        self._deliverer.schedule.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
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
        defaults = {"cursor_param": "cursor", "page_size_param": None, "idempotency_header": None}
        extra = {}
        for name, default in defaults.items():
            value = getattr(self.settings, name)
            if value != default:
                extra[name] = value
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
        """The requests read so far, in the order of their responses."""
        with self._state.changed:
            return list(self._state.requests)

    def requests_to(self, method: str, path_pattern: str) -> list[RecordedRequest]:
        """Return the requests to a path.

        :param method: e.g. ``GET``; ``*`` is any.
        :param path_pattern: relative to the base URL; ``*`` matches anything:
            ``/properties/*/jobs``.
        """

        def is_wanted(request: RecordedRequest) -> bool:
            return matches(
                request.method,
                request.path,
                method_pattern=method,
                path_pattern=path_pattern,
            )

        return [request for request in self.requests if is_wanted(request)]

    @property
    def deliveries(self) -> list[RecordedDelivery]:
        """The attempts at webhook deliveries so far, in the order of their responses."""
        with self._state.changed:
            return list(self._state.deliveries)

    def _job_changed(self, event_type: str, job: Record) -> None:
        self._deliverer.deliver(event_type, job, self.webhooks)
        if event_type == "jobs.created" and self._engineer is not None:
            self._engineer.accept(job["id"], self._state, self._work)

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
