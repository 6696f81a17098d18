"""The fake service behind the connection ``fsm_default``."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from fsm_provider.api import FsmClient, Settings, parsing
from fsm_provider.api.request import TimeLimit
from fsm_provider.testing import FakeFieldService
from fsm_provider.writes import runner
from tests.s3 import BUCKET, running_s3
from tests.unit.state_store import DatabaseStore, MemoryStateStore
from tests.unit.writes.databases import DATABASES, Database, empty_database, server

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    from tests.unit.supervisor import MemorySupervisor

TOKEN = "canary-token-7f3a/9+b="
LONGEST = ("sensors/test_limits.py", "triggers/test_forms.py", "plugins/test_slow_secrets.py")
"""Files whose tests wait for ten seconds and more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have each process begin with some of the longest: last, they would keep one of them alone.

    A process is given as many neighbours in this list as any other.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    longest = [item for item in items if item.path.as_posix().endswith(LONGEST)]
    others = [item for item in items if not item.path.as_posix().endswith(LONGEST)]
    share = -(-len(others) // processes)
    items.clear()
    for number in range(processes):
        items += longest[number::processes] + others[number * share : (number + 1) * share]


@pytest.fixture(autouse=True)
def one_test_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what was warned of, and let the readings end whose polls were cancelled."""
    monkeypatch.setattr(parsing, "_logged", set())
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("fsm fsm"):
            thread.join(60)


@pytest.fixture
def service() -> Iterator[FakeFieldService]:
    with FakeFieldService(token=TOKEN, page_size=10) as running:
        yield running


@pytest.fixture
def connection_extra() -> dict[str, Any]:
    """Settings that ``fsm_default`` has besides."""
    return {}


@pytest.fixture(params=["in Airflow", "in a database"])
def store(
    request: pytest.FixtureRequest,
    connection_extra: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> MemoryStateStore | DatabaseStore:
    """Where the ledger is of the tasks that use ``fsm_default``; requested before ``connect`` is
    called.
    """
    if request.param == "in Airflow":
        return MemoryStateStore()
    database = DatabaseStore(tmp_path)
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", database.connection)
    connection_extra["state_conn_id"] = database.CONN_ID
    return database


@pytest.fixture(scope="module", params=DATABASES)
def database_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, str | int | None]]:
    """The kind of a database, and where its server is."""
    with server(request.param) as at:
        yield request.param, at


@pytest.fixture
def database(
    database_server: tuple[str, str | int | None],
    tmp_path: Path,
    connection_extra: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Database]:
    """An empty database for the ledger of ``fsm_default``; it is requested before ``connect``."""
    made = empty_database(*database_server, tmp_path)
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", made.connection_json)
    connection_extra["state_conn_id"] = "ledger"
    yield made
    made.engine.dispose()


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request counts as on its way for half a second, where it is two minutes; it may take
    longer.
    """
    monkeypatch.setattr(runner, "MIN_LEASE", 0.5)
    monkeypatch.setattr(runner, "LOOK_INTERVAL", 0.1)
    monkeypatch.setattr(runner, "LEASE_TIMEOUTS", 0)
    monkeypatch.setattr(runner, "TimeLimit", lambda *_, **__: TimeLimit(30.0))


@pytest.fixture
def supervisor() -> Iterator["MemorySupervisor"]:
    """The supervisor that Airflow's SDK talks to."""
    from tests.unit.supervisor import supervised

    with supervised() as running:
        yield running


@pytest.fixture
def variables(supervisor: "MemorySupervisor") -> dict[str, str]:
    """Airflow's Variables."""
    return supervisor.variables


@pytest.fixture
def connect(
    monkeypatch: pytest.MonkeyPatch, connection_extra: dict[str, Any]
) -> Callable[..., None]:
    """Point ``fsm_default`` at a service, with ``extra`` settings."""

    def point(service: FakeFieldService, **extra: Any) -> None:
        connection = service.connection()
        connection["extra"] = {**connection["extra"], **connection_extra, **extra}
        monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps(connection))

    return point


@pytest.fixture
def make_client() -> Iterator[Callable[..., FsmClient]]:
    """Make clients of a service that do not really wait, closed after the test."""
    made: list[FsmClient] = []

    def make(
        service: FakeFieldService,
        *,
        sleep: Callable[[float], None] = lambda _: None,
        **settings: Any,
    ) -> FsmClient:
        connection = {"base_url": service.base_url, "token": service.settings.token}
        checked = Settings.parse({**connection, **service.connection()["extra"], **settings})
        made.append(FsmClient(checked, sleep=sleep))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture(scope="session")
def s3() -> Iterator[None]:
    """An S3-compatible server that ``s3://`` paths reach."""
    with running_s3() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> "ObjectStoragePath":
    """An empty folder, on this machine's disk and on S3."""
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    if request.param == "file":
        return ObjectStoragePath(str(tmp_path / "storage"))
    request.getfixturevalue("s3")
    return ObjectStoragePath(f"s3://{BUCKET}/{uuid4()}")


def contents(folder: "ObjectStoragePath | Path") -> dict[str, bytes]:
    """Read all files below a folder, by their path in it."""
    if not hasattr(folder, "fs"):
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}
    storage = folder.fs
    storage.invalidate_cache()  # others write there
    root = folder.path
    return {path.removeprefix(f"{root}/"): storage.cat_file(path) for path in storage.find(root)}
