"""One Airflow of the version under test, on a fake service; what it can do is recorded."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsm_provider.testing import Deliveries, Engineer, FakeFieldService
from tests.capabilities import ASSETS, STATE_STORE
from tests.system.ledger import connections_with_ledger
from tests.system.local_airflow import LocalAirflow

collect_ignore = ["form_runs"]  # a project, whose tests a test runs

DAGS = Path(__file__).parent / "dags"
TOKEN = "canary-2b7c9e55-token"


@pytest.fixture(scope="session")
def service() -> Iterator[FakeFieldService]:
    """The service behind ``fsm_default``; its engineer completes two forms for each job."""
    engineer = Engineer(after=3.0, every=1.0, form_names=("Gas Safety Record", "Job Sign-off"))
    deliveries = Deliveries(attempts=20, max_backoff=1.0)
    with FakeFieldService(token=TOKEN, engineer=engineer, deliveries=deliveries) as running:
        yield running


@pytest.fixture(scope="session")
def airflow(
    service: FakeFieldService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalAirflow]:
    """Airflow's own processes; the token is in nothing that they have written."""
    home = tmp_path_factory.mktemp("airflow")
    dags = tmp_path_factory.mktemp("dags")
    (dags / "runs.py").symlink_to(DAGS / "runs.py")
    if ASSETS.is_there:
        (dags / "watching.py").symlink_to(DAGS / "watching.py")
    if STATE_STORE.is_there:
        env = {"AIRFLOW_CONN_FSM_DEFAULT": service.connection_json()}
    else:
        env = connections_with_ledger(service, home)
    with LocalAirflow(dags, home, env) as running:
        yield running
    for path in home.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path


@pytest.fixture
def measured(record_property: Callable[[str, str], None]) -> Callable[..., None]:
    """Record whether a capability is there, or what is missing; fail where that is unexpected."""

    def note(capability: str, is_there: bool, *, expected: bool, missing: str) -> None:
        text = "yes" if is_there else missing
        record_property("capability", json.dumps([capability, text]))
        assert is_there == expected, capability

    return note
