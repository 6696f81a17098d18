"""``python -m fsm_provider doctor``, on a real metadata database: what it says of each part."""

import json
import os
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from fsm_provider.commands.cli import main
from fsm_provider.polling.admin import watched_assets
from fsm_provider.polling.watcher import OWNER
from fsm_provider.state.database import open_database
from fsm_provider.storage import uri_for_records
from fsm_provider.testing import faults
from tests.capabilities import ASSETS
from tests.unit.conftest import TOKEN
from tests.unit.disputed import break_import, dags_that_define, process_files
from tests.unit.operators.jobs import attempt_of, create, request
from tests.unit.plugins.receivers import TOKEN as PATH_TOKEN
from tests.unit.polling.test_watermarks import store_with
from tests.unit.state_store import MemoryStateStore
from tests.unit.writes.operators import lose

RUNNING = {"scheduler": "SchedulerJob", "processor": "DagProcessorJob", "triggerer": "TriggererJob"}
PARTS = ["connection", "clock", "ledger", *RUNNING, "assets", "receiver"]


@pytest.fixture(scope="module", autouse=True)
def database():
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(autouse=True)
def parts(connect, service, connection_extra, tmp_path, monkeypatch):
    """Everything that is needed, with one form."""
    from airflow.jobs.job import Job
    from airflow.models import Variable
    from airflow.utils.session import create_session

    ledger = {"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")}
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(ledger))
    service.seed_forms(1)
    connect(service, state_conn_id="ledger")
    now = datetime.now(UTC)
    with create_session() as session:
        for job_type in RUNNING.values():
            session.add(Job(job_type=job_type, state="running", latest_heartbeat=now))
    tables = [Job, Variable]
    if ASSETS.is_there:
        from airflow.models.asset import AssetActive, AssetModel

        tables += [AssetActive, AssetModel]
        endpoints = {"fsm_default/jobs": {"signature": "none"}}
        Variable.set("fsm_webhooks", json.dumps({"endpoints": endpoints}))
        Variable.set("fsm_webhook_secret_tokens_fsm_default_jobs", PATH_TOKEN)
        uri = uri_for_records("fsm_default", "jobs")
        with create_session() as session:
            asset = AssetModel(name="jobs", uri=uri, group="asset")
            session.add(asset)
            session.flush()
            session.add(AssetActive.for_asset(asset))
    yield
    with create_session() as session:
        for table in tables:
            session.query(table).delete()


@pytest.fixture
def doctor(capsys):
    """Run the command; return its exit code, and its verdict on each part."""

    def run():
        capsys.readouterr()
        code = main(["doctor"])
        output = capsys.readouterr().out
        assert TOKEN not in output
        assert PATH_TOKEN not in output
        verdicts = {}
        for line in output.splitlines():
            part, verdict = line.split(maxsplit=1)
            verdicts[part] = verdict
        return code, verdicts

    return run


def test_each_part_that_is_well_is_named(doctor):
    code, verdicts = doctor()

    assert code == 0
    assert list(verdicts) == PARTS
    for verdict in verdicts.values():
        assert verdict.split()[0] == "ok"
    file = json.loads(os.environ["AIRFLOW_CONN_LEDGER"])["host"]
    assert verdicts["ledger"].startswith(
        f"ok      there is no ledger yet at connection 'ledger' (sqlite:///{file}): "
    )
    assert not Path(file).exists()
    receiver = "there is no Variable fsm_webhooks"
    if ASSETS.is_there:
        receiver = "accepts deliveries for fsm_default/jobs"
    assert verdicts["receiver"].endswith(receiver)


def test_a_ledger_without_entries_is_well(doctor):
    open_database("ledger").dispose()

    _, verdicts = doctor()

    assert verdicts["ledger"] == "ok      0 sent under its host and login, of which 0 uncertain"


def test_what_was_sent_is_counted_but_not_what_the_service_refused(service, connect, doctor):
    connect(service, state_conn_id="ledger", max_retries=0)
    lose(service)
    service.fail("POST", "/properties/2/jobs", faults.Status(400))
    jobs = [request(number) for number in (1, 2, 3, 4)]
    attempt_of(MemoryStateStore(), create(jobs, max_concurrency=1))

    code, verdicts = doctor()

    assert code == 0
    assert verdicts["ledger"] == "ok      3 sent under its host and login, of which 1 uncertain"


def refuse(service, monkeypatch):
    service.fail("GET", "/forms", faults.Status(401), every=True)


def be_in_another_zone(service, monkeypatch):
    service.settings.server_timezone = timezone(timedelta(hours=1))


def name_no_ledger(service, monkeypatch):
    connection = {"conn_type": "sqlite", "host": "ledger.db"}
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(connection))


def stop(part):
    def stop_part(service, monkeypatch):
        from airflow.jobs.job import Job
        from airflow.utils.session import create_session

        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        with create_session() as session:
            its_jobs = session.query(Job).filter(Job.job_type == RUNNING[part])
            its_jobs.update({"latest_heartbeat": an_hour_ago})

    return stop_part


def misspell(service, monkeypatch):
    from airflow.models import Variable

    endpoints = {"fsm_default/jobs": {"signatur": "none"}}
    Variable.set("fsm_webhooks", json.dumps({"endpoints": endpoints}))


def register_nothing(service, monkeypatch):
    from airflow.models import Variable

    Variable.delete("fsm_webhook_secret_tokens_fsm_default_jobs")


def use_no_asset(service, monkeypatch):
    """What is left once the last DAG that uses the asset is gone, or before there is one."""
    from airflow.models.asset import AssetActive
    from airflow.utils.session import create_session

    with create_session() as session:
        session.query(AssetActive).delete()


@pytest.mark.parametrize(
    ("part", "break_it", "says"),
    [
        ("connection", refuse, "the token is not accepted"),
        ("clock", be_in_another_zone, "the service's clock is +60 minutes"),
        ("ledger", name_no_ledger, "should be the absolute path"),
        ("scheduler", stop("scheduler"), "none is running: no DAG starts"),
        pytest.param(
            "processor",
            stop("processor"),
            "none is running: no change of a DAG file is read",
            marks=ASSETS.needed,
        ),
        ("triggerer", stop("triggerer"), "none is running: deferrable sensors"),
        pytest.param("receiver", misspell, "signatur", marks=ASSETS.needed),
        pytest.param(
            "receiver",
            register_nothing,
            "fsm_default/jobs has no path",
            marks=ASSETS.needed,
        ),
        pytest.param(
            "receiver",
            use_no_asset,
            "no DAG uses the asset fsm://fsm",
            marks=ASSETS.needed,
        ),
    ],
)
def test_one_part_that_is_not_well_is_named_and_the_others_are_still_checked(
    doctor, service, monkeypatch, part, break_it, says
):
    break_it(service, monkeypatch)

    code, verdicts = doctor()

    failed = [name for name, verdict in verdicts.items() if verdict.startswith("FAILED")]
    assert code == 1
    assert failed == (["connection", "ledger"] if part == "ledger" else [part])
    assert list(verdicts) == PARTS
    assert says in verdicts[part]


@ASSETS.needed
@pytest.mark.parametrize(
    ("names", "code", "verdict"),
    [
        ("Gas Safety", 0, "ok      1 of completed forms"),
        ("Boiler", 1, "FAILED  'gas' (DAGs: boiler, gas): Its DAGs define it differently, and on"),
    ],
)
def test_an_asset_that_two_dags_define_is_named_with_both_if_they_differ(
    doctor, tmp_path, monkeypatch, names, code, verdict
):
    with dags_that_define(tmp_path, monkeypatch) as read:
        read(gas="Gas Safety", boiler=names)
        (asset,) = watched_assets(fsm_conn_id="fsm_default")
        store_with(asset, OWNER, ["id", 1.0, {"polled_at": time.time()}])

        ended, verdicts = doctor()

    assert ended == code
    assert verdicts["assets"].startswith(verdict)


@ASSETS.needed
@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (
            {"failing_since": 1.8e9, "error": "GET /forms returned HTTP 500"},
            "Its polls fail: GET /forms returned HTTP 500, at least since 2027-01-15 08:00:00 UTC",
        ),
        (
            {"seen_at": 1.7e9},
            "Nothing watches it, so no form starts a DAG: its triggerer is gone, or its DAGs are "
            "paused, at least since 2023-11-14 22:13:20 UTC",
        ),
    ],
)
def test_an_asset_whose_watcher_fails_or_is_gone_is_not_well(
    doctor, tmp_path, monkeypatch, status, failure
):
    with dags_that_define(tmp_path, monkeypatch) as read:
        read(gas="Gas Safety")
        (asset,) = watched_assets(fsm_conn_id="fsm_default")
        store_with(asset, OWNER, ["id", 1.0, {"polled_at": time.time(), **status}])

        code, verdicts = doctor()

    assert code == 1
    assert verdicts["assets"] == f"FAILED  'gas' (DAGs: gas): {failure}"


def test_all_connections_are_checked_and_one_that_is_broken_hides_no_other(
    service, monkeypatch, capsys
):
    broken = {"conn_type": "fsm", "password": TOKEN}
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", json.dumps(broken))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "http", "host": "fsm"}))

    code = main(["doctor", "--all"])

    lines = capsys.readouterr().out.splitlines()
    assert code == 1
    assert [line for line in lines if line.endswith(":")] == ["broken:", "fsm_default:"]
    assert lines[1].split()[:2] == ["connection", "FAILED"]
    assert "host: is missing" in lines[1]
    assert lines[10].split()[:2] == ["connection", "ok"]
    assert TOKEN not in "".join(lines)


@ASSETS.needed
def test_a_connection_that_only_an_asset_names_is_checked(monkeypatch, capsys):
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.utils.session import create_session

    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "http", "host": "fsm"}))
    with create_session() as session:
        for conn_id in ("gone", "other"):
            asset = AssetModel(name=conn_id, uri=f"fsm://{conn_id}/forms/x", group="asset")
            session.add(asset)
            session.flush()
            session.add(AssetActive.for_asset(asset))

    code = main(["doctor", "--all"])

    shown = capsys.readouterr().out
    assert code == 1
    of_gone = shown.partition("gone:")[2]
    assert "connection  FAILED  connection 'gone': is not defined" in of_gone
    of_other = shown.partition("other:")[2]
    assert "connection  FAILED  connection 'other': is of type 'http', not 'fsm'" in of_other


@ASSETS.needed
def test_a_dag_whose_file_cannot_be_imported_is_not_well(doctor, tmp_path, monkeypatch):
    with dags_that_define(tmp_path, monkeypatch) as read:
        read(gas="Gas Safety")
        break_import(tmp_path / "gas.py")
        process_files()

        code, verdicts = doctor()

    assert code == 1
    assert "'gas' (DAGs: gas): No form starts 1 of its 1 DAGs" in verdicts["assets"]


@ASSETS.needed
def test_a_dag_that_is_lost_does_not_define_an_asset_differently(doctor, tmp_path, monkeypatch):
    with dags_that_define(tmp_path, monkeypatch) as read:
        read(gas="Gas Safety", boiler="Boiler")
        break_import(tmp_path / "gas.py")
        process_files()

        _, verdicts = doctor()

    assert "'gas' (DAGs: boiler, gas): No form starts 1 of its 2 DAGs" in verdicts["assets"]
    assert "differently" not in verdicts["assets"]


@ASSETS.needed
def test_what_an_asset_of_another_connection_lacks_is_not_said(doctor, tmp_path, monkeypatch):
    with dags_that_define(tmp_path, monkeypatch) as read:
        read(north="completed_forms('oil', fsm_conn_id='north')")

        code, verdicts = doctor()

    assert (code, verdicts["assets"]) == (0, "ok      0 of completed forms")


@ASSETS.needed
def test_what_cannot_be_read_of_an_asset_hides_no_other(doctor, tmp_path, monkeypatch):
    with dags_that_define(tmp_path, monkeypatch) as read:
        read(gas="Gas Safety", oil="completed_forms('oil')")
        gas, _ = watched_assets(fsm_conn_id="fsm_default")
        store_with(gas, OWNER, ["id", 1.0, {"polled_at": "today"}])

        _, verdicts = doctor()

    assert "'gas' (DAGs: gas): What its watcher has stored cannot be read" in verdicts["assets"]
    assert "polled_at: should be a valid number" in verdicts["assets"]
    assert "'oil' (DAGs: oil): No triggerer watches it" in verdicts["assets"]
