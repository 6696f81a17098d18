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
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    for name in ("runs.py", *(["watching.py"] if ASSETS.is_there else [])):
        (dags / name).symlink_to(DAGS / name)
    in_airflow = {"AIRFLOW_CONN_FSM_DEFAULT": service.connection_json()}
    env = in_airflow if STATE_STORE.is_there else connections_with_ledger(service, home)
    with LocalAirflow(dags, home, env) as running:
        yield running
    logs = [path for path in home.rglob("*") if path.is_file()]
    assert [path for path in logs if TOKEN.encode() in path.read_bytes()] == []


@pytest.fixture
def measured(record_property: Callable[[str, str], None]) -> Callable[..., None]:
    """Record whether a capability is there, with what is missing in words; fail where that is
    unexpected.
    """

    def note(capability: str, is_there: bool, *, expected: bool, missing: str) -> None:
        record_property("capability", json.dumps([capability, "yes" if is_there else missing]))
        assert is_there == expected, capability

    return note
