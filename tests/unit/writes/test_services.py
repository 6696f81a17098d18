"""What a service is to a ledger in a database: a row, whose name may change."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.commands.cli import main
from fsm_provider.testing import FakeFieldService
from tests.capabilities import STATE_STORE, THREADS
from tests.unit.conftest import TOKEN
from tests.unit.state_store import MemoryStateStore, context_for
from tests.unit.writes.operators import lose, write_job, write_jobs

KEY = {"key": "PO-1", "once_per": "key"}


@pytest.fixture(autouse=True)
def connected(service, connect, database):
    connect(service, max_retries=0)


@pytest.fixture
def other():
    """Another service, or the same at another address."""
    with FakeFieldService(token=TOKEN) as running:
        yield running


@pytest.fixture
def edit(monkeypatch):
    """Edits the connection ``fsm_default``, or makes another one like it."""

    def edit_connection(conn_id="fsm_default", **fields):
        connection = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
        edited = json.dumps({**connection, **fields})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", edited)

    return edit_connection


@pytest.fixture
def run(capsys):
    """Runs a command; returns its exit code, the lines of its output, and its error."""
    import airflow.models  # noqa: F401 # logs to the standard output at its import

    def run_command(*arguments):
        capsys.readouterr()
        code = main(["ledger", *arguments])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run_command


def create(run_id="monday", store=None, **options):
    """Create a job in an attempt of its own; return its id."""
    context = context_for(store or MemoryStateStore(), run_id=run_id)
    return write_job(**{**KEY, **options}).execute(context)["id"]


def refusal_of(run_id="tuesday", **options):
    with pytest.raises(AirflowFailException) as refused:
        create(run_id, **options)
    return str(refused.value)


def commands_in(message):
    """Return the commands that a message shows, by the name of each, as arguments."""
    commands = {}
    for line in re.findall(r"python -m fsm_provider ledger (.*)", message):
        arguments = shlex.split(line)
        commands[arguments[0]] = arguments
    return commands


def renamed_host(service):
    """Return a base URL of the same service by another name of this machine."""
    return service.base_url.replace("127.0.0.1", "localhost")


EDITS = {
    "a login": lambda service: {"login": "north"},
    "a host": lambda service: {"host": renamed_host(service)},
    "a path": lambda service: {"host": f"{service.base_url}/v2"},
}


@pytest.mark.parametrize("edit_of", EDITS.values(), ids=EDITS)
def test_a_service_that_seems_to_be_another_is_not_written_to_until_a_person_has_said_which(
    service, edit, run, edit_of
):
    made = create()
    before = service.base_url
    edit(**edit_of(service))

    message = refusal_of()

    assert len(service.requests) == 1
    assert before in message
    assert "Nothing was sent." in message
    rename = commands_in(message)["rename-service"]
    code, table, _ = run(*rename)
    assert code == 0
    assert [line.split()[-1] for line in table] == ["connection", "fsm_default"]
    assert rename[-1] in table[1]
    assert create("tuesday") == made
    assert len(service.requests) == 1


def test_a_second_account_is_added_by_one_command(service, edit, run):
    first = create()
    edit("fsm_second", login="o'brien")

    add = commands_in(refusal_of(fsm_conn_id="fsm_second"))["add-service"]
    assert len(service.requests) == 1
    (code, _, error), (again_code, _, again) = run(*add), run(*add)
    assert code == again_code == 0
    assert "nothing was added" not in error
    assert "nothing was added" in again
    second = create("tuesday", fsm_conn_id="fsm_second")

    assert create("wednesday", fsm_conn_id="fsm_second") == second != first
    assert create("thursday") == first
    assert len(service.jobs) == 2
    code, table, _ = run("services")
    assert code == 0
    assert [line.split()[-1] for line in table] == ["connection", "fsm_default", "fsm_second"]


def test_another_service_of_one_connection_is_added_by_one_command(service, other, edit, run):
    create()
    edit(host=other.base_url)

    run(*commands_in(refusal_of())["add-service"])
    for run_id in ("tuesday", "wednesday"):
        create(run_id)

    assert (len(service.jobs), len(other.jobs)) == (1, 1)


def test_of_two_accounts_that_is_named_to_which_the_connection_has_written(service, edit, run):
    first = create()
    edit("fsm_north", login="north")
    run(*commands_in(refusal_of(fsm_conn_id="fsm_north"))["add-service"])
    second = create("tuesday", fsm_conn_id="fsm_north")
    # Both logins are edited.
    edit("fsm_north", login="north-2")
    edit(login="main")

    for conn_id, made in (("fsm_north", second), ("fsm_default", first)):
        message = refusal_of(f"of {conn_id}", fsm_conn_id=conn_id)
        assert message.count("rename-service") == 1
        assert run(*commands_in(message)["rename-service"])[0] == 0
        assert create(f"of {conn_id}", fsm_conn_id=conn_id) == made
    assert len(service.jobs) == 2


def test_of_two_accounts_to_which_a_connection_has_written_each_is_named(service, edit, run):
    first = create()
    edit(login="north")
    run(*commands_in(refusal_of())["add-service"])
    second = create("tuesday")
    edit(login="north-2")

    message = refusal_of("wednesday")

    renames = re.findall("ledger (rename-service .*)", message)
    assert len(renames) == 2
    (of_north,) = [rename for rename in renames if "account north)' " in rename]
    assert run(*shlex.split(of_north))[0] == 0
    assert create("thursday") == second != first
    assert len(service.jobs) == 2


def test_a_connection_at_a_former_login_is_given_the_right_one(service, edit, run):
    first = create()
    edit("fsm_second")
    assert create("tuesday", fsm_conn_id="fsm_second") == first
    edit(login="north")
    run(*commands_in(refusal_of("wednesday"))["rename-service"])

    message = refusal_of("thursday", fsm_conn_id="fsm_second")
    assert "account north), whose host and login are right: give them to the connection" in message
    edit("fsm_second", login="north")

    assert create("thursday", fsm_conn_id="fsm_second") == first
    assert len(service.jobs) == 1


def test_another_host_by_another_connection_is_a_service_without_a_word(service, other, edit, run):
    create()
    edit("fsm_second", host=renamed_host(other))

    create("tuesday", fsm_conn_id="fsm_second")

    assert (len(service.jobs), len(other.jobs)) == (1, 1)
    assert sorted(line.split()[-1] for line in run("services")[1][1:]) == [
        "fsm_default",
        "fsm_second",
    ]


def test_each_connection_that_has_led_to_a_service_is_known(service, edit):
    """The first to be used after the host has moved may be any of them."""
    create()
    edit("fsm_second")
    create("tuesday", fsm_conn_id="fsm_second")
    edit("fsm_second", host=renamed_host(service))

    message = refusal_of("wednesday", fsm_conn_id="fsm_second")

    assert "--conn-id fsm_second" in message
    assert len(service.jobs) == 1


@pytest.mark.usefixtures("short_lease")
def test_a_task_in_retry_goes_on_once_the_ledger_knows_the_new_name(service, edit, run):
    """Of a list, what was made is not sent again; what was uncertain is settled and returned."""
    store = MemoryStateStore()
    payloads = [
        {"property_id": 7, "job": {"customerReference": name}, "key": name} for name in "ABC"
    ]
    operator = {"jobs": payloads, "max_concurrency": 1}
    lose(service, call=2)

    def attempt():
        from fsm_provider.operators.jobs import FsmCreateJobsOperator

        task = FsmCreateJobsOperator(task_id="task", **operator)
        return task.execute(context_for(store, run_id="monday"))

    with pytest.raises(AirflowFailException, match="2 created, 1 uncertain"):
        attempt()
    edit(host=renamed_host(service), login="north")
    with pytest.raises(AirflowFailException, match="earlier attempts of this task") as refused:
        attempt()
    assert len(service.requests) == 3

    assert run(*commands_in(str(refused.value))["rename-service"])[0] == 0
    made = {job["customerReference"]: job["id"] for job in service.jobs}
    settle = ("settle", "B", "--job-id", str(made["B"]), "--why", "found", "--by", "jo")
    assert run(*settle)[0] == 0
    outcomes = attempt()

    assert [outcome["jobID"] for outcome in outcomes] == [made[name] for name in "ABC"]
    assert len(service.requests) == 3
    assert run("list")[0] == 0


def test_the_old_name_is_unknown_after_it_was_changed(service, edit, run):
    old = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
    create()
    edit(login="north")
    rename = commands_in(refusal_of())["rename-service"]
    run(*rename)
    edit(login="")

    message = refusal_of()

    assert "(account north)" in message
    assert commands_in(message)["rename-service"][-2:] == [rename[-1], rename[-2]]
    assert old["host"] == rename[-2]
    assert len(service.jobs) == 1


def test_a_name_that_another_service_has_is_refused(service, other, edit, run):
    create()
    edit(host=renamed_host(other))
    commands = commands_in(refusal_of())
    run(*commands["add-service"])
    before = run("services")

    code, table, error = run(*commands["rename-service"])

    assert (code, table) == (1, [])
    assert "is another service of this ledger: nothing was renamed" in error
    assert run("services") == before
    # What it says for a name that was added by mistake.
    old, new = commands["rename-service"][-2:]
    assert run("rename-service", new, "added by mistake")[0] == 0
    assert run("rename-service", old, new)[0] == 0
    create("tuesday")
    assert (len(service.jobs), other.jobs) == (1, [])


def test_a_service_that_somebody_has_renamed_meanwhile_is_not_added(service, other, edit, run):
    create()
    edit(host=renamed_host(other))
    commands = commands_in(refusal_of())
    assert run(*commands["rename-service"])[0] == 0

    code, table, error = run(*commands["add-service"])

    assert code == 0
    assert len(table) == 2
    assert "is a service of this ledger, maybe renamed: nothing was added" in error


def test_a_name_that_nobody_has_is_refused(service, run):
    create()

    code, _, error = run("rename-service", "https://nowhere.example", "https://api.example.com")

    assert code == 1
    assert error.startswith("no service of this ledger is 'https://nowhere.example': ")


@pytest.mark.parametrize("name", ["", "  "])
def test_a_name_that_is_empty_is_refused(service, run, name):
    create()
    before = run("services")

    for arguments in (("add-service", name), ("rename-service", service.base_url, name)):
        with pytest.raises(SystemExit) as refused:
            run(*arguments)
        assert refused.value.code == 2
    assert run("services") == before


def test_of_some_who_rename_at_the_same_moment_one_does(service, run):
    create()
    old = run("services")[1][1].split()[0]
    names = [f"https://{number}.example" for number in range(3)]
    rename = [sys.executable, "-m", "fsm_provider", "ledger", "rename-service", old]

    started = [subprocess.Popen([*rename, name], stderr=subprocess.PIPE) for name in names]
    said = [process.communicate(timeout=120)[1].decode() for process in started]

    codes = [process.returncode for process in started]
    assert sorted(codes) == [0, 1, 1]
    advice = "'python -m fsm_provider ledger services' shows those that it knows"
    refused = f"no service of this ledger is '{old}': {advice}\n"
    assert sorted(said) == ["", refused, refused]
    (_, line) = run("services")[1]
    assert line.split()[0] == names[codes.index(0)]


@THREADS.needed
def test_many_that_write_first_at_the_same_moment_are_of_one_service(service, database):
    barrier = threading.Barrier(8)

    def attempt(number):
        barrier.wait()
        return create(f"run {number}", key=f"PO-{number}")

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(attempt, range(8)))

    assert len(set(made)) == len(service.jobs) == 8
    assert len(database.rows("fsm_services")) == 1
    assert len({row.service_id for row in database.rows()}) == 1


@THREADS.needed
def test_of_two_names_of_one_host_that_are_written_to_first_at_the_same_moment_one_is_refused(
    service, edit, run
):
    edit("fsm_north", login="north")
    barrier = threading.Barrier(8)

    def attempt(number):
        conn_id = "fsm_north" if number % 2 else "fsm_default"
        barrier.wait()
        try:
            return create(f"run {number}", key=f"PO-{number}", fsm_conn_id=conn_id)
        except AirflowFailException as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(8)))

    refused = [result for result in results if isinstance(result, str)]
    assert len(refused) == len(service.jobs) == 4
    assert all("which the ledger does not know" in message for message in refused)
    (_, line) = run("services")[1]
    assert line.startswith(service.base_url)


def test_two_map_indexes_that_write_to_two_services_have_a_job_in_each(service, other, edit, run):
    def create_mapped(map_index):
        task = write_jobs(key="PO-1")
        (outcome,) = task.execute(context_for(MemoryStateStore(), map_index=map_index))
        return outcome["outcome"]

    assert create_mapped(0) == "created"
    edit(host=other.base_url)
    with pytest.raises(AirflowFailException, match="does not know") as refused:
        create_mapped(1)
    run(*commands_in(str(refused.value))["add-service"])

    assert create_mapped(1) == "created"
    assert (len(service.jobs), len(other.jobs)) == (1, 1)


def test_an_uncertain_write_of_before_the_renaming_is_found_afterwards(service, edit, run):
    lose(service)
    assert "may or may not" in refusal_of("monday")
    edit(login="north")
    run(*commands_in(refusal_of())["rename-service"])

    assert "may or may not" in refusal_of("wednesday")
    code, lines, _ = run("list", "--uncertain")
    assert (code, len(lines)) == (0, 2)
    assert len(service.requests) == 1


@STATE_STORE.needed
@pytest.mark.parametrize(
    "command", [("services",), ("add-service", "a"), ("rename-service", "a", "b")]
)
def test_without_a_database_there_are_no_services(service, connect, connection_extra, run, command):
    from airflow.utils.db import initdb

    initdb()
    del connection_extra["state_conn_id"]
    connect(service)

    code, table, error = run(*command)

    assert (code, table) == (1, [])
    assert "connection 'fsm_default' names no database as its state_conn_id" in error
