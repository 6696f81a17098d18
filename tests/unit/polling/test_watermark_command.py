"""The commands that show assets' watermarks, and have forms emitted again."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.polling.watermark_command import main, make_parser
from fsm_provider.testing import faults
from tests.capabilities import ASSETS, SHARED_STREAMS
from tests.pages import DOCS
from tests.unit.conftest import TOKEN

EARLIER, LATER = "2026-01-04T08:00:00.000Z", "2026-01-06T08:00:00.000Z"
FUTURE = "2999-01-01T00:00:00Z"


@pytest.fixture(scope="session")
def airflow_database():
    """Airflow's tables, in the SQLite file of this test run's AIRFLOW_HOME."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(autouse=True)
def connected(service, connect, airflow_database, database):
    """With a database for Airflow before 3.3."""
    connect(service, max_retries=0)


@pytest.fixture
def run(capsys):
    """Runs a command; returns its exit code, output and error."""

    def run_command(*arguments):
        capsys.readouterr()
        try:
            code = main(list(arguments))
        except SystemExit as ended:  # the command line is wrong
            code = ended.code
        captured = capsys.readouterr()
        assert TOKEN not in captured.out + captured.err
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run_command


@contextmanager
def opened_store():
    """The store of the asset, as commands open it."""
    from airflow.utils.session import create_session

    from fsm_provider.polling.watched_assets import _store_of
    from fsm_provider.state.server_asset_store import active_assets
    from tests.unit.polling.emitting import NAME

    with create_session() as session:
        (asset,) = active_assets(NAME, session)
        yield _store_of(asset, session)


async def store_all(store, values):
    for key, text in values.items():
        await store.aset(key, json.loads(text))


@ASSETS.needed
class TestOfAnAsset:
    @pytest.fixture(autouse=True)
    def asset(self, connected):
        from airflow.models.asset import AssetActive, AssetModel
        from airflow.models.trigger import Trigger
        from airflow.utils.session import create_session

        from tests.unit.polling.emitting import NAME

        with create_session() as session:
            model = AssetModel(name=NAME, uri="fsm://fsm_default/forms/records", group="asset")
            session.add(model)
            session.flush()
            session.add(AssetActive.for_asset(model))
        yield
        with create_session() as session:
            for table in (Trigger, AssetActive, AssetModel):
                session.query(table).delete()

    @pytest.fixture
    def emit_until(self, asset):
        """Has a watcher emit forms. What it stores is in Airflow's database once it has ended."""
        from fsm_provider.polling.replays import REPLAY
        from tests.unit.polling.emitting import MemoryStore, emit
        from tests.unit.supervisor import supervised

        values = MemoryStore()

        def emit_until(*expected, **settings):
            with opened_store() as store:
                if (requested := asyncio.run(store.aget(REPLAY))) is not None:
                    values.values[REPLAY] = json.dumps(requested)
            with supervised():
                forms = emit(values, expected, **settings)
            with opened_store() as store:
                asyncio.run(store_all(store, values.values))
            return forms

        return emit_until

    @pytest.fixture
    def watch(self, service, emit_until):
        """Has a watcher emit all forms. Returns what has one emit these forms, and one that is added."""
        now = datetime.now(UTC)
        for hours in (5, 3, 2):
            service.add_form(created=now - timedelta(hours=hours))
        assert emit_until(5001, 5002, 5003, start_from="beginning") == [5001, 5002, 5003]
        return lambda *expected: emit_until(*expected, service.add_form()["id"])[:-1]

    @pytest.fixture
    def running(self, asset):
        """A triggerer has the asset's watcher."""
        from airflow.jobs.job import Job
        from airflow.models.asset import AssetModel
        from airflow.models.trigger import Trigger
        from airflow.utils.session import create_session

        with create_session() as session:
            job = Job()
            job.job_type, job.state, job.latest_heartbeat = "TriggererJob", "running", datetime.now(UTC)
            trigger = Trigger("fsm_provider.triggers.forms.FsmFormEventTrigger", {"asset_name": "records"})
            session.add_all([job, trigger])
            session.flush()
            trigger.triggerer_id = job.id
            model = session.query(AssetModel).one()
            if hasattr(model, "add_trigger"):
                model.add_trigger(trigger, "records")
            else:  # before Airflow 3.2
                model.triggers.append(trigger)
        yield
        with create_session() as session:
            session.query(Job).delete()

    def ago(self, hours):
        return (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="seconds")

    def replay(self, since, until):
        return "replay", "records", "--since", self.ago(since), "--until", self.ago(until)

    def test_show_lists_it_with_what_is_requested(self, run, watch):
        code, out, _ = run("show")
        run("rewind", "records", "--to", self.ago(4))
        requested = run("show", "records")[1]

        row = out.splitlines()[1].split()
        assert code == 0
        assert row[0] == "records"
        assert timedelta(0) < datetime.now(UTC) - datetime.fromisoformat(row[1]) < timedelta(hours=2)
        assert "to emit again" not in out
        assert "to emit again: forms updated since" in requested

    def test_rewind_has_the_forms_since_then_emitted_again(self, run, watch):
        code, out, _ = run("rewind", "records", "--to", self.ago(4))

        assert code == 0
        assert "records: forms updated since" in out
        assert sorted(watch(5002, 5003)) == [5002, 5003]
        assert "to emit again" not in run("show")[1]

    @SHARED_STREAMS.needed
    def test_the_connection_need_not_be_defined(self, run, watch, monkeypatch):
        monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")

        shown, rewound = run("show"), run("rewind", "records", "--to", self.ago(4))

        assert shown[1].splitlines()[1].split()[0] == "records"
        assert "records: forms updated since" in rewound[1]
        assert (shown[0], rewound[0]) == (0, 0)

    def test_replay_has_those_of_a_period_emitted_again(self, run, watch):
        code, _, _ = run(*self.replay(4, 2.5))

        assert code == 0
        assert watch(5002) == [5002]

    @pytest.mark.parametrize(("until", "expected"), [(None, ["5002", "5003"]), (2.5, ["5002"])])
    def test_a_dry_run_lists_them_and_changes_nothing(self, run, watch, until, expected):
        request = self.replay(4, until) if until else ("rewind", "records", "--to", self.ago(4))
        code, out, _ = run(*request, "--dry-run")

        line, _, *forms = out.splitlines()
        assert code == 0
        assert line.startswith(f"records: {len(expected)} forms updated since ")
        assert line.endswith(" would be emitted again")
        assert [form.split()[0] for form in forms] == expected
        assert watch() == []

    def test_a_dry_run_prints_twenty_forms_and_their_number(self, run, watch, service):
        for _ in range(25):
            service.add_form(created=datetime.now(UTC) - timedelta(minutes=30))
        watch(*range(5004, 5029))

        _, out, _ = run("rewind", "records", "--to", self.ago(4), "--dry-run")

        assert out.startswith("records: 28 forms updated since")
        assert len(out.splitlines()) == 2 + 20

    def test_a_period_without_forms_is_no_error(self, run, watch):
        code, out, _ = run(*self.replay(1.5, 1.2), "--dry-run")

        assert code == 0
        assert "records: 0 forms" in out
        assert len(out.splitlines()) == 1

    def test_a_dry_run_while_the_service_is_away_says_so(self, run, watch, service):
        service.fail("GET", "/forms", faults.Status(503), every=True)

        code, out, error = run(*self.replay(4, 2.5), "--dry-run")

        assert (code, out) == (2, "")
        assert "503" in error

    def test_a_request_is_refused_while_another_waits(self, run, watch):
        run("rewind", "records", "--to", self.ago(4))

        code, _, error = run("rewind", "records", "--to", self.ago(6))

        assert code == 1
        assert "were requested before, and not begun yet" in error
        assert sorted(watch(5002, 5003)) == [5002, 5003]

    def test_of_two_requests_at_once_one_is_refused(self, watch):
        from airflow.utils.session import create_session

        from fsm_provider.polling.watched_assets import watched_assets

        with ThreadPoolExecutor() as pool, create_session() as session:
            (asset,) = asyncio.run(watched_assets(session, "records", lock=True))
            asyncio.run(asset.request(asset.replay(datetime.now(UTC) - timedelta(hours=4), None)))
            second = pool.submit(main, self.replay(6, 4))
            time.sleep(1)
            session.commit()
            assert second.result() == 1

        assert sorted(watch(5002, 5003)) == [5002, 5003]

    def test_a_request_that_somebody_has_edited_is_replaced(self, run, watch):
        from fsm_provider.polling.replays import REPLAY

        with opened_store() as store:
            asyncio.run(store.aset(REPLAY, {"since": "yesterday"}))

        assert run(*self.replay(4, 2.5))[0] == 0
        assert watch(5002) == [5002]

    def test_it_says_whether_a_watcher_runs(self, run, watch, running):
        from airflow.models.trigger import Trigger
        from airflow.utils.session import create_session

        runs = run("show")[1], run(*self.replay(4, 2.5))[1]
        watch(5002)
        with create_session() as session:
            session.query(Trigger).update({"triggerer_id": None})
        none = run("show")[1], run(*self.replay(4, 2.5))[1]

        assert "no watcher runs" not in runs[0]
        assert "That begins within a minute." in runs[1]
        assert "no watcher runs" in none[0]
        assert "That begins once a watcher runs, and none does" in none[1]

    def test_an_asset_that_is_inactive_or_was_never_watched_is_refused(self, run, watch):
        from airflow.models.asset import AssetActive
        from airflow.utils.session import create_session

        with create_session() as session:
            session.query(AssetActive).delete()

        code, _, error = run(*self.replay(4, 2.5))

        assert code == 1
        assert "no active asset of this name has been watched" in error
        assert run("show")[0] == 1

    def test_a_time_before_its_start_is_refused(self, run, service, emit_until):
        emit_until(service.add_form()["id"], start_from=self.ago(1))

        code, _, error = run("rewind", "records", "--to", self.ago(2))

        assert code == 1
        assert "is before its start_from" in error

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (("rewind", "records", "--to", FUTURE), 2),
            (("rewind", "records", "--to", "0001-01-01T00:00:00+14:00"), 2),
            (("rewind", "records", "--to", "yesterday"), 2),
            (("rewind", "another", "--to", EARLIER), 1),
            (("replay", "records", "--since", LATER, "--until", EARLIER), 1),
            (("replay", "records", "--since", EARLIER, "--until", EARLIER), 1),
            (("replay", "another", "--since", EARLIER, "--until", LATER), 1),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, run, watch, arguments, code):
        assert run(*arguments)[0] == code
        assert "to emit again" not in run("show")[1]

    @pytest.mark.skipif(SHARED_STREAMS.is_there, reason="since Airflow 3.3 the values are Airflow's")
    def test_a_value_that_somebody_has_edited_is_named(self, run, watch, database):
        database.execute("UPDATE fsm_asset_state SET value = 'no JSON'")

        code, _, error = run("show")

        assert code == 2
        assert (
            "'fsm_forms/configurations' of the asset 'records' in the table fsm_asset_state is not" in error
        )

    @pytest.mark.skipif(SHARED_STREAMS.is_there, reason="since Airflow 3.3 no database is needed")
    def test_without_a_database_it_says_what_is_missing(self, run, watch, service, connect, connection_extra):
        del connection_extra["state_conn_id"]
        connect(service)

        code, _, error = run("show")

        assert code == 2
        assert "connection 'fsm_default' names no database as its state_conn_id" in error

    @SHARED_STREAMS.needed
    def test_values_that_are_elsewhere_are_not_looked_for(self, run, watch, monkeypatch):
        monkeypatch.setenv("AIRFLOW__WORKERS__STATE_STORE_BACKEND", "theirs.Backend")

        code, _, error = run("show")

        assert code == 2
        assert "only workers read what is in theirs.Backend" in error


@pytest.mark.skipif(ASSETS.is_there, reason="Airflow 3 has assets")
@pytest.mark.parametrize(
    "arguments",
    [("show",), ("replay", "records", "--since", EARLIER, "--until", LATER)],
    ids=" ".join,
)
def test_assets_are_of_airflow_3(run, arguments):
    code, _, error = run(*arguments)

    assert code == 1
    assert "need Airflow 3.0 or newer" in error


@ASSETS.needed
def test_a_database_without_tables_is_an_error(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "fsm_provider", "watermark", "show"],
        env=os.environ
        | {
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (2, "")
    assert "no such table" in result.stderr


def test_the_commands_that_the_pages_show_are_understood():
    shown = re.findall(r"^\$ python -m fsm_provider watermark (.*)$", (DOCS / "forms.md").read_text(), re.M)

    assert [make_parser("watermark").parse_args(shlex.split(one)).command for one in shown]
