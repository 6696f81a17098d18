"""One cluster for all distributed tests.

``FSM_KILLS_SEED`` repeats the kills of a run that has failed.
"""

import random
from collections.abc import Iterator

import pytest

from fsm_provider.testing import FakeFieldService
from tests.distributed.airflow import DistributedAirflow
from tests.distributed.backends import MissingPackageError, postgresql, redis
from tests.seeds import SEED
from tests.system.dags.watched import WATCHED_NAME
from tests.system.form_events import DAG_ID, WAITS_ID
from tests.system.kill_stores import Databases
from tests.system.kills import DAG_IDS, LATENCY, OURS, Stage
from tests.system.watcher import until_polled

WATCHED = OURS.with_name("watched.py")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests have recorded, whether they passed or not."""
    terminalreporter.section(f"figures, seed {SEED}")
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if report.when != "call":
                continue
            for name, value in report.user_properties:
                terminalreporter.line(f"{report.location[2]}: {name}: {value}")


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """What draws the kill of a test."""
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="session")
def job_service() -> Iterator[FakeFieldService]:
    """The service behind ``fsm_default``, where jobs are created."""
    with FakeFieldService(latency=LATENCY) as running:
        yield running


@pytest.fixture(scope="session")
def watched_service() -> Iterator[FakeFieldService]:
    """The service behind ``fsm_watched``, which a watcher asks all the time; it has a history."""
    with FakeFieldService() as running:
        running.seed_forms(30, form_names=(WATCHED_NAME,))
        yield running


@pytest.fixture(scope="session")
def airflow(
    job_service: FakeFieldService,
    watched_service: FakeFieldService,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[DistributedAirflow]:
    """A running cluster, shared: a test starts again what it has killed."""
    dags = tmp_path_factory.mktemp("dags")
    for file in (OURS, WATCHED):
        (dags / file.name).symlink_to(file)
    home = tmp_path_factory.mktemp("airflow")
    ledgers = Databases()
    ledgers.connect(job_service, "fsm_default", None)
    ledgers.connect(watched_service, "fsm_watched", None)
    try:
        with postgresql() as database, redis() as broker:
            ledgers.connect(job_service, "fsm_postgresql", f"postgres://{database}")
            with DistributedAirflow(
                dags, home, ledgers.env, database=database, broker=broker
            ) as running:
                for dag_id in (*DAG_IDS[OURS], DAG_ID, WAITS_ID):
                    running.wait_for_dag(dag_id)
                yield running
    except MissingPackageError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def stage(airflow: DistributedAirflow, job_service: FakeFieldService) -> Stage:
    """The cluster, as the tests of killed tasks use it."""
    return Stage(airflow, job_service)


@pytest.fixture(scope="session")
def watched(airflow: DistributedAirflow, watched_service: FakeFieldService) -> FakeFieldService:
    """The service, asked by a watcher that has completed its first poll."""
    until_polled(watched_service)
    return watched_service
