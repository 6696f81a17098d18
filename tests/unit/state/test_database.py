"""The database of a ledger as it is opened: made whole or not at all, and which version it has."""

import json
import logging
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from airflow.models import Connection
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.api.errors import FsmInputError, FsmNoLedgerError
from fsm_provider.commands.cli import main
from fsm_provider.state import database as state_database
from fsm_provider.state.database import in_transaction, open_database
from fsm_provider.state.schema import METADATA, VERSION
from tests.unit.state_store import MemoryStateStore, context_for
from tests.unit.writes.databases import Database
from tests.unit.writes.operators import lose, write_job

TABLES = {"fsm_asset_state", "fsm_ledger", "fsm_schema", "fsm_services", "fsm_tasks"}
PROCESSES = 40
NAMES = [
    "ledger.db",
    "a b.db",
    " a.db",
    "a.db ",
    "a?b.db",
    "a?mode=ro",
    "?",
    "a#b.db",
    "a%20b.db",
    "a%3Fb.db",
    "a%2Fb.db",
    "a%00b.db",
    "100%",
    "a+b.db",
    "a&b=c.db",
    "a;b.db",
    "a:b@c.db",
    "a\\b.db",
    "'a' \"b\".db",
    "[a].db",
    "$HOME.db",
    "~.db",
    ":memory:",
    "file:a.db",
    "stra\N{LATIN SMALL LETTER SHARP S}e.db",
]
UNPRINTABLE = ["a\nb.db", "a\0b.db", "a\N{ZERO WIDTH SPACE}b.db"]


def tables_of(database):
    names = sqlalchemy.inspect(database.engine).get_table_names()
    return {name for name in names if name.startswith("fsm_")}


def create_job(**more):
    return write_job(key="PM-7", job={"customerReference": "PM-7"}, **more)


def attempt(number=1):
    """Return the context of an attempt of one task."""
    return context_for(MemoryStateStore(), try_number=number)


OPEN_AT_ONCE = """
import os, sys
from fsm_provider.state.database import open_database

waiting, begin = os.pipe()
children = []
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        os.close(begin)
        os.read(waiting, 1)  # until all are there
        failed = 0
        try:
            open_database("ledger").dispose()
        except Exception as error:
            print(error, flush=True)
            failed = 1
        os._exit(failed)
    children.append(child)
os.close(begin)
for child in children:
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit("some did not get in")
"""


def test_many_processes_open_a_new_database_at_once_and_one_of_them_makes_it(database):
    opened = subprocess.run(
        [sys.executable, "-c", OPEN_AT_ONCE, str(PROCESSES)],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )

    output = opened.stdout + opened.stderr
    assert opened.returncode == 0, output
    assert output.count("its tables were created") == 1
    assert tables_of(database) == TABLES
    assert database.rows("fsm_schema") == [(VERSION,)]


class TestFiles:
    """A ledger in SQLite is the file that its connection names, by whatever name."""

    @pytest.fixture
    def name_file(self, tmp_path, connection_extra, monkeypatch, connect, service):
        folder = tmp_path / "files"
        folder.mkdir()

        def name(file, **fields):
            connection = {"conn_type": "sqlite", "host": f"{folder}/{file}", **fields}
            monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(connection))
            connection_extra["state_conn_id"] = "ledger"
            connect(service)
            return folder

        return name

    @pytest.mark.parametrize("name", NAMES)
    def test_the_file_of_that_name_is_made_and_no_other(self, service, name_file, name):
        folder = name_file(name)

        create_job().execute(attempt())

        with closing(sqlite3.connect(folder / name)) as file:
            assert file.execute("SELECT key, state FROM fsm_ledger").fetchall() == [
                ("PM-7", "done")
            ]
        assert {path.name for path in folder.iterdir()} <= {name, f"{name}-wal", f"{name}-shm"}
        assert len(service.jobs) == 1

    @pytest.mark.parametrize(
        "fields",
        [*[{"host": f"/tmp/{name}"} for name in UNPRINTABLE], {"schema": "b.db"}],
    )
    def test_what_is_no_such_name_is_refused(self, service, name_file, fields):
        folder = name_file("a.db", **fields)

        with pytest.raises(
            AirflowFailException, match="its host should be the absolute path of a file"
        ):
            create_job().execute(attempt())

        assert list(folder.iterdir()) == []
        assert service.requests == []


def test_what_is_whole_is_opened_by_two_queries(database):
    open_database("ledger").dispose()
    statements = []

    def note(connection, cursor, statement, *_):
        statements.append(statement)

    engine_class = sqlalchemy.engine.Engine
    sqlalchemy.event.listen(engine_class, "before_cursor_execute", note)
    try:
        open_database("ledger").dispose()
    finally:
        sqlalchemy.event.remove(engine_class, "before_cursor_execute", note)

    queries = [text for text in statements if not text.startswith(("BEGIN", "SET"))]
    assert len(queries) == 2, queries


def test_the_warning_names_the_tables_and_comes_once(database, caplog):
    caplog.set_level(logging.WARNING)
    open_database("ledger").dispose()
    open_database("ledger").dispose()

    (warning,) = caplog.messages
    for table in TABLES:
        assert table in warning


def test_who_fails_while_it_makes_the_tables_leaves_none_or_says_that_they_are_half_made(
    database, database_server, monkeypatch
):
    """MySQL and MariaDB commit after each table."""

    def fail_at_the_end(connection):
        create_all(connection)
        raise KeyboardInterrupt

    create_all = METADATA.create_all
    with monkeypatch.context() as patch:
        patch.setattr(METADATA, "create_all", fail_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            open_database("ledger")

    if database_server[0] == "mariadb":
        with pytest.raises(FsmInputError, match="half made"):
            open_database("ledger")
    else:
        assert tables_of(database) == set()
        open_database("ledger").dispose()
        assert tables_of(database) == TABLES


class TestTablesThatAreNotAsTheyShouldBe:
    @pytest.fixture(autouse=True)
    def made(self, database):
        open_database("ledger").dispose()

    @pytest.mark.parametrize("create", [True, False])
    @pytest.mark.parametrize(
        ("statement", "says"),
        [
            ("DROP TABLE fsm_ledger", "fsm_ledger is missing in .*nothing is created anew"),
            ("DROP TABLE fsm_tasks", "fsm_tasks is missing in "),
            ("DROP TABLE fsm_services", "fsm_services is missing in "),
            ("DROP TABLE fsm_asset_state", "fsm_asset_state is missing in "),
            (
                "DELETE FROM fsm_schema",
                "no row of fsm_schema: they were half made, or are not ours",
            ),
            ("DROP TABLE fsm_schema", "no row of fsm_schema: they were half made, or are not ours"),
            (
                "UPDATE fsm_schema SET version = version + 1",
                f"have version {VERSION + 1}, .*knows version {VERSION}: install the newer",
            ),
        ],
    )
    def test_they_are_refused_in_one_sentence_and_nothing_is_made(
        self, database, statement, says, create
    ):
        database.execute(statement)
        before = tables_of(database)

        with pytest.raises(FsmInputError, match=says) as refused:
            open_database("ledger", create=create)

        text = str(refused.value)
        assert text.startswith("state_conn_id: connection 'ledger': ")
        assert "\n" not in text
        assert tables_of(database) == before

    def test_the_newest_version_counts(self, database):
        database.execute("INSERT INTO fsm_schema VALUES (2)")

        with pytest.raises(FsmInputError, match="have version 2"):
            open_database("ledger")

    @pytest.mark.parametrize(
        "column",
        ["fsm_ledger.note", "fsm_tasks.fsm_conn_id", "fsm_services.name", "fsm_asset_state.value"],
    )
    def test_a_column_that_is_missing_is_named(self, database, column):
        table, name = column.split(".")
        database.execute(f"ALTER TABLE {table} RENAME COLUMN {name} TO elsewhere")

        with pytest.raises(
            FsmInputError, match=rf"{table}\.{name} is missing in .*: restore a backup"
        ):
            open_database("ledger")

    def test_a_task_sends_nothing_then(self, service, connect, database):
        connect(service)
        database.execute("DROP TABLE fsm_ledger")

        with pytest.raises(AirflowFailException, match="fsm_ledger is missing"):
            create_job().execute(attempt())

        assert service.requests == []


class HookOfAServerThatIsAway:
    conn_type = "postgres"

    def get_sqlalchemy_engine(self, options):
        return sqlalchemy.create_engine("postgresql+psycopg2://user:pa55@127.0.0.1:1/data")

    def get_connection(self, conn_id):
        return Connection(conn_id=conn_id)


def test_an_error_shows_the_url_without_its_password():
    with pytest.raises(sqlalchemy.exc.OperationalError) as raised:
        open_database("ledger", lambda conn_id: HookOfAServerThatIsAway(), create=False)

    assert "user:***@127.0.0.1" in str(raised.value)
    assert "pa55" not in str(raised.value)


@pytest.mark.usefixtures("short_lease")
def test_columns_of_a_newer_version_harm_nothing_also_while_a_task_is_in_retry(
    service, connect, database
):
    """As after an upgrade of one machine, or a downgrade of all."""
    connect(service, max_retries=0)
    lose(service)
    with pytest.raises(AirflowFailException, match="may or may not"):
        create_job().execute(attempt())
    for table in sorted(TABLES):
        database.execute(f"ALTER TABLE {table} ADD COLUMN later VARCHAR(20)")
    database.execute("UPDATE fsm_ledger SET later = 'x'")

    operator = create_job(find_existing=lambda hook, job: service.jobs[0]["id"])
    found = operator.execute(attempt(2))
    made = write_job(key="PM-8").execute(attempt())

    assert [found["id"], made["id"]] == [job["id"] for job in service.jobs]
    rows = {row.key: (row.state, row.later) for row in database.rows()}
    assert rows == {"PM-7": ("done", "x"), "PM-8": ("done", None)}


def test_later_processes_need_no_right_to_create_tables(
    service, connect, database, database_server, monkeypatch
):
    connect(service)
    open_database("ledger").dispose()
    if database_server[0] not in ("sqlite", "mariadb"):
        take_rights(database)
    statements = []

    def note(connection, cursor, statement, *_):
        statements.append(statement)

    engine_class = sqlalchemy.engine.Engine
    sqlalchemy.event.listen(engine_class, "before_cursor_execute", note)
    try:
        create_job(once_per="key").execute(attempt())
        lose(service)
        for _ in range(2):
            with pytest.raises(AirflowFailException, match="may or may not"):
                write_job(key="PM-8", once_per="key").execute(attempt())
        settle = ["settle", "PM-8", "--job-id", "4711", "--why", "found", "--by", "jo"]
        for command in (
            settle,
            ["add-service", "https://api.example.com"],
            ["rename-service", "https://api.example.com", "https://api.example.com/v1"],
        ):
            assert main(["ledger", *command]) == 0
        assert write_job(key="PM-8", once_per="key").execute(attempt())["id"] == 4711
    finally:
        sqlalchemy.event.remove(engine_class, "before_cursor_execute", note)

    assert len(service.requests) == 2
    for statement in statements:
        assert not statement.upper().startswith(("CREATE", "ALTER", "DROP", "DELETE"))


def take_rights(database):
    """Leave the user of a PostgreSQL database what the manual asks for."""
    user = database.connection["login"]
    admin = Database({}, database.url.replace(f"{user}@", "postgres@"))
    for table in sorted(TABLES):
        admin.execute(f"ALTER TABLE {user}.{table} OWNER TO postgres")
    admin.execute(
        f"ALTER SCHEMA {user} OWNER TO postgres",
        f"GRANT USAGE ON SCHEMA {user} TO {user}",
        f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {user} TO {user}",
    )


@pytest.fixture
def run(capsys):
    """Runs a command; returns its exit code, output and error."""
    import airflow.models  # noqa: F401 # logs to the standard output at its import

    def run_command(*arguments):
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


class TestReadersCreateNothing:
    def test_open(self, database):
        with pytest.raises(FsmNoLedgerError, match="there is no ledger yet at connection 'ledger'"):
            open_database("ledger", create=False)

        assert_nothing_is_there(database)

    @pytest.mark.parametrize(
        "command",
        [
            ("list",),
            ("list", "--uncertain", "--json"),
            ("settle", "PM-7", "--not-created", "--why", "x", "--by", "jo"),
            ("forget", "PM-7", "--why", "x", "--by", "jo"),
        ],
    )
    def test_the_commands_for_a_ledger(self, service, connect, database, run, command):
        connect(service)

        code, output, error = run("ledger", *command)

        assert (code, output) == (1, "")
        assert error.startswith("there is no ledger yet at connection 'ledger' (")
        assert error.endswith(")\n")
        assert_nothing_is_there(database)

    def test_what_is_there_of_others_is_left_alone(self, database):
        database.execute("CREATE TABLE others (id INTEGER)")

        with pytest.raises(FsmNoLedgerError):
            open_database("ledger", create=False)

        assert tables_of(database) == set()


def assert_nothing_is_there(database):
    file = database.connection["host"]
    if database.connection["conn_type"] == "sqlite":
        assert not Path(file).exists()
    else:
        assert tables_of(database) == set()


class TestRepeats:
    @pytest.fixture
    def engine(self, database, monkeypatch):
        monkeypatch.setattr(state_database, "MAX_DELAY", 0.01)
        engine = open_database("ledger")
        yield engine
        engine.dispose()

    @pytest.fixture
    def fail(self):
        """Makes work that fails some times before it is done."""

        def make(kind, text, times):
            failures = [kind("SELECT 1", {}, sqlite3.OperationalError(text))] * times

            def work(connection):
                if failures:
                    raise failures.pop()
                return "done"

            return work

        return make

    def test_a_lock_is_waited_for_as_long_as_there_are_repeats(self, engine, fail):
        locked = sqlalchemy.exc.OperationalError, "database is locked"

        assert in_transaction(engine, fail(*locked, times=12)) == "done"
        with pytest.raises(sqlalchemy.exc.OperationalError, match="locked"):
            in_transaction(engine, fail(*locked, times=13))

    @pytest.mark.parametrize("kind", [sqlalchemy.exc.IntegrityError, sqlalchemy.exc.DataError])
    def test_other_errors_are_raised_at_once(self, engine, fail, kind):
        with pytest.raises(kind):
            in_transaction(engine, fail(kind, "a constraint failed", times=1))
