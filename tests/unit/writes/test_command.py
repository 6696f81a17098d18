"""The commands for a ledger, in SQL and in Airflow: what they change, and what tasks do then."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from uuid import uuid4

import pytest
import sqlalchemy
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.api.errors import FsmRefusedError
from fsm_provider.commands.cli import main
from fsm_provider.state.schema import LEDGER
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.writes import admin
from fsm_provider.writes.ledger import EntryFilter
from fsm_provider.writes.task_ledger import PAGE
from tests.capabilities import IS_AIRFLOW_3, STATE_STORE
from tests.pages import DOCS, commands_with_output
from tests.unit.conftest import TOKEN
from tests.unit.operators.jobs import attempt_of, create, request, statuses
from tests.unit.state_store import DatabaseStore, MemoryStateStore, context_for
from tests.unit.writes.operators import lose, write_job, write_jobs, write_request

NOTHING = "nothing was found that was sent under the host and login that fsm_default has now\n"
WHY = ("--why", "looked it up", "--by", "jo")
BAD_REASON = "--why (How you know): should have 1 to 1000 characters, not {}\n"
ID_4711 = ("--job-id", "4711")
PM_7 = {"key": "PM-7", "job": {"customerReference": "PM-7"}}
create_job = partial(write_job, **PM_7)
create_jobs = partial(write_jobs, **PM_7)
send_request = partial(write_request, **PM_7)


class AirflowStore(MemoryStateStore):
    """A task's store in Airflow's own database, with its run."""

    def __init__(self, run_id="run", task_id="task", map_index=-1):
        from airflow.models import DagRun, TaskInstance
        from airflow.models.task_state_store import TaskStateStoreModel
        from airflow.utils.session import create_session

        super().__init__()
        self._session = create_session
        self._model = TaskStateStoreModel
        self._task_instance = TaskInstance
        run = {"dag_id": "dag", "run_id": run_id}
        self._task = {**run, "task_id": task_id, "map_index": map_index}
        with create_session() as session:
            stored = session.query(DagRun).filter_by(**run).one_or_none()
            run = stored or DagRun(**run, run_type="manual", run_after=datetime.now(UTC))
            session.add(run)
            session.flush()
            self._run_id = run.id
            values = {
                **self._task,
                "id": uuid4(),
                "max_tries": 0,
                "pool": "default_pool",
                "pool_slots": 1,
            }
            session.execute(sqlalchemy.insert(TaskInstance.__table__).values(values))

    def get(self, key, default=None):
        with self._session() as session:
            stored = self._query(session, key).one_or_none()
            if stored is None:
                return default
            return json.loads(stored.value)

    def set(self, key, value, *, retention=None):
        with self._session() as session:
            self._query(session, key).delete()
            stored = {"dag_run_id": self._run_id, "key": key, "value": json.dumps(value)}
            session.add(self._model(**self._task, **stored))

    def _query(self, session, key):
        is_of_task = {"dag_run_id": self._run_id, "key": key}
        for name in ("task_id", "map_index"):
            is_of_task[name] = self._task[name]
        return session.query(self._model).filter_by(**is_of_task)

    def set_state(self, state):
        """Set the state of the task instance."""
        with self._session() as session:
            session.query(self._task_instance).update({"state": state})

    def pass_time(self, seconds):
        """Have all that is stored have been stored earlier."""
        with self._session() as session:
            for stored in session.query(self._model):
                stored.updated_at -= timedelta(seconds=seconds)

    def remove(self):
        """Remove the run, with all that is of it."""
        from airflow.models import DagRun

        with self._session() as session:
            for table in (self._model, self._task_instance, DagRun):
                session.query(table).delete()


@pytest.fixture
def store(connection_extra, monkeypatch, tmp_path):
    """A ledger in SQL."""
    made = DatabaseStore(tmp_path)
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", made.connection)
    connection_extra["state_conn_id"] = made.CONN_ID
    yield made
    made.engine.dispose()


@pytest.fixture(autouse=True)
def connected(service, connect, store):
    connect(service, max_retries=0)


@pytest.fixture
def run(capsys):
    """Runs a command; returns its exit code, output and error."""

    import airflow.models  # noqa: F401 # logs to the standard output at its import

    def run_command(*arguments):
        capsys.readouterr()
        code = main(["ledger", *arguments])
        captured = capsys.readouterr()
        assert TOKEN not in captured.out + captured.err
        # Airflow 2 logs why it does not find a connection.
        assert "\n" not in captured.err.strip() or not IS_AIRFLOW_3
        return code, captured.out, captured.err

    return run_command


@pytest.fixture
def task_is_faster(monkeypatch, store):
    """A task has the job created again while a person settles it."""

    def wait_for_task(*given):
        with redirect_stdout(StringIO()):  # the task's log
            create_job(if_uncertain="create").execute(context_for(store, cleared=1))
        return settle(*given)

    settle = admin.settle
    monkeypatch.setattr(admin, "settle", wait_for_task)


def leave_uncertain(service, store, operator, **context):
    lose(service)
    with pytest.raises(AirflowFailException, match=r"uncertain|may or may not"):
        operator.execute(context_for(store, **context))


def let_leases_end(store):
    """Make what is stored two minutes older than it is."""
    with store.engine.begin() as connection:
        connection.execute(LEDGER.update().values(lease_until=LEDGER.c.lease_until - 120_000))


class OneSecond(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 25, 17, 9, 33, tzinfo=tz)


def lose_answer_to_commit(monkeypatch, store, number):
    """Have one COMMIT take place, and its answer be lost."""
    commits = []
    dialect = type(store.engine.dialect)
    do_commit = dialect.do_commit

    def commit(self, connection):
        do_commit(self, connection)
        commits.append(connection)
        if len(commits) == number:
            raise self.dbapi.OperationalError("database is locked")

    monkeypatch.setattr(dialect, "do_commit", commit)


def rows(store):
    query = sqlalchemy.select(LEDGER).order_by(LEDGER.c.sent_at)
    with store.engine.connect() as connection:
        return connection.execute(query).all()


def states(store):
    return [row.state for row in rows(store)]


def test_a_connection_that_nobody_has_defined_keeps_no_other_ledger_from_being_shown(
    service, store, run, monkeypatch
):
    """Ten more connections to the service; an eleventh, which only a DAG names."""
    for number in range(10):
        connection = os.environ["AIRFLOW_CONN_FSM_DEFAULT"]
        monkeypatch.setenv(f"AIRFLOW_CONN_TENANT_{number}", connection)
    create_job().execute(context_for(store))

    for number in range(10):
        code, output, _ = run("list", "--conn-id", f"tenant_{number}")
        assert code == 0
        assert [line.split()[0] for line in output.splitlines()] == ["key", "PM-7"]
    code, output, error = run("list", "--conn-id", "tenant_10")

    assert (code, output) == (2, "")
    assert (
        "connection 'tenant_10': is not defined, or not readable, where this runs: add it" in error
    )


class TestSettle:
    @pytest.mark.parametrize(
        ("write", "once_per", "found", "result"),
        [
            (
                create_job,
                "run",
                "--job-id=4711",
                {"id": 4711, "propertyID": 7, "customerReference": "PM-7"},
            ),
            (create_jobs, "key", "--job-id=4711", [("existing", 4711, "dag")]),
            (send_request, "run", "--id=4711", {"id": 4711}),
            (send_request, "key", "--done", None),
        ],
    )
    def test_what_was_found_is_returned_and_nothing_is_sent(
        self, service, store, run, write, once_per, found, result
    ):
        leave_uncertain(service, store, write(once_per=once_per))

        for why, length in ((" ", 0), (" " + "w" * 1_001, 1_001)):
            refused = run("settle", "PM-7", found, "--why", why)
            assert refused == (1, "", BAD_REASON.format(length))
        assert run("settle", " PM-7", found, *WHY) == (0, "'PM-7' is settled: it exists\n", "")

        returned = write(once_per=once_per).execute(context_for(store, cleared=1))
        if write is create_jobs:
            (outcome,) = returned
            returned = [(outcome["outcome"], outcome["jobID"], outcome["by"]["dag_id"])]
        assert returned == result
        assert len(service.requests) == 1

    def test_a_key_is_found_in_any_spelling_that_looks_the_same(self, service, store, run):
        typed = "Pru\u0308f\N{EN DASH}7"
        leave_uncertain(service, store, create_job(key=typed))

        for spelling in ("Prüf-7", "Prüf\N{NON-BREAKING HYPHEN}7", typed):
            code, output, _ = run("list", "--key", spelling, "--json")
            assert [entry["key"] for entry in json.loads(output)] == [typed]
            assert code == 0
        assert run("settle", "Prüf-7", "--job-id=4711", *WHY)[0] == 0

        returned = create_job(key="Prüf-7").execute(context_for(store, cleared=1))
        assert returned["id"] == 4711
        assert len(service.requests) == 1

    def test_the_commands_of_the_pages_do_what_they_show(self, service, store, run):
        shown = [
            *commands_with_output(DOCS / "settle.md", "ledger"),
            *commands_with_output(DOCS / "webhooks.md", "ledger"),
        ]
        leave_uncertain(service, store, create_job())
        for arguments, _ in shown:
            if arguments[0] == "forget":
                create_job(key=arguments[1]).execute(context_for(store))
        let_leases_end(store)

        assert [arguments[0] for arguments, _ in shown] == ["list", "settle", "forget", "forget"]
        (arguments, listed_on_page), *others = shown
        listed = run(*arguments)[1]
        for line, on_page in zip(listed.splitlines(), listed_on_page.splitlines(), strict=True):
            assert line.split()[:3] == on_page.split()[:3]
        for arguments, output in others:
            assert run(*arguments)[:2] == (0, output)

    def test_what_was_not_created_is_sent_once_and_only_after_its_lease(self, service, store, run):
        leave_uncertain(service, store, create_job())

        code, _, error = run("settle", "PM-7", "--not-created", *WHY)
        assert code == 1
        assert "'PM-7' was not settled: a request may be on its way for another " in error
        let_leases_end(store)
        assert run("forget", "PM-7", *WHY) == (
            1,
            "",
            "'PM-7' was not forgotten: it is uncertain: settle it\n",
        )
        assert run("forget", "PM-%", *WHY)[2].startswith("there is no 'PM-%': ")
        assert run("settle", "PM-7", "--not-created", *WHY)[0] == 0
        for cleared in (1, 2):
            create_job().execute(context_for(store, cleared=cleared))

        assert len(service.requests) == 2

    @pytest.mark.parametrize("value", ["abc", "0", "-1", "4711.0", ""])
    def test_a_bad_id_is_refused_with_what_it_should_be(self, capsys, value):
        with pytest.raises(SystemExit) as ended:
            main(["ledger", "settle", "PM-7", f"--job-id={value}", *WHY])

        assert ended.value.code == 2
        assert "should be a whole number, 1 or more" in capsys.readouterr().err

    def test_a_conflict_is_settled(self, service, store, run):
        service.fail("POST", "/properties/7/jobs", faults.Status(409))
        with pytest.raises(AirflowFailException, match="409"):
            create_job().execute(context_for(store))

        refusal = "'PM-7' is a job: give its id\n"
        assert run("settle", "PM-7", "--done", *WHY)[1:] == ("", refusal)
        assert run("settle", "PM-7", *ID_4711, *WHY)[0] == 0
        assert create_job().execute(context_for(store, cleared=1))["id"] == 4711

    def test_what_was_uncertain_and_is_refused_is_settled_at_once(self, service, store, run):
        leave_uncertain(service, store, create_job())
        let_leases_end(store)
        service.fail("POST", "*", faults.Status(400))
        with pytest.raises(AirflowFailException, match="the last one did not"):
            create_job(if_uncertain="create").execute(context_for(store, cleared=1))

        assert run("settle", "PM-7", "--not-created", *WHY)[0] == 0

    @pytest.mark.parametrize("settlement", [["--job-id", "1"], ["--not-created"], ["--done"]])
    def test_what_is_done_is_not_settled(self, service, store, run, settlement):
        job = create_job().execute(context_for(store))
        before = rows(store)

        code, _, error = run("settle", "PM-7", *settlement, *WHY)

        assert code == 1
        assert error.startswith(f"'PM-7' was not settled: it is done, with id {job['id']}: clear ")
        assert rows(store) == before

    def test_an_id_of_another_key_is_not_recorded(self, service, store, run):
        job = create_job(key="PM-1").execute(context_for(store))
        leave_uncertain(service, store, create_job(), run_id="two")

        code, _, error = run("settle", "PM-7", "--job-id", str(job["id"]), *WHY)

        assert code == 1
        assert error.startswith(f"'PM-7' was not settled: job {job['id']} is that of key 'PM-1': ")
        assert states(store) == ["done", "uncertain"]

    @pytest.mark.usefixtures("short_lease", "task_is_faster")
    def test_what_a_task_changes_meanwhile_is_not_settled(self, service, store, run):
        leave_uncertain(service, store, create_job())

        code, _, error = run("settle", "PM-7", *ID_4711, *WHY)

        assert code == 1
        assert error.startswith("'PM-7' was not settled: it is done, with id ")
        assert json.loads(rows(store)[0].result)["id"] == service.jobs[1]["id"]

    def test_what_a_person_frees_while_its_task_runs_stays_uncertain_to_the_task(
        self, service, store
    ):
        """The task has sent it, and knows nothing else."""

        def free_the_first():
            let_leases_end(store)
            assert main(["ledger", "settle", "PM-7", "--not-created", *WHY]) == 0

        lose(service)
        service.fail("POST", "/properties/8/jobs", faults.Before(free_the_first))
        jobs = [request(number, key=f"PM-{number}") for number in (7, 8)]

        outcomes, _ = attempt_of(store, create(jobs, max_concurrency=1))

        assert statuses(outcomes) == ["uncertain", "created"]
        assert [row.state for row in rows(store)] == ["free", "done"]

    @pytest.mark.parametrize("lost", range(1, 6))
    def test_a_commit_whose_answer_is_lost_is_recognised(
        self, service, store, run, monkeypatch, lost
    ):
        """A command makes fewer than five of them."""
        for command in (("settle", "PM-7", *ID_4711), ("forget", "PM-7")):
            if command[0] == "settle":
                leave_uncertain(service, store, create_job())
            let_leases_end(store)
            with monkeypatch.context() as patch:
                lose_answer_to_commit(patch, store, lost)
                assert run(*command, *WHY)[0] == 0
        (row,) = rows(store)
        assert (row.state, row.note.count("says jo at")) == ("free", 2)

    @pytest.mark.parametrize("option", ["--not-created", "--done"])
    def test_what_contradicts_itself_is_refused(self, service, store, capsys, option):
        leave_uncertain(service, store, create_job())

        with pytest.raises(SystemExit):
            main(["ledger", "settle", "PM-7", *ID_4711, option, *WHY])

        assert f"argument {option}: not allowed with argument --job-id" in capsys.readouterr().err
        assert states(store) == ["uncertain"]

    def test_an_ambiguous_key_is_settled_by_its_run(self, service, store, run):
        for run_id in ("one", "two"):
            leave_uncertain(service, store, create_job(), run_id=run_id)
        settle = ("settle", "PM-7", *ID_4711, *WHY)

        code, _, error = run(*settle)
        assert code == 1
        assert "'PM-7' was sent by 2 tasks: narrow it with --dag, --run, --task, " in error
        for run_id in ("one", "two"):
            assert f"task task of run {run_id} of DAG dag" in error
        assert states(store) == ["uncertain", "uncertain"]

        assert run(*settle, "--run", "two")[0] == 0
        by_run = {row.run_id: row.state for row in rows(store)}
        assert by_run == {"one": "uncertain", "two": "done"}

    def test_who_did_what_when_and_why_is_kept(self, service, store, run):
        leave_uncertain(service, store, create_job())
        run("settle", "PM-7", *ID_4711, *WHY)
        let_leases_end(store)
        run("forget", "PM-7", "--why", "cancelled", "--by", "sam")
        create_job().execute(context_for(store, cleared=1))

        (found,) = json.loads(run("list", "--json")[1])

        first, second = found["note"].split("; ")
        assert first.startswith("made, says jo at ")
        assert first.endswith(": looked it up")
        assert "sam at " in second
        assert second.endswith(": cancelled")
        at = datetime.strptime(first[17:36], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
        assert found["result_id"] == service.jobs[-1]["id"]

    def test_of_long_reasons_the_last_is_kept(self, service, store, run):
        leave_uncertain(service, store, create_job())
        for command in (("settle", "PM-7", *ID_4711), ("forget", "PM-7")):
            assert run(*command, "--why", "a" * 1000)[0] == 0
            let_leases_end(store)
        leave_uncertain(service, store, create_job())
        last = "z" * 1000

        assert run("settle", "PM-7", *ID_4711, "--why", last)[0] == 0

        assert rows(store)[0].note.endswith(f": {last}")


class TestForget:
    def test_what_is_done_is_sent_again_once_its_lease_is_over(self, service, store, run):
        for key in ("PM-7", "PM-8"):
            create_job(key=key, once_per="key").execute(context_for(store, run_id=key))

        code, _, error = run("forget", "PM-7", *WHY)
        assert code == 1
        assert error.startswith("'PM-7' was not forgotten: ")
        assert "a request may be on its way for another " in error
        let_leases_end(store)
        assert run("forget", "PM-7", *WHY) == (0, "'PM-7' is forgotten: it may be sent again\n", "")

        for key in ("PM-7", "PM-8", "PM-7"):
            create_job(key=key, once_per="key").execute(context_for(store, run_id="again"))
        assert len(service.jobs) == 3


class TestList:
    @pytest.fixture
    def three(self, service, store):
        create_job(key="done").execute(context_for(store, run_id="one"))
        leave_uncertain(service, store, create_job(key="a\nlost"), run_id="two")
        create_job(key="shared", once_per="key").execute(context_for(store, run_id="three"))

    @pytest.mark.usefixtures("three")
    def test_it_is_a_table(self, service, run):
        code, output, _ = run("list")

        head, done, lost, _ = output.splitlines()
        assert code == 0
        assert head.split() == ["key", "state", "id", "sent", "by", "at", "(UTC)", "what"]
        assert done.split()[:3] == ["done", "done", str(service.jobs[0]["id"])]
        assert "POST /properties/7/jobs (propertyID 7, customerReference 'PM-7')" in done
        assert lost.startswith("a\\nlost  uncertain  -  ")
        assert "task task of run two of DAG dag" in lost

    @pytest.mark.usefixtures("three")
    @pytest.mark.parametrize(
        ("filters", "keys"),
        [
            ((), ["done", "a\nlost", "shared"]),
            (("--uncertain",), ["a\nlost"]),
            (("--key", " done "), ["done"]),
            (("--run", "two"), ["a\nlost"]),
            (("--dag", "dag", "--task", "task"), ["done", "a\nlost", "shared"]),
            (("--limit", "2"), ["a\nlost", "shared"]),
            (("--task", "other"), None),
        ],
    )
    def test_it_is_filtered(self, run, filters, keys):
        code, output, error = run("list", "--json", *filters)

        if keys is None:
            assert (code, error) == (1, NOTHING)
        else:
            assert code == 0
            assert [entry["key"] for entry in json.loads(output)] == keys

    def test_as_json_it_has_all_that_is_known(self, service, store, run):
        leave_uncertain(service, store, create_job())

        (found,) = json.loads(run("list", "--json")[1])

        assert found["state"] == "uncertain"
        assert found["result_id"] is None
        assert found["kind"] == "job"
        assert found["property_id"] == "7"
        assert found["reference"] == "PM-7"
        assert "no complete response arrived" in found["error"]
        assert found["sent_by"]["run_id"] == "run"

    def test_what_is_of_another_service_is_not_there(self, service, store, run, connect):
        leave_uncertain(service, store, create_job())
        with FakeFieldService(token=TOKEN) as other:
            connect(other)
            assert run("list")[0] == 1
            assert run("settle", "PM-7", "--done", *WHY)[0] == 1
            assert run("forget", "PM-7", *WHY)[0] == 1
        assert states(store) == ["uncertain"]


class TestConnections:
    @pytest.mark.parametrize(
        ("database", "says"),
        [
            (None, "ledger"),
            ({"conn_type": "sqlite", "host": __file__}, f"{__file__}: file is not a database"),
            (
                {
                    "conn_type": "postgres",
                    "host": "127.0.0.1",
                    "port": 1,
                    "login": "x",
                    "password": "pa55",
                },
                "refused",
            ),
        ],
    )
    def test_a_database_that_cannot_be_used_is_named(self, monkeypatch, run, database, says):
        monkeypatch.delenv("AIRFLOW_CONN_LEDGER")
        if database:
            monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(database))

        code, output, error = run("list")
        assert (code, output) == (2, "")
        assert says in error
        assert "pa55" not in error

    def test_a_terminal_that_cannot_show_a_letter_gets_its_code(self, service, store):
        leave_uncertain(service, store, write_job(key="PM-\N{SNOWMAN}"))

        listed = subprocess.run(
            [sys.executable, "-m", "fsm_provider", "ledger", "list"],
            env=os.environ | {"PYTHONIOENCODING": "ascii"},
            capture_output=True,
            text=True,
            check=True,
        )

        assert r"PM-\u2603" in listed.stdout


class TestInBoth:
    """In a database, and in Airflow."""

    @pytest.fixture(params=["in a database", pytest.param("in Airflow", marks=STATE_STORE.needed)])
    def store(self, request, connection_extra, monkeypatch, tmp_path):
        if request.param == "in a database":
            made = DatabaseStore(tmp_path)
            monkeypatch.setenv("AIRFLOW_CONN_LEDGER", made.connection)
            connection_extra["state_conn_id"] = made.CONN_ID
            yield made
            made.engine.dispose()
            return
        from airflow.utils.db import initdb

        initdb()
        made = AirflowStore()
        yield made
        made.remove()

    def test_the_second_of_two_settlements_within_a_second_is_refused(
        self, service, store, run, monkeypatch
    ):
        monkeypatch.setattr(admin, "datetime", OneSecond)
        leave_uncertain(service, store, create_job())

        assert run("settle", "PM-7", *ID_4711, *WHY)[0] == 0
        code, output, error = run("settle", "PM-7", "--job-id", "4712", *WHY)

        assert (code, output) == (1, "")
        assert error.startswith("'PM-7' was not settled: it is done, with id 4711: ")
        assert create_job().execute(context_for(store, cleared=1))["id"] == 4711

    def test_the_second_of_two_who_have_seen_the_same_is_refused(self, service, store, monkeypatch):
        monkeypatch.setattr(admin, "datetime", OneSecond)
        leave_uncertain(service, store, create_job())
        wanted = EntryFilter(key="PM-7")
        with admin.open_ledgers("fsm_default") as ledgers, admin.open_ledgers("fsm_default") as two:
            of_jo = admin.find_only(ledgers, wanted)
            of_sam = admin.find_only(two, wanted)
            admin.settle(ledgers, of_jo, admin.Settlement(True, 4711), "jo", "looked it up")
            with pytest.raises(FsmRefusedError, match="'PM-7' was not settled: "):
                admin.settle(two, of_sam, admin.Settlement(True, 4712), "jo", "looked it up")

        assert create_job().execute(context_for(store, cleared=1))["id"] == 4711

    def test_what_does_not_exist_has_no_id(self):
        with pytest.raises(FsmRefusedError, match="what does not exist has no id, and 4711 was"):
            admin.Settlement(False, 4711)

    def test_an_id_of_another_key_is_refused_and_no_other_id(self, service, store, run):
        other = create_job(key="PM-1").execute(context_for(store))
        leave_uncertain(service, store, create_job())

        code, _, error = run("settle", "PM-7", "--job-id", str(other["id"]), *WHY)

        assert (code, f"job {other['id']} is that of key 'PM-1'" in error) == (1, True)
        begins_alike = str(other["id"])[:-1]
        assert run("settle", "PM-7", "--job-id", begins_alike, *WHY)[0] == 0

    @pytest.mark.parametrize(
        ("wanted", "keys"),
        [
            ({}, ["PM-7", "PM-8", "PM-9"]),
            ({"key": "PM-8"}, ["PM-8"]),
            ({"is_open": True}, ["PM-7"]),
            ({"property_id": "8"}, ["PM-8"]),
            ({"has_note": True}, ["PM-9"]),
            ({"job_id": 4711}, ["PM-9"]),
            ({"part": "boiler"}, ["PM-8"]),
            ({"part": "pm-9"}, ["PM-9"]),
            ({"part": "4711"}, ["PM-9"]),
            ({"part": "boiler", "property_id": "7"}, []),
            ({"sent_by": {"run_id": ["run"], "task_id": ["other"]}}, []),
        ],
    )
    def test_what_is_asked_for_is_found_and_nothing_else(self, service, store, run, wanted, keys):
        for number in (7, 9):
            service.fail("POST", f"/properties/{number}/jobs", faults.Reset(after_handling=True))
        jobs = [request(number, key=f"PM-{number}") for number in (7, 8, 9)]
        jobs[1]["job"] = {"customerReference": "Boiler"}
        attempt_of(store, create(jobs))
        assert run("settle", "PM-9", *ID_4711, *WHY)[0] == 0

        with admin.open_ledgers("fsm_default") as ledgers:
            found = sorted(entry.key for _, entry in ledgers.entries(EntryFilter(**wanted)))
            number = ledgers.number_of(EntryFilter(**wanted))

        assert (found, number) == (keys, len(keys))

    def test_what_was_sent_is_counted_by_day_and_state_and_nothing_else(self, service, store):
        earliest = int(time.time()) // 86_400
        service.fail("POST", "/properties/1/jobs", faults.Reset(after_handling=True))
        service.fail("POST", "/properties/2/jobs", faults.Status(400))
        service.fail("POST", "/properties/4/jobs", faults.Status(401))
        jobs = [request(number, key=f"PM-{number}") for number in range(1, 6)]
        outcomes, _ = attempt_of(store, create(jobs, max_concurrency=1))
        assert statuses(outcomes)[3:] == ["rejected", "not_created"]  # the last was not sent

        with admin.open_ledgers("fsm_default") as ledgers:
            counts = ledgers.counts()

        assert {tally.day for tally in counts} <= {earliest, earliest + 1}
        states = Counter(tally.state for tally in counts.elements())
        assert states == {"uncertain": 1, "free": 2, "done": 1}

    def test_a_lease_ends_in_time_though_the_clock_of_its_sender_was_fast(
        self, service, store, run, monkeypatch
    ):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", fast(time.time))
            leave_uncertain(service, store, create_job())

        (listed,) = json.loads(run("list", "--json")[1])
        assert listed["sent_at"] <= time.time() * 1000
        refused = run("settle", "PM-7", "--not-created", *WHY)[2]
        (seconds,) = re.findall(r"on its way for another (\d+) s", refused)
        assert int(seconds) <= 120
        if isinstance(store, DatabaseStore):
            let_leases_end(store)
        else:
            store.pass_time(seconds=121)
        assert run("settle", "PM-7", "--not-created", *WHY)[0] == 0
        create_job().execute(context_for(store, cleared=1))
        assert len(service.jobs) == 2


def fast(clock):
    """Return a clock that is an hour fast."""
    return lambda: clock() + 3600


@STATE_STORE.needed
class TestInAirflow:
    @pytest.fixture
    def store(self):
        from airflow.utils.db import initdb

        initdb()
        made = AirflowStore()
        yield made
        made.remove()

    def test_what_is_uncertain_is_listed_and_settled_while_its_task_rests(
        self, service, connect, store, run
    ):
        leave_uncertain(service, store, create_jobs())
        store.set_state("up_for_retry")
        settle = ("settle", "PM-7", *ID_4711, *WHY)

        code, output, _ = run("list", "--uncertain", "--json")
        (entry,) = json.loads(output)
        assert (code, entry["sent_by"]["run_id"]) == (0, "run")
        reason = "its task is up_for_retry: wait until it has ended"
        assert run(*settle) == (1, "", f"'PM-7' was not settled: {reason}\n")
        store.set_state("failed")
        assert run(*settle) == (0, "'PM-7' is settled: it exists\n", "")
        (outcome,) = create_jobs().execute(context_for(store, cleared=1))

        assert (outcome["outcome"], outcome["jobID"]) == ("existing", 4711)
        assert len(service.requests) == 1
        with FakeFieldService(token=TOKEN) as other:
            connect(other)
            assert run("list") == (1, "", NOTHING)

    def test_of_some_runs_what_was_sent_last_is_listed_last(self, service, store, run):
        leave_uncertain(service, store, create_job())
        leave_uncertain(service, AirflowStore("another"), create_job(key="PM-8"))

        assert [row["key"] for row in json.loads(run("list", "--json")[1])] == ["PM-7", "PM-8"]
        with admin.open_place(None, None, newest=1) as ledgers:
            assert [entry.key for _, entry in ledgers.entries()] == ["PM-8"]

    def test_what_is_settled_as_not_made_or_forgotten_is_sent_again(self, service, store, run):
        leave_uncertain(service, store, create_job())
        assert "a request may be on its way" in run("settle", "PM-7", "--not-created", *WHY)[2]
        for command in (("settle", "PM-7", "--not-created"), ("forget", "PM-7")):
            page = store.get(f"{PAGE}0")
            for entry in page["entries"].values():
                entry["lease_until"] = 1
            store.set(f"{PAGE}0", page)
            assert run(*command, *WHY)[0] == 0
            create_job().execute(context_for(store, cleared=1))
        assert len(service.jobs) == 3

    @pytest.mark.usefixtures("short_lease", "task_is_faster")
    def test_what_has_changed_meanwhile_is_not_settled(self, service, store, run):
        leave_uncertain(service, store, create_job())

        code, _, error = run("settle", "PM-7", *ID_4711, *WHY)
        assert code == 1
        assert error == ("'PM-7' was not settled: the ledger has changed meanwhile: look again\n")

    def test_what_only_workers_can_read_is_named(self, service, store, run, monkeypatch):
        monkeypatch.setenv("AIRFLOW__WORKERS__STATE_STORE_BACKEND", "my.Backend")
        code, _, error = run("list")
        assert code == 2
        assert "only workers read what is in state_store_backend" in error


def test_all_connections_are_listed_and_one_that_is_broken_hides_no_other(
    service, store, run, monkeypatch, tmp_path
):
    from airflow.utils.db import initdb

    initdb()  # connections of the database are listed, too
    leave_uncertain(service, store, create_job())
    broken = json.dumps({"conn_type": "fsm", "host": "https://api.example.com"})
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", broken)
    north = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
    monkeypatch.setenv("AIRFLOW_CONN_NORTH", json.dumps({**north, "login": "north"}))
    name = f"{rows(store)[0].service} (account north)"
    assert run("add-service", "--conn-id", "north", name)[0] == 0
    create_job(key="N-1", fsm_conn_id="north").execute(context_for(store, run_id="another"))

    code, listed, error = run("list", "--all")

    assert code == 2
    assert error.startswith("broken: ")
    head, *lines = [line.split()[:3] for line in listed.splitlines()]
    assert head == ["connection", "key", "state"]
    assert lines == [["fsm_default", "PM-7", "uncertain"], ["north", "N-1", "done"]]
    assert run("list", "--all", "--uncertain")[1].count("PM-7") == 2
    assert len(json.loads(run("list", "--all", "--json")[1])) == 2
    code, listed, error = run("list", "--all", "--key", "PM-9")
    assert (code, listed) == (2, "")
    assert error.startswith("broken: ")
    for name in ("FSM_DEFAULT", "NORTH", "BROKEN"):
        monkeypatch.delenv(f"AIRFLOW_CONN_{name}")
    nowhere = "there is no connection of type fsm in Airflow's database and environment\n"
    assert run("list", "--all") == (1, "", nowhere)
