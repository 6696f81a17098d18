"""How far a DAG that lists at intervals has come, run after run: in a Variable, and in a database."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
import sqlalchemy

from fsm_provider import watermark
from fsm_provider.api.errors import FsmInputError
from fsm_provider.state import sql_entries
from fsm_provider.state.variables import VariableUnreadableError
from fsm_provider.testing import FakeFieldService
from tests.unit.state_store import DatabaseStore
from tests.unit.supervisor import AirflowRuntimeError, comms

pytestmark = pytest.mark.usefixtures("supervisor")

NAME = "my_dag"
LOOK_BACK = timedelta(hours=2)
CONNECTION = "fsm_default"


@pytest.fixture
def connected(store, service, connect):
    connect(service)
    return store


@pytest.fixture
def database(database, service, connect):
    connect(service)
    return database


def begin():
    return watermark.begin(NAME, LOOK_BACK, CONNECTION)


def commit(begun):
    watermark.commit(NAME, begun["now"], CONNECTION)


def since_for(begun):
    return datetime.fromisoformat(begun["since"])


def stored_in(database):
    (row,) = database.rows("fsm_watermarks")
    return row.at


class TestInEither:
    def test_the_first_run_begins_a_look_back_before_itself(self, connected):
        before = datetime.now(UTC)

        begun = begin()

        assert before - LOOK_BACK <= since_for(begun) <= datetime.now(UTC) - LOOK_BACK

    def test_runs_that_fail_go_on_from_the_last_that_succeeded(self, connected):
        first, again = begin(), begin()
        commit(again)

        assert again["since"] == first["since"]
        assert since_for(begin()) == datetime.fromisoformat(again["now"]) - LOOK_BACK

    def test_a_cleared_run_does_not_move_the_watermark_back(self, connected):
        earlier, later = begin(), begin()
        commit(later)

        commit(earlier)

        assert since_for(begin()) == datetime.fromisoformat(later["now"]) - LOOK_BACK

    def test_it_is_where_the_connection_says(self, connected, variables):
        begin()

        assert (NAME in variables) == (not isinstance(connected, DatabaseStore))

    def test_what_is_no_time_is_not_committed(self, connected):
        with pytest.raises(FsmInputError, match="now: 'soon' is no ISO 8601 time"):
            commit({"now": "soon"})

    def test_a_variable_that_holds_no_time_is_named(self, connected, variables):
        variables[NAME] = "soon"

        with pytest.raises(FsmInputError, match="Variable my_dag: 'soon' is no ISO 8601 time"):
            begin()


@pytest.mark.parametrize("store", ["in a database"], indirect=True)
def test_without_a_connection_it_is_in_the_variable(connected, variables):
    begun = watermark.begin(NAME, LOOK_BACK)
    watermark.commit(NAME, begun["now"])

    assert variables[NAME] == begun["now"]
    assert not connected.file.exists()


class TestInADatabase:
    def test_the_variable_is_taken_over_and_left_as_it_is(self, database, variables):
        variables[NAME] = "2026-01-05T08:30:00+02:00"

        assert since_for(begin()) == datetime(2026, 1, 5, 4, 30, tzinfo=UTC)
        variables[NAME] = "2026-01-06T00:00:00+00:00"
        assert since_for(begin()) == datetime(2026, 1, 5, 4, 30, tzinfo=UTC)
        assert stored_in(database) == "2026-01-05T06:30:00.000000+00:00"
        assert variables == {NAME: "2026-01-06T00:00:00+00:00"}

    def test_a_commit_takes_a_later_variable_over(self, database, variables):
        """The connection has named the database since the run began."""
        variables[NAME] = "2026-01-05T08:30:00+00:00"

        commit({"now": "2026-01-05T08:00:00+00:00"})

        assert stored_in(database) == "2026-01-05T08:30:00.000000+00:00"

    def test_a_variable_that_cannot_be_read_is_not_taken_for_the_first_run(self, database, supervisor):
        supervisor.variables[NAME] = "2026-01-05T08:30:00+00:00"
        supervisor.refuse(comms.GetVariable)

        with pytest.raises((VariableUnreadableError, AirflowRuntimeError)):
            begin()
        assert database.rows("fsm_watermarks") == []

    def test_another_airflow_goes_on_from_it(self, database, variables):
        commit(begun := begin())
        variables.clear()

        assert since_for(begin()) == datetime.fromisoformat(begun["now"]) - LOOK_BACK

    @pytest.mark.parametrize(
        ("earlier", "later"),
        [
            ("2026-01-05T08:00:00+00:00", "2026-01-05T08:00:00.000001+00:00"),
            ("2026-01-05T09:00:00+02:00", "2026-01-05T08:00:00+00:00"),
        ],
    )
    def test_times_are_compared_however_they_are_written(self, database, earlier, later):
        for now in (earlier, later, earlier):
            commit({"now": now})

        assert datetime.fromisoformat(stored_in(database)) == datetime.fromisoformat(later)

    def test_first_runs_at_the_same_moment_have_one_watermark(self, database):
        begin()
        database.execute("DELETE FROM fsm_watermarks")
        barrier = Barrier(4)

        def run(_):
            barrier.wait()
            return begin()

        with ThreadPoolExecutor(4) as pool:
            begun = list(pool.map(run, range(4)))

        assert len({one["since"] for one in begun}) == 1

    def test_commits_at_the_same_moment_leave_the_latest(self, database):
        begin()
        start = datetime.now(UTC)
        times = [(start + timedelta(seconds=number * 7 % 16)).isoformat() for number in range(16)]

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda now: commit({"now": now}), times))

        assert datetime.fromisoformat(stored_in(database)) == start + timedelta(seconds=15)

    def test_each_name_and_each_service_has_its_own(self, database, connect):
        first = begin()
        watermark.begin("another_dag", LOOK_BACK, CONNECTION)
        with FakeFieldService() as another:
            connect(another, state_conn_id="ledger")
            other = begin()

        assert other["since"] != first["since"]
        assert sorted(row.name for row in database.rows("fsm_watermarks")) == ["another_dag", NAME, NAME]

    def test_nothing_moves_while_the_database_is_away(self, database, variables, monkeypatch):
        monkeypatch.setattr(sql_entries, "RETRY_SECONDS", 0)
        begun = begin()
        before = stored_in(database)
        monkeypatch.setenv(
            "AIRFLOW_CONN_LEDGER", json.dumps({"conn_type": "sqlite", "host": "/nowhere/l.db"})
        )

        for call in (begin, lambda: commit(begun)):
            with pytest.raises(sqlalchemy.exc.OperationalError):
                call()
        assert stored_in(database) == before
        assert NAME not in variables

    def test_a_transaction_that_fails_for_a_moment_is_repeated(self, database, monkeypatch):
        begun = begin()
        failed = []

        @sqlalchemy.event.listens_for(sqlalchemy.engine.Engine, "before_cursor_execute")
        def fail_once(connection, cursor, statement, *args):
            if statement.startswith("UPDATE fsm_watermarks") and not failed:
                failed.append(statement)
                raise sqlalchemy.exc.OperationalError(statement, {}, Exception("database is locked"))

        try:
            commit(begun)
        finally:
            sqlalchemy.event.remove(sqlalchemy.engine.Engine, "before_cursor_execute", fail_once)

        assert failed
        assert datetime.fromisoformat(stored_in(database)) == datetime.fromisoformat(begun["now"])
