"""The commands that show and move watermarks: in the database, in a Variable, and of an asset."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider import watermark
from fsm_provider.polling.watermark_command import main
from tests.capabilities import ASSETS, SHARED_STREAMS
from tests.unit.conftest import TOKEN

ASSETS.require()

from tests.unit.supervisor import supervised  # noqa: E402

AT, EARLIER, LATER = "2026-01-05T08:00:00Z", "2026-01-04T08:00:00Z", "2026-01-06T08:00:00Z"
FUTURE = "2999-01-01T00:00:00Z"
IN_DATABASE = pytest.mark.parametrize("store", ["in a database"], indirect=True)


@pytest.fixture(scope="session")
def airflow_database():
    """Airflow's tables, in the SQLite file of this test run's AIRFLOW_HOME."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(autouse=True)
def connected(service, connect, airflow_database, request):
    from airflow.models import Variable
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.utils.session import create_session

    if "store" in request.fixturenames:
        request.getfixturevalue("store")
    connect(service, max_retries=0)
    yield
    with create_session() as session:
        for table in (AssetActive, AssetModel, Variable):
            session.query(table).delete()


@pytest.fixture
def run(capsys):
    """Runs a command; returns its exit code, output and error."""

    def run_command(*arguments):
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        assert TOKEN not in captured.out + captured.err
        assert "\n" not in captured.err.strip()
        return code, captured.out, captured.err

    return run_command


def seed(service, *times):
    for time in times:
        service.add_form(created=datetime.fromisoformat(time))


def since():
    """Where the next run of the DAG would begin."""
    with supervised():
        return datetime.fromisoformat(watermark.begin("my_dag", timedelta(0), "fsm_default")["since"])


class TestInTheDatabase:
    pytestmark = IN_DATABASE

    @pytest.fixture(autouse=True)
    def committed(self, store):
        with supervised() as supervisor:
            supervisor.variables["my_dag"] = AT
            watermark.begin("my_dag", timedelta(0), "fsm_default")

    def test_show_lists_it(self, run):
        code, out, _ = run("show")

        assert code == 0
        head, row = out.splitlines()
        assert head.split("  ")[0] == "watermark"
        assert row.split() == ["my_dag", "database", "ledger", "fsm_default", AT]

    def test_rewind_sets_it_back_for_the_next_run(self, run):
        code, out, _ = run("rewind", "my_dag", "--to", EARLIER)

        assert code == 0
        assert f"my_dag: from {AT} to {EARLIER}" in out
        assert since() == datetime.fromisoformat(EARLIER)

    def test_a_dry_run_lists_the_forms_and_changes_nothing(self, run, service):
        seed(service, "2026-01-03T08:00:00Z", AT, LATER)

        code, out, _ = run("rewind", "my_dag", "--to", EARLIER, "--dry-run")

        line, _, *forms = out.splitlines()
        assert code == 0
        assert line == (
            f"my_dag: from {AT} to {EARLIER}: 2 forms were updated since then, whatever the DAG lists"
        )
        assert [form.split()[0] for form in forms] == ["5002", "5003"]
        assert "Gas Safety Record" in forms[0]
        assert "2026-01-05T08:00:00" in forms[0]
        assert since() == datetime.fromisoformat(AT)

    def test_a_later_time_is_refused_unless_forced(self, run):
        refused = run("rewind", "my_dag", "--to", LATER)
        at_refusal = since()
        forced = run("rewind", "my_dag", "--to", LATER, "--force")

        assert refused[0] == 1
        assert "would skip forms; add --force" in refused[2]
        assert at_refusal == datetime.fromisoformat(AT)
        assert forced[0] == 0
        assert since() == datetime.fromisoformat(LATER)

    @pytest.mark.parametrize("more", [[], ["--force"]])
    def test_a_time_in_the_future_is_refused(self, run, more):
        code, _, error = run("rewind", "my_dag", "--to", FUTURE, *more)

        assert code == 1
        assert "is in the future" in error
        assert since() == datetime.fromisoformat(AT)

    def test_a_name_that_is_unknown_is_refused(self, run):
        assert run("rewind", "another", "--to", EARLIER)[0] == 1
        assert run("rewind", "another", "--to", EARLIER, "--database")[0] == 1
        assert run("show", "another")[0] == 1

    def test_a_run_that_moves_it_meanwhile_wins(self, run, monkeypatch):
        from fsm_provider.state.sql_watermarks import SqlWatermark

        replace = SqlWatermark.replace

        def late(self, expected, at):
            self.advance(datetime.fromisoformat(LATER))
            return replace(self, expected, at)

        monkeypatch.setattr(SqlWatermark, "replace", late)
        code, _, error = run("rewind", "my_dag", "--to", EARLIER)

        assert code == 1
        assert "has just been moved by a run" in error
        assert since() == datetime.fromisoformat(LATER)


class TestInAVariable:
    @pytest.fixture(autouse=True)
    def committed(self, connected):
        from airflow.models import Variable

        Variable.set("my_dag", AT, description="mine")

    def stored(self):
        from airflow.models import Variable
        from airflow.utils.session import create_session

        with create_session() as session:
            return [(one.val, one.description) for one in session.query(Variable)]

    def test_show_prints_it(self, run):
        code, out, _ = run("show", "--variable", "my_dag")

        assert code == 0
        assert out.splitlines()[1].split() == ["my_dag", "a", "Variable", "-", AT]

    def test_rewind_sets_it_back(self, run):
        code, out, _ = run("rewind", "--variable", "my_dag", "--to", EARLIER)

        assert code == 0
        assert f"my_dag: from {AT} to {EARLIER}" in out
        assert self.stored() == [("2026-01-04T08:00:00+00:00", "mine")]

    def test_a_dry_run_lists_the_forms_and_changes_nothing(self, run, service):
        seed(service, *[AT] * 25)

        code, out, _ = run("rewind", "--variable", "my_dag", "--to", EARLIER, "--dry-run")

        assert code == 0
        assert "25 forms were updated" in out
        assert len(out.splitlines()) == 2 + 20
        assert self.stored() == [(AT, "mine")]

    def test_a_later_time_and_what_is_no_variable_are_refused(self, run):
        assert run("rewind", "--variable", "my_dag", "--to", LATER)[0] == 1
        assert run("rewind", "--variable", "another", "--to", EARLIER)[0] == 1
        assert run("show", "--variable")[0] == 1
        assert self.stored() == [(AT, "mine")]

    def test_one_from_elsewhere_is_not_shadowed(self, run, monkeypatch):
        monkeypatch.setenv("AIRFLOW_VAR_ANOTHER", AT)

        code, _, error = run("rewind", "--variable", "another", "--to", EARLIER)

        assert code == 1
        assert "is not in Airflow's database" in error


@SHARED_STREAMS.needed
class TestOfAnAsset:
    """A watcher runs, what it has stored is copied to Airflow's database, and back before it runs again."""

    @pytest.fixture(params=["in the state store", "in Variables"])
    def asset_store(self, request, monkeypatch, connected):
        """Where assets have their state; before Airflow 3.3, that is in Variables."""
        from fsm_provider.state import server_asset_store

        if request.param == "in Variables":
            monkeypatch.setattr(server_asset_store, "has_shared_streams", lambda: False)
        return server_asset_store.ServerAssetStore

    @pytest.fixture
    def watch(self, service, asset_store):
        """Has a watcher emit all forms, and stores its state. Returns what has a watcher emit the next."""
        import asyncio

        from airflow.models.asset import AssetActive, AssetModel
        from airflow.utils.session import create_session

        from fsm_provider.polling.producer import CONFIRMATION_DELAY
        from fsm_provider.polling.stored_trackers import REPLAY
        from tests.unit.clocks import run_hurried
        from tests.unit.polling.watching import NAME, Supervisor, watching

        supervisor = Supervisor()

        async def until_emitted():
            async with watching(start_from="beginning") as watcher:
                await watcher.until(lambda: watcher.forms)
                await asyncio.sleep(CONFIRMATION_DELAY + 1)
                return watcher.forms

        def emitted():
            if (replay := asyncio.run(asset_store(NAME).aget(REPLAY))) is not None:
                supervisor.asset_state[NAME, REPLAY] = replay
            with supervised(supervisor):
                forms = run_hurried(until_emitted())
            for (name, key), value in supervisor.asset_state.items():
                asset_store(name).set(key, value)
            return forms

        with create_session() as session:
            model = AssetModel(name=NAME, uri="fsm://fsm_default/forms/records", group="asset")
            session.add(model)
            session.flush()
            session.add(AssetActive.for_asset(model))
        now = datetime.now(UTC)
        for hours in (5, 3, 2):
            service.add_form(created=now - timedelta(hours=hours))
        assert emitted() == [5001, 5002, 5003]
        return emitted

    def ago(self, hours):
        return (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="seconds")

    def test_show_lists_it_with_what_is_requested(self, run, watch):
        code, out, _ = run("show")
        run("rewind", "records", "--to", self.ago(4))
        requested = run("show", "records", "--asset")[1]

        row = out.splitlines()[1].split()
        assert code == 0
        assert row[:4] == ["records", "an", "asset", "fsm_default"]
        assert timedelta(0) < datetime.now(UTC) - datetime.fromisoformat(row[4]) < timedelta(hours=2)
        assert "a replay is requested" not in out
        assert "a replay is requested" in requested

    def test_rewind_has_the_forms_since_then_emitted_again(self, run, watch):
        code, out, _ = run("rewind", "records", "--to", self.ago(4))

        assert code == 0
        assert "emits the forms updated since" in out
        assert watch() == [5002, 5003]
        assert "a replay is requested" not in run("show")[1]

    def test_replay_has_those_of_a_period_emitted_again(self, run, watch, service):
        code, _, _ = run("replay", "records", "--from", self.ago(4), "--to", self.ago(2.5))

        service.add_form()
        assert code == 0
        assert watch() == [5002, 5004]

    @pytest.mark.parametrize(
        ("to", "expected"), [([], ["5002", "5003"]), (["2.5"], ["5002"])], ids=["rewind", "replay"]
    )
    def test_a_dry_run_lists_them_and_changes_nothing(self, run, watch, service, to, expected):
        times = (
            ("replay", "records", "--from", self.ago(4), "--to", self.ago(float(to[0])))
            if to
            else ("rewind", "records", "--to", self.ago(4))
        )
        code, out, _ = run(*times, "--dry-run")

        line, _, *forms = out.splitlines()
        assert code == 0
        assert f"records: {len(expected)} forms updated since" in line
        assert [form.split()[0] for form in forms] == expected
        added = service.add_form()["id"]
        assert watch() == [added]

    def test_a_request_is_refused_while_another_waits(self, run, watch):
        run("rewind", "records", "--to", self.ago(4))

        code, _, error = run("rewind", "records", "--to", self.ago(6))

        assert code == 1
        assert "has not begun yet what was requested before" in error
        assert watch() == [5002, 5003]

    @pytest.mark.parametrize(
        "arguments",
        [
            ("rewind", "records", "--to", FUTURE),
            ("rewind", "another", "--to", EARLIER),
            ("rewind", "another", "--to", EARLIER, "--asset"),
            ("replay", "records", "--from", LATER, "--to", EARLIER),
            ("replay", "another", "--from", EARLIER, "--to", LATER),
        ],
        ids=" ".join,
    )
    def test_what_makes_no_sense_is_refused(self, run, watch, arguments):
        assert run(*arguments)[0] == 1
        assert "a replay is requested" not in run("show")[1]


@pytest.mark.parametrize("arguments", [("show",), ("rewind", "my_dag", "--to", EARLIER)], ids=" ".join)
def test_a_connection_that_is_not_defined_is_named(run, arguments):
    code, out, error = run(*arguments, "--conn-id", "nowhere")

    assert (code, out) == (2, "")
    assert "nowhere" in error


def test_a_database_without_tables_is_an_error(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "fsm_provider", "watermark", "show", "--asset"],
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
