"""The command that shows where assets' watchers are, and sets them to another time."""

import asyncio
import json
import os
from datetime import datetime

import pytest

from fsm_provider.commands.cli import main
from fsm_provider.polling import admin
from fsm_provider.polling.tracker import WATERMARK
from fsm_provider.polling.watcher import CONFIGURATION, OWNER, RESET
from fsm_provider.polling.watcher_config import FORMAT
from tests.capabilities import ASSETS, STATE_STORE
from tests.pages import DOCS, commands_with_output
from tests.unit.conftest import TOKEN
from tests.unit.disputed import dags_that_define
from tests.unit.polling.watching import prefix_of

AT = "2026-01-06T07:12:40.310Z"
DAYS_BEFORE = "2025-12-30T07:12:40.310Z"
NAME = "gas_safety_records"
ASSETS.require()


@pytest.fixture(scope="session")
def airflow_database():
    """Airflow's tables, in the SQLite file of this test run's AIRFLOW_HOME."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def asset(service, airflow_database, database_of_assets, connect):
    """An active asset."""
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.utils.session import create_session

    connect(service)
    with create_session() as session:
        model = AssetModel(name=NAME, uri=f"fsm://fsm_default/forms/{NAME}", group="asset")
        session.add(model)
        session.flush()
        session.add(AssetActive.for_asset(model))
    yield
    with create_session() as session:
        for table in (AssetActive, AssetModel):
            session.query(table).delete()


@pytest.fixture
def run(capsys):
    """Runs a command; returns its exit code, output and error."""

    def run_command(*arguments):
        capsys.readouterr()
        try:
            code = main(["watermark", *arguments])
        except SystemExit as ended:  # the command line is wrong
            code = ended.code
        captured = capsys.readouterr()
        assert TOKEN not in captured.out + captured.err
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run_command


def stored(key, value=None):
    """Read what is stored with the asset, or store it."""
    (asset,) = admin.watched_assets()
    if value is None:
        return admin.read_stored([asset], [key]).get((asset.asset_id, key))
    return store_with(asset, key, value)


def store_with(asset, key, value):
    if admin.AIRFLOW_V_3_3_PLUS:
        from airflow.state import AssetScope, get_state_backend

        get_state_backend().set(AssetScope(asset_id=asset.asset_id), key, json.dumps(value))
    else:
        asyncio.run(admin.sql_store(asset, create=True).aset(key, value))


@pytest.fixture(params=["in Airflow", "in a database"])
def where(request, monkeypatch, asset):
    if request.param == "in Airflow":
        STATE_STORE.require()
    is_in_airflow = request.param == "in Airflow"
    monkeypatch.setattr("fsm_provider.polling.admin.AIRFLOW_V_3_3_PLUS", is_in_airflow)


def test_it_shows_where_an_asset_is_and_sets_it_back(service, where, run):
    prefix = prefix_of(service)
    at = datetime.fromisoformat(AT).timestamp()
    floor = datetime.fromisoformat(DAYS_BEFORE).timestamp()
    assert run("show")[1].splitlines()[1].split() == [NAME, "fsm_default", "-", "-"]
    stored(prefix + WATERMARK, {"watermark": at, "floor": floor, "reset": None})

    shown = commands_with_output(DOCS / "start.md", "watermark")
    for arguments, output in shown:
        assert run(*arguments) == (0, output, "")

    assert run("show", NAME)[1] == shown[0][1]
    since = datetime.fromisoformat("2026-01-05T08:00:00Z").timestamp()
    assert stored(prefix + RESET)["time"] == since


@pytest.mark.parametrize("key", [WATERMARK, CONFIGURATION])
def test_what_a_newer_version_has_stored_is_said_and_not_set(service, where, run, key):
    prefix = prefix_of(service)
    stored(key if key == CONFIGURATION else prefix + key, {"format": FORMAT + 1})
    stored(OWNER, ["a", 1.0, {}])

    said = "written by a newer version of airflow-provider-fsm (format 2): install that version"
    (asset,) = admin.watched_assets()
    problems = list(map(str, asset.problems()))
    assert any(problem.startswith("Nothing watches it: ") for problem in problems)
    assert said in "".join(problems)
    code, output, error = run("set", NAME, AT)
    assert (code, output, said in error) == (1, "", True)
    assert stored(prefix + RESET) is None


@pytest.fixture
def ten_more(asset, monkeypatch):
    """Assets of ten other connections, of which nobody has defined the last."""
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.utils.session import create_session

    for number in range(9):
        connection = os.environ["AIRFLOW_CONN_FSM_DEFAULT"]
        monkeypatch.setenv(f"AIRFLOW_CONN_TENANT_{number}", connection)
    with create_session() as session:
        for number in range(10):
            uri = f"fsm://tenant_{number}/forms/of_{number}"
            model = AssetModel(name=f"of_{number}", uri=uri, group="asset")
            session.add(model)
            session.flush()
            session.add(AssetActive.for_asset(model))


def test_a_connection_that_nobody_has_defined_keeps_no_other_from_being_shown(ten_more, run):
    floor = datetime.fromisoformat(DAYS_BEFORE).timestamp()
    watermark = datetime.fromisoformat(AT).timestamp()
    for watched in admin.watched_assets():
        if watched.name != "of_9":
            progress = {"watermark": watermark, "floor": floor}
            store_with(watched, watched.read_prefix() + WATERMARK, progress)

    code, output, error = run("show")

    _, *lines = [line.split() for line in output.splitlines()]
    known = {NAME: "fsm_default", **{f"of_{number}": f"tenant_{number}" for number in range(9)}}
    shown = [[name, conn_id, AT, DAYS_BEFORE] for name, conn_id in known.items()]
    assert lines == [*shown, ["of_9", "tenant_9", "-", "-"]]
    assert code == 2
    assert error == (
        "connection 'tenant_9': is not defined, or not readable, where this runs: "
        "add it in Airflow, or set AIRFLOW_CONN_TENANT_9\n"
    )
    assert run("set", "of_9", AT)[::2] == (2, error)
    assert run("set", "of_8", AT)[0] == 0
    assert run("show", "of_8")[0] == 0


def test_of_two_assets_of_one_name_neither_is_set_back_if_one_cannot_be(
    service, airflow_database, database_of_assets, connect, run, tmp_path, monkeypatch
):
    connect(service)
    with dags_that_define(tmp_path, monkeypatch) as read:
        read(gas="Gas Safety", north="completed_forms('gas', fsm_conn_id='north')")
        here, _ = sorted(admin.watched_assets(), key=lambda asset: asset.fsm_conn_id)
        key = here.read_prefix() + RESET
        store_with(here, key, "before")
        code, _, error = run("set", "gas", AT)
        kept = admin.read_stored([here], [key])

    assert code == 2
    assert "connection 'north'" in error
    assert list(kept.values()) == ["before"]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (
            ["show", "other"],
            1,
            "there is no asset of completed forms",
        ),
        (
            ["set", "other", AT],
            1,
            "there is no asset of completed forms",
        ),
        (
            ["set", NAME, "2999-01-01"],
            2,
            "is in the future",
        ),
        (["set", NAME, "yesterday"], 2, "TIME"),
    ],
)
def test_what_it_refuses(asset, run, arguments, code, error):
    ended, _, says = run(*arguments)

    assert ended == code
    assert error in says


def test_before_airflow_3_3_it_says_that_there_is_no_database_yet_and_makes_none(
    asset, run, monkeypatch, tmp_path
):
    monkeypatch.setattr("fsm_provider.polling.admin.AIRFLOW_V_3_3_PLUS", False)
    file = tmp_path / "state.db"

    code, output, error = run("show")

    assert (code, output.splitlines()[1].split()) == (1, [NAME, "fsm_default", "-", "-"])
    assert error == (f"there is no ledger yet at connection 'fsm_state' (sqlite:///{file})\n")
    assert not file.exists()
    (asset_now,) = admin.watched_assets()
    place = "no database was found at connection 'fsm_state'"
    assert f"What its watcher has stored cannot be read: {place}" in map(str, asset_now.problems())
    assert run("set", NAME, AT)[0] == 0
    assert run("show")[0] == 0
    assert file.exists()


def test_before_airflow_3_3_a_connection_that_names_no_database_is_named(
    asset, run, monkeypatch, service
):
    monkeypatch.setattr("fsm_provider.polling.admin.AIRFLOW_V_3_3_PLUS", False)
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", service.connection_json())

    code, _, error = run("show")

    assert code == 2
    assert "connection 'fsm_default' names no database as its state_conn_id" in error
