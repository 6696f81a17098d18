"""The receiver behind a real socket, on a real metadata database of Airflow."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest
import requests
from starlette.applications import Starlette
from starlette.routing import Mount

from fsm_provider.plugins.plugin import FsmPlugin
from fsm_provider.plugins.webhooks import URL_PREFIX
from fsm_provider.plugins.webhooks.config import ReceiverConfiguration
from fsm_provider.plugins.webhooks.receiver import Receiver
from fsm_provider.storage import uri_for_records
from fsm_provider.testing.server import BackgroundServer, listen
from tests.capabilities import ASSETS

TOKEN = "path-token-of-43-characters-or-so-0123456789"


@pytest.fixture(scope="session")
def database() -> None:
    """Airflow's tables, in the SQLite file of this test run's AIRFLOW_HOME.

    Modules that the API server loads before any delivery are loaded here too: a busy machine could
    not load them within the second that a delivery has.
    """
    ASSETS.require()
    for loaded in ("airflow.assets.manager", "airflow.models.asset"):
        import_module(loaded)
    from airflow.utils.db import initdb

    initdb()


class Clock:
    """A clock in seconds, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RunningReceiver:
    """A receiver, the Variables that it reads and the events that it has recorded."""

    def __init__(self, base_url: str, clock: Clock) -> None:
        self.base_url = base_url
        self.clock = clock
        self.session = requests.Session()
        self.session.trust_env = False

    def url(self, token: str = TOKEN, route: str = "fsm_default/jobs") -> str:
        return f"{self.base_url}{URL_PREFIX}/{route}/{token}"

    def post(
        self, body: Any = b"{}", *, url: str | None = None, **kwargs: Any
    ) -> requests.Response:
        return self.session.post(url or self.url(), data=body, timeout=40, **kwargs)

    def configure(
        self, *, tokens: Any = (TOKEN,), secrets: Any = None, base: Any = None, **endpoint: Any
    ) -> None:
        """Write the Variables, and let the cached ones expire."""
        settings = {
            "endpoints": {"fsm_default/jobs": {"signature": "none", **endpoint}},
            **(base or {}),
        }
        self.set("fsm_webhooks", settings)
        self.set("fsm_webhook_secret_tokens_fsm_default_jobs", list(tokens))
        if secrets is not None:
            self.set("fsm_webhook_secrets_fsm_default_jobs", secrets)
        self.clock.now += 100

    def set(self, name: str, value: Any) -> None:
        from airflow.models import Variable

        Variable.set(name, value if isinstance(value, str) else json.dumps(value))

    @property
    def events(self) -> list[dict[str, Any]]:
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session

        with create_session() as session:
            return [event.extra for event in session.query(AssetEvent).order_by(AssetEvent.id)]


@pytest.fixture
def asset(database: None) -> Iterator[Callable[..., None]]:
    """Make assets active, as a DAG that uses them does."""
    from airflow.models import Variable
    from airflow.models.asset import AssetActive, AssetEvent, AssetModel
    from airflow.utils.session import create_session

    def activate(
        uri: str = uri_for_records("fsm_default", "jobs"), name: str | None = None
    ) -> None:
        with create_session() as session:
            model = AssetModel(name=name or uri, uri=uri, group="asset")
            session.add(model)
            session.flush()
            session.add(AssetActive.for_asset(model))

    yield activate
    with create_session() as session:
        for table in (AssetEvent, AssetActive, AssetModel, Variable):
            session.query(table).delete()


@pytest.fixture
def response_seconds() -> float:
    """Seconds for a delivery: more than a sender allows, for busy machines."""
    return 30.0


@pytest.fixture
def unknown_receiver(database: None, response_seconds: float) -> Iterator[RunningReceiver]:
    """A receiver that is not configured, mounted as Airflow mounts it."""
    clock = Clock()
    mounted = FsmPlugin.fastapi_apps[0]
    receiver = Receiver(ReceiverConfiguration(clock=clock), response_seconds=response_seconds)
    app = Starlette(routes=[Mount(mounted["url_prefix"], receiver)])
    listener = listen(0)
    server = BackgroundServer(app, listener, asyncio.Event(), http="auto", ws="auto")
    running = RunningReceiver(f"http://127.0.0.1:{listener.getsockname()[1]}", clock)
    server.start()
    yield running
    running.session.close()
    server.stop()


@pytest.fixture
def receiver(unknown_receiver: RunningReceiver, asset: Callable[..., None]) -> RunningReceiver:
    """A receiver whose asset is active, and that accepts anyone who knows the token."""
    asset()
    unknown_receiver.configure()
    return unknown_receiver


def raw(receiver: RunningReceiver, rest: bytes, *, is_cut_off: bool = False) -> bytes:
    """Send a hand-made request and return the full response.

    :param is_cut_off: whether nothing more may come.
    """
    host, _, port = receiver.base_url.removeprefix("http://").partition(":")
    path = receiver.url().removeprefix(receiver.base_url)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        # The response may arrive before the request is fully sent.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + rest)
            if is_cut_off:
                connection.shutdown(socket.SHUT_WR)
        response = b""
        while part := connection.recv(65536):
            response += part
    return response
