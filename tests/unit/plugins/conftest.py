"""The receiver behind a real socket, on a real metadata database of Airflow."""

import asyncio
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from fsm_provider.plugins.plugin import FsmPlugin
from fsm_provider.plugins.webhooks.config import ReceiverConfiguration
from fsm_provider.storage import uri_for_records
from fsm_provider.testing.server import BackgroundServer, listen
from tests.capabilities import ASSETS
from tests.unit.plugins.receivers import Clock, RunningReceiver


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
    from airflow.models import Variable
    from airflow.utils.session import create_session

    from fsm_provider.plugins.webhooks.receiver import Receiver

    with create_session() as session:
        session.query(Variable).delete()  # of tests in other folders
    clock = Clock()
    mounted = FsmPlugin.fastapi_apps[0]
    configuration = ReceiverConfiguration(clock=clock)
    receiver = Receiver(configuration, response_seconds=response_seconds)
    app = Starlette(routes=[Mount(mounted["url_prefix"], receiver)])
    listener = listen(0)
    server = BackgroundServer(app, listener, asyncio.Event(), http="auto", ws="auto")
    running = RunningReceiver(f"http://127.0.0.1:{listener.getsockname()[1]}", clock)
    server.start()
    yield running
    running.session.close()
    server.stop()
    # A reading that has begun would log within the next test.
    reading = list(configuration._thread._threads)
    configuration._thread.shutdown(wait=False)
    for thread in reading:
        thread.join(60)


@pytest.fixture
def receiver(unknown_receiver: RunningReceiver, asset: Callable[..., None]) -> RunningReceiver:
    """A receiver whose asset is active, and that accepts anyone who knows the token."""
    asset()
    unknown_receiver.configure()
    return unknown_receiver
