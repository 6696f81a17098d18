"""One Airflow and one fake service for all system tests; a boot takes about ten seconds."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fsm_provider.plugins.webhooks import URL_PREFIX
from fsm_provider.testing import Deliveries, Engineer, FakeFieldService
from tests.pages import ROOT
from tests.smtp import Mailbox, mail_server
from tests.statsd import Metrics, statsd
from tests.system.dags.watched import WATCHED_NAME
from tests.system.examples import EXAMPLES
from tests.system.form_events import DAG_ID
from tests.system.ledger import connections_with_ledger
from tests.system.local_airflow import LocalAirflow
from tests.system.tokens import REFUSED_TOKEN, TOKEN, WATCHED_TOKEN
from tests.system.watcher import until_polled

collect_ignore = ["kit"]  # a user's project, whose tests a test runs

WATCHED = {
    "test_deferred_sensors",
    "test_metrics",
    "test_webhooks",
}
"""Files whose tests share an Airflow."""
ALONE = {
    "test_docs",
    "test_export_kills",
    "test_kills",
    "test_one_run_for_each_form",
    "test_pdf_kills",
    "test_testing_kit",
    "test_wheel",
}
"""Files that need none, or one of their own. All others share another one."""
DAGS = {
    "examples": EXAMPLES,
    "system": ROOT / "tests" / "system" / "dags",
}
HISTORY = 30
"""Forms that were completed long before anybody watches."""
LONG = 600.0
"""Seconds for a response that a test holds back."""
AIRFLOWS_OWN_DEBUG_LINE = re.compile(rb"Received message from task runner.* msg=PutVariable\(.*")
"""The supervisor's log at DEBUG of a Variable that a task sets; nothing of ours can mask it."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let two processes have the files that share an Airflow; the other files go one by one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path, _, _ = nodeid.partition("::")
            file = Path(path).stem
            if file in WATCHED:
                return "watched"
            if file in ALONE:
                return file
            return "airflow"

    return Scheduling(config, log)


@pytest.fixture(scope="package")
def service() -> Iterator[FakeFieldService]:
    """The service behind the connection ``fsm_default``; its engineer completes two forms a job."""
    engineer = Engineer(after=3.0, every=1.0, form_names=("Gas Safety Record", "Job Sign-off"))
    deliveries = Deliveries(attempts=1000, max_backoff=1.0, duplicates=1, reorder=0.5, seed=7)
    with FakeFieldService(token=TOKEN, engineer=engineer, deliveries=deliveries) as running:
        yield running


@pytest.fixture(scope="package")
def watched_service() -> Iterator[FakeFieldService]:
    """The service behind ``fsm_watched``, which a watcher asks all the time; it has a history."""
    with FakeFieldService(token=WATCHED_TOKEN) as running:
        first_created = datetime.now(UTC) - timedelta(days=9)
        running.seed_forms(HISTORY, form_names=(WATCHED_NAME,), first_created=first_created)
        yield running


@pytest.fixture(scope="package")
def dags_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example DAGs and those of the system tests; a test may add files of its own."""
    folder = tmp_path_factory.mktemp("dags")
    for name, source in DAGS.items():
        (folder / name).symlink_to(source, target_is_directory=True)
    return folder


@pytest.fixture(scope="package")
def metrics() -> Iterator[Metrics]:
    """The metrics that Airflow sends."""
    with statsd() as running:
        yield running


@pytest.fixture(scope="package")
def mailbox() -> Iterator[Mailbox]:
    """The mails that Airflow sends."""
    with mail_server() as running:
        yield running


@pytest.fixture(scope="package")
def airflow(
    service: FakeFieldService,
    watched_service: FakeFieldService,
    metrics: Metrics,
    mailbox: Mailbox,
    dags_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalAirflow]:
    """A running Airflow, shared: a test leaves all four processes up.

    It logs at DEBUG, and nothing that it wrote by the end of all tests may hold a token or a
    signing secret.
    """
    home = tmp_path_factory.mktemp("airflow")
    refused_connection = {**service.connection(), "password": REFUSED_TOKEN}
    watched_since = datetime.now(UTC) - timedelta(days=3)
    env = {
        **metrics.env,
        **mailbox.env,
        "AIRFLOW_CONN_FSM_DEFAULT": service.connection_json(),
        **connections_with_ledger(service, home, "fsm_with_ledger", timeout=LONG),
        "AIRFLOW_CONN_FSM_WATCHED": watched_service.connection_json(),
        "AIRFLOW_CONN_FSM_REFUSED": json.dumps(refused_connection),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG",
        "FSM_POLL_INTERVAL": "1",
        "FSM_WATCHED_SINCE": watched_since.isoformat(),
        # Airflow fails a task of a run that is deleted and made again while the former's process
        # still ends.
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "5",
        # A triggerer that is gone is noticed by its silence; Airflow's own default is 30 s.
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    }
    with LocalAirflow(dags_folder, home, env) as running:
        yield running
    written = contents_of_files(home)
    written[home / "metrics"] = bytes(metrics.raw)
    assert any(b'"level":"debug"' in text for text in written.values()), "the log is not at DEBUG"
    secrets = secrets_of(service)
    for path, text in written.items():
        ours = AIRFLOWS_OWN_DEBUG_LINE.sub(b"", text)
        assert [secret for secret in secrets if secret.encode() in ours] == [], path


def contents_of_files(folder: Path) -> dict[Path, bytes]:
    """Read all files below a folder."""
    contents: dict[Path, bytes] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            contents[path] = path.read_bytes()
    return contents


def secrets_of(service: FakeFieldService) -> list[str]:
    """Give all tokens, and the secrets of the webhooks that are registered with the service."""
    secrets = [TOKEN, REFUSED_TOKEN, WATCHED_TOKEN]
    for webhook in service.webhooks:
        secrets.append(webhook["signingSecret"])
        if URL_PREFIX in webhook["targetURL"]:
            path_token = webhook["targetURL"].rpartition("/")[2]
            secrets.append(path_token)
    return secrets


@pytest.fixture
def watched(
    airflow: LocalAirflow,
    watched_service: FakeFieldService,
) -> Iterator[FakeFieldService]:
    """The service, polled by a watcher at least three times; a test may make it fail."""
    airflow.wait_for_dag(DAG_ID)
    until_polled(watched_service)
    yield watched_service
    watched_service.clear_faults()
