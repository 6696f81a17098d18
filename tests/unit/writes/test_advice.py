"""What people are told to do next about writes is done, literally, in every ledger, and the jobs
are counted.
"""

import json
import os
import re
import shlex
from collections import defaultdict

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.api import FsmError
from fsm_provider.commands.cli import main
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.testing import faults
from fsm_provider.writes import admin, advice
from fsm_provider.writes.ledger import EntryFilter
from fsm_provider.writes.task_ledger import PAGE
from tests.capabilities import STATE_STORE
from tests.pages import DOCS
from tests.unit.state_store import MemoryStateStore, context_for
from tests.unit.writes.databases import DATABASES, empty_database, server
from tests.unit.writes.test_command import AirflowStore

IN_AIRFLOW = "in Airflow"
WAYS = {}
"""By name, what a person does, the names in ``advice`` that say so, and what pages say of it."""
WHY = ("--why", "looked it up")


@pytest.fixture(
    scope="module", params=[pytest.param(IN_AIRFLOW, marks=STATE_STORE.needed), *DATABASES]
)
def ledger_server(request):
    """Where ledgers are, and where the server of that database is."""
    if request.param == IN_AIRFLOW:
        yield request.param, None
        return
    with server(request.param) as at:
        yield request.param, at


@pytest.fixture
def place(ledger_server, service, connect, connection_extra, monkeypatch, tmp_path, capsys):
    kind, at = ledger_server
    made = Place(service, connect, connection_extra, monkeypatch, capsys)
    if kind == IN_AIRFLOW:
        from airflow.utils.db import initdb

        initdb()
    else:
        made.database = empty_database(kind, at, tmp_path)
        monkeypatch.setenv("AIRFLOW_CONN_LEDGER", made.database.connection_json)
        connection_extra["state_conn_id"] = "ledger"
    connect(service, max_retries=0)
    yield made
    for store in [] if made.is_shared else made._stores.values():
        store.remove()
    if made.is_shared:
        made.database.engine.dispose()


class Place:
    """A ledger, the tasks that write through it, and a person at its commands.

    :ivar database: of the ledger; None: it is in Airflow.
    """

    def __init__(self, service, connect, extra, monkeypatch, capsys):
        self.service = service
        self.connect = connect
        self.extra = extra
        self.monkeypatch = monkeypatch
        self.database = None
        self._capsys = capsys
        self._stores = {}
        self._attempts = defaultdict(int)

    @property
    def is_shared(self):
        return self.database is not None

    def store(self, run_id="run", task_id="task", map_index=-1):
        """Return the state store of a task, which all tasks of Airflow 3.3 have."""
        task = run_id, task_id, map_index
        if task not in self._stores:
            self._stores[task] = MemoryStateStore() if self.is_shared else AirflowStore(*task)
        return self._stores[task]

    def forget_stores(self):
        self._stores.clear()

    def attempt(self, jobs, run_id="run", task_id="task", map_index=-1):
        """Run a task for a job, or for a list of them; return what it says, if it fails."""
        task = {"run_id": run_id, "task_id": task_id, "map_index": map_index}
        self._attempts[run_id, task_id, map_index] += 1
        cleared = self._attempts[run_id, task_id, map_index] - 1
        context = context_for(self.store(**task), cleared=cleared, **task)
        if isinstance(jobs, list):
            operator = FsmCreateJobsOperator(task_id="task", jobs=jobs, max_concurrency=1)
        else:
            operator = FsmCreateJobOperator(task_id="task", **jobs)
        try:
            operator.execute(context)
        except (AirflowException, FsmError) as error:
            return str(error)
        return ""

    def fails(self, jobs, **task):
        said = self.attempt(jobs, **task)
        assert said
        return said

    def succeeds(self, jobs, **task):
        assert self.attempt(jobs, **task) == ""

    def lose(self, reference, is_made=True):
        """Have the response to a job lost that is, or is not, made."""
        number = 1 + "ABCXYZ".index(reference)
        self.service.fail(
            "POST", f"/properties/{number}/jobs", faults.Reset(after_handling=is_made)
        )

    def type(self, line, *found):
        """Type a command; while a request may be on its way, wait and repeat it."""
        arguments = [*shlex.split(line)[3:], *found]
        code, said = self._run(arguments)
        if re.search(rf"on its way for another \d+ s: {advice.LEASE_LASTS}$", said):
            self.let_leases_end()
            code, said = self._run(arguments)
        return code, said

    def settle(self, said, found=None):
        """Type the command that a message says, with what was found in place of its example."""
        (line,) = set(re.findall(r"python -m fsm_provider ledger settle .*", said))
        if found:
            assert "--job-id N" in line
            line = line.replace("--job-id N", found)
        code, said = self.type(line)
        assert code == 0, said

    def _run(self, arguments):
        import airflow.models  # noqa: F401 # logs to the standard output at its import

        self._capsys.readouterr()
        code = main(arguments)
        captured = self._capsys.readouterr()
        return code, captured.out + captured.err

    def let_leases_end(self):
        if self.is_shared:
            self.database.execute("UPDATE fsm_ledger SET lease_until = lease_until - 120000")
            return
        self.edit_pages(lambda entry: entry.update(lease_until=1))

    def edit_pages(self, edit):
        for store in self._stores.values():
            page = store.get(f"{PAGE}0")
            for entry in page["entries"].values() if page else ():
                edit(entry)
            if page:
                store.set(f"{PAGE}0", page)

    def edit_connection(self, **fields):
        before = os.environ["AIRFLOW_CONN_FSM_DEFAULT"]
        self.monkeypatch.setenv(
            "AIRFLOW_CONN_FSM_DEFAULT", json.dumps({**json.loads(before), **fields})
        )

    def id_of(self, reference):
        """Look a job up in the service."""
        (job,) = [job for job in self.service.jobs if job["customerReference"] == reference]
        return f"--job-id {job['id']}"

    def has(self, *references):
        """Check that these are the jobs of the service, each once."""
        assert sorted(job["customerReference"] for job in self.service.jobs) == sorted(references)


def job(reference, **more):
    """Return a job; an edited one has the property of the first letter."""
    number = 1 + "ABCXYZ".index(reference[0])
    return {"property_id": number, "job": {"customerReference": reference}, **more}


def jobs(references, **more):
    return [job(reference, **more) for reference in references]


def way(*names, row=None, **pages):
    """Have a function be what a person does who is told those texts of ``advice``.

    :param row: what the page about troubleshooting says to do about the message.
    :param pages: a sentence of each page.
    """

    def note(function):
        WAYS[function.__name__] = function, names, row, pages
        return function

    return note


RESTORED = "restore it, or give it a `key` of its own if it is another job; then clear the task"
MOVED = (
    "If it is, or if it has moved here from another map index, restore the order of the input, "
    "with new rows at its end; if it was never sent, "
)


@way(
    "restore_or_separate",
    bulk="Restore the input, or give the new job a key if it is another one. Then clear the task.",
)
def an_edited_item_is_restored(place):
    place.succeeds(jobs("ABC"))
    said = place.fails([*jobs("AC"), job("B2")])
    assert "may be the same, edited. If it is, restore the input; if it is another, " in said
    assert said.endswith("Then clear the task")

    place.succeeds(jobs("ABC"))

    place.has("A", "B", "C")
    return said


@way("restore_or_separate", "key_is_enough")
def an_edited_item_is_another_job(place):
    place.succeeds(jobs("ABC"))
    said = place.fails([*jobs("AC"), job("B2")])
    assert "if it is another, give it a key of its own. Then clear the task" in said

    place.succeeds([*jobs("AC"), job("B2", key="B2")])

    place.has("A", "B", "B2", "C")


@way("restore_or_separate", "settle_if_uncertain")
def an_edited_item_that_is_uncertain_is_restored(place):
    for is_made in (True, False):
        run_id = f"run-{is_made}"
        place.lose("B", is_made)
        place.fails(jobs("ABC"), run_id=run_id)
        said = place.fails([*jobs("AC"), job("B2")], run_id=run_id)
        assert "If it is, restore the input" in said
        said = place.fails(jobs("ABC"), run_id=run_id)
        assert "record what you found (--job-id N, --not-created, or --done" in said
        assert "and clear the task" in said
        place.settle(said, place.id_of("B") if is_made else "--not-created")
        place.succeeds(jobs("ABC"), run_id=run_id)

    place.has("A", "B", "C", "A", "B", "C")


@way(
    "settle_if_not_created",
    bulk="If the old job is uncertain and does not exist, settle it, and the row may stay edited.",
)
def an_edited_item_that_does_not_exist_stays_edited(place):
    place.lose("B", is_made=False)
    place.fails(jobs("ABC"))
    edited = [*jobs("AC"), job("B2")]
    said = place.fails(edited)
    assert "Or, if the first does not exist, record that and clear the task: python" in said

    place.settle(said)
    place.succeeds(edited)

    place.has("A", "B2", "C")


@way("restore_or_separate", bulk="put new rows at the end of the input.")
def rows_that_moved_are_put_back(place):
    for index, reference in enumerate("AB"):
        place.succeeds([job(reference)], map_index=index)
    for index, reference in enumerate("CA"):
        said = place.fails([job(reference)], map_index=index)
        assert f"may be the same, edited, or one of another map index, moved. {MOVED}" in said

    for index, reference in enumerate("ABC"):
        place.succeeds([job(reference)], map_index=index)

    place.has("A", "B", "C")
    return said


@way("restore_or_separate", "key_is_enough")
def a_row_of_a_map_is_another_job(place):
    for index, reference in enumerate("AB"):
        place.succeeds([job(reference)], map_index=index)
    said = place.fails([job("C")], map_index=1)

    if place.is_shared:
        assert "if it was never sent, give it a key of its own. Then clear the task" in said
        place.succeeds([job("C", key="C")], map_index=1)
    else:
        assert "if it was never sent, move it to a task of its own. Then clear the task" in said
        place.succeeds([job("B")], map_index=1)
        place.succeeds(job("C"), task_id="own")

    place.has("A", "B", "C")


@way("restore_or_separate", "settle_if_uncertain")
def a_row_that_joins_those_of_a_map_index_is_moved_out_again(place):
    place.lose("B")
    uncertain = place.fails(jobs("AB"), map_index=0)
    said = place.fails(jobs("ABC"), map_index=0)
    assert f"may be the same, edited, or one of another map index, moved. {MOVED}" in said
    said = place.fails(jobs("AC"), map_index=0)
    assert "this task has sent POST /properties/2/jobs" in said
    assert "if the first does not exist" not in said  # it may be of another map index

    place.settle(uncertain, place.id_of("B"))
    place.succeeds(jobs("AB"), map_index=0)
    place.succeeds(jobs("C"), task_id="own")

    place.has("A", "B", "C")


@way("restore_or_separate", row=RESTORED)
def a_job_that_was_edited_is_restored(place):
    for task_id, more in (("by place", {}), ("by key", {"key": "PM-1"})):
        place.succeeds(job("A", **more), task_id=task_id)
        said = place.fails(job("A2", **more), task_id=task_id)
        assert "Nothing was sent now: the input may be the same, edited. If it is, restore" in said
        place.succeeds(job("A", **more), task_id=task_id)
    place.has("A", "A")
    return said


@way("restore_or_separate", "key_is_enough")
def a_job_that_was_edited_is_another(place):
    tasks = [
        ({}, {"task_id": "place"}),
        ({"key": "1"}, {"task_id": "key"}),
        ({}, {"task_id": "mapped", "map_index": 0}),
        ({"key": "1"}, {"task_id": "mapped, with a key", "map_index": 0}),
    ]
    for more, task in tasks:
        place.succeeds(job("A", **more), **task)
        said = place.fails(job("B", **more), **task)
        if "give it a key of its own" in said:
            place.succeeds(job("B", key="2"), **task)
            continue
        assert "map_index" in task
        assert "if it was never sent, move it to a task of its own. Then clear the task" in said
        place.succeeds(job("A", **more), **task)
        place.succeeds(job("B", **more), task_id=f"own, for {task['task_id']}")

    place.has(*"AAAABBBB")


@way(
    "settle",
    "TASK_OPTIONS",
    "settle_if_uncertain",
    row="[look it up, settle it, and clear the task](jobs.md#when-a-job-is-uncertain)",
    jobs="Then clear the task.",
    settle="Record what you found, and clear the task:",
)
def what_is_uncertain_is_settled_where_many_have_its_key(place):
    """The command says which of them is meant: other runs, tasks and map indexes have the key."""
    tasks = [{"run_id": "run"}, {"run_id": "-2"}, {"task_id": "other"}]
    tasks += [{"task_id": "mapped", "map_index": 0}]
    if not place.is_shared:
        tasks += [{"task_id": "mapped", "map_index": 1}]
    said = {}
    for number, task in enumerate(tasks):
        place.lose("A", is_made=number % 2 == 0)
        said[number] = place.fails(job("A", key="-a b"), **task)
    for number, task in enumerate(tasks):
        made = place.service.jobs[number // 2]["id"]
        place.settle(said[number], "--not-created" if number % 2 else f"--job-id {made}")
        place.succeeds(job("A", key="-a b"), **task)

    place.has(*"A" * len(tasks))
    return said[0]


@way("settle", "settle_if_uncertain")
def what_is_uncertain_is_settled_in_the_airflow_that_sent_it(place):
    said = {}
    for name in ("north", "south") if place.is_shared else ("north",):
        place.monkeypatch.setenv("AIRFLOW__FSM__AIRFLOW_NAME", name)
        place.lose("A")
        said[name] = place.fails(job("A", key="PM-1"))
        if place.is_shared:
            place.forget_stores()  # the other has its own
    for number, name in enumerate(said):
        place.settle(said[name], f"--job-id {place.service.jobs[number]['id']}")
    place.has(*"A" * len(said))


@way("settle_as_made", "LEASE_LASTS")
def what_could_not_be_recorded_is_settled_with_its_id(place):
    stored = []

    def refuse(*args, **kwargs):
        raise RuntimeError("no API server")

    def go_away():
        if place.is_shared:
            place.database.execute("ALTER TABLE fsm_ledger RENAME TO fsm_away")
        else:
            stored.append(place.store().set)
            place.store().set = refuse

    place.service.fail("POST", "*", faults.Before(go_away))
    with pytest.raises(Exception, match=r"no API server|fsm_ledger") as caught:
        place.attempt(job("A", key="PM-1"))
    said = str(caught.value) + "\n".join(getattr(caught.value, "__notes__", []))
    if place.is_shared:
        place.database.execute("ALTER TABLE fsm_away RENAME TO fsm_ledger")
    else:
        place.store().set = stored[0]
    assert "job 1001 (key 'PM-1') was made, and cannot be recorded: record that before its " in said

    place.settle(said)
    place.succeeds(job("A", key="PM-1"))

    place.has("A")


@way("ROWS_GONE", "ONLY_WHAT_IS_MISSING")
def rows_that_are_gone_are_restored(place):
    if not place.is_shared:
        return

    def delete():
        place.database.execute(
            "CREATE TABLE backup AS SELECT * FROM fsm_ledger", "DELETE FROM fsm_ledger"
        )

    place.service.fail("POST", "*", faults.Before(delete))
    said = place.fails(job("A", key="PM-1"))
    assert said.endswith(
        "are gone: restore a backup of that database before the task is cleared; or look each "
        "write up in the service, and put only what is missing into another run"
    )

    place.database.execute("INSERT INTO fsm_ledger SELECT * FROM backup")
    place.let_leases_end()
    said = place.fails(job("A", key="PM-1"))
    place.settle(said, place.id_of("A"))
    place.succeeds(job("A", key="PM-1"))

    place.has("A")


CONNECTION_RESTORED = (
    "restore them, and clear the task; or, with a database, [rename the service]"
    "(ledger.md#another-host-or-a-second-account)"
)


@way("SERVICE_CHANGED", row=CONNECTION_RESTORED)
def host_and_login_are_restored(place):
    place.lose("B", is_made=False)
    uncertain = place.fails(jobs("ABC"))
    place.edit_connection(login="north")
    said = place.fails(jobs("ABC"))
    assert said.endswith("Restore its host and login, and clear the task")

    place.edit_connection(login=None)
    assert place.fails(jobs("ABC")).count("ledger settle") == 1
    place.settle(uncertain, "--not-created")
    place.succeeds(jobs("ABC"))

    place.has("A", "B", "C")
    return said


@way("for_changed_service", "for_unknown_service", "SERVICE_IS_THERE", "SERVICE_IS_NOT_THERE")
def a_service_that_has_another_login_is_renamed(place):
    if not place.is_shared:
        return
    place.succeeds(job("A"))
    place.edit_connection(login="north")
    said = place.fails(job("A"))
    assert "so and clear the task:\n  python -m fsm_provider ledger rename-service" in said
    (rename,) = re.findall(r"python -m fsm_provider ledger rename-service .*", said)
    *_, old, new = shlex.split(rename)
    said = place.fails(job("B"), run_id="another")
    assert (
        "If it is another service:\n  python -m fsm_provider ledger add-service --conn-id" in said
    )
    (add,) = re.findall(r"python -m fsm_provider ledger add-service .*", said)

    assert place.type(add)[0] == 0  # by mistake
    code, said = place.type(rename)
    assert code == 1
    assert "If nothing was sent to it, rename it first, to any text" in said
    code, said = place.type("python -m fsm_provider ledger rename-service nowhere mistake")
    assert code == 1
    assert "'python -m fsm_provider ledger services' shows those that it knows" in said
    code, said = place.type("python -m fsm_provider ledger services")
    assert (code, old in said, new in said) == (0, True, True)
    by_mistake = f"python -m fsm_provider ledger rename-service {shlex.quote(new)} mistake"
    assert place.type(by_mistake)[0] == 0
    assert place.type(rename)[0] == 0
    place.succeeds(job("A"))
    place.succeeds(job("B"), run_id="another")

    place.has("A", "B")


@way("LEDGER_CHANGED", "ONLY_WHAT_IS_MISSING")
def the_ledger_is_restored_or_only_what_is_missing_is_created(place):
    if not place.is_shared:
        return None
    place.service.fail("POST", "/properties/3/jobs", faults.Status(400))
    place.fails(jobs("ABC"))
    name = "AIRFLOW__FSM__AIRFLOW_NAME"
    place.monkeypatch.setenv(name, "north")
    said = place.fails(jobs("ABC"))
    assert "restore state_conn_id and airflow_name, and clear the task; or, if that" in said
    assert said.endswith(
        "is gone, look each write up in the service, and put only what is missing into another run"
    )
    place.monkeypatch.delenv(name)
    place.succeeds(jobs("ABC"))
    place.has("A", "B", "C")

    place.succeeds(jobs("AB"), run_id="second")
    place.database.execute("DELETE FROM fsm_ledger", "DELETE FROM fsm_tasks")
    assert "look each write up in the service" in place.fails(jobs("ABC"), run_id="second")
    place.succeeds(jobs("C"), run_id="third")
    place.has(*"AABBCC")
    return said


@way("PAGE_DAMAGED", "ONLY_WHAT_IS_MISSING")
def a_page_is_restored_or_only_what_is_missing_is_created(place):
    if place.is_shared:
        return
    key = f"{PAGE}0"
    place.service.fail("POST", "/properties/3/jobs", faults.Status(400))
    place.fails(jobs("ABC"))
    backup = place.store().get(key)
    place.store().set(key, {"version": 1})
    said = place.fails(jobs("ABC"))
    assert said.endswith(
        "restore a backup of Airflow's database, and clear the task; or look each write up in the "
        "service, and put only what is missing into another run"
    )
    place.succeeds(jobs("C"), run_id="second")
    place.has("A", "B", "C")

    place.store().set(key, backup)
    place.succeeds(jobs("AB"))
    place.has("A", "B", "C")


@way("NEWER_VERSION")
def the_newer_version_is_installed_again(place):
    if place.is_shared:
        return
    key = f"{PAGE}0"
    place.succeeds(job("A"))
    page = place.store().get(key)
    place.store().set(key, {**page, "version": 2})
    assert place.fails(job("A")).endswith("install that version again, and clear the task")

    place.store().set(key, page)
    place.succeeds(job("A"))
    place.has("A")


@way("KEY_UNKNOWN", "COMMAND")
def an_unknown_key_is_looked_for_in_the_list(place):
    place.lose("A")
    place.fails(job("A", key="PM-1"))
    code, said = place.type("python -m fsm_provider ledger settle PM-11 --done", *WHY)
    assert code == 1
    assert "'python -m fsm_provider ledger list' shows what was sent" in said

    code, listed = place.type("python -m fsm_provider ledger list")
    key = listed.splitlines()[1].split()[0]
    found = place.id_of("A")
    assert place.type(f"python -m fsm_provider ledger settle {key} {found}", *WHY)[0] == 0
    place.succeeds(job("A", key="PM-1"))
    place.has("A")


@way("KEY_AMBIGUOUS")
def an_ambiguous_key_is_narrowed(place):
    for index in (0, 1):
        place.lose("A")
        place.fails(job("A", key=f"PM-{0 if not place.is_shared else index}"), map_index=index)
        place.lose("B")
        place.fails(job("B", key="PM-9"), run_id=f"run-{index}")
    made = [made["id"] for made in place.service.jobs if made["customerReference"] == "B"]
    line = f"python -m fsm_provider ledger settle PM-9 --job-id {made[0]}"
    code, said = place.type(line, *WHY)
    assert code == 1
    assert "narrow it with --dag, --run, --task, --map-index, --airflow: task task of run " in said

    assert place.type(line, "--run", "run-0", *WHY)[0] == 0
    place.succeeds(job("B", key="PM-9"), run_id="run-0")
    made = [made["id"] for made in place.service.jobs if made["customerReference"] == "A"]
    line = f"python -m fsm_provider ledger settle PM-{int(place.is_shared)} --job-id {made[1]}"
    assert place.type(line, "--map-index", "1", "--task", "task", *WHY)[0] == 0
    place.succeeds(job("A", key=f"PM-{int(place.is_shared)}"), map_index=1)
    place.has(*"AABB")


@way("CHANGED_MEANWHILE")
def what_has_changed_is_looked_at_again(place):
    place.lose("A")
    place.fails(job("A", key="PM-1"))
    with admin.open_ledgers("fsm_default") as ledgers:
        with pytest.raises(FsmError, match="'PM-1' has changed meanwhile: look again"):
            admin.find_as_seen(ledgers, "PM-1", "another")
        [(_, entry)] = ledgers.entries(EntryFilter(key="PM-1"))
        found = admin.find_as_seen(ledgers, "PM-1", entry.owner)
        settlement = admin.Settlement(True, place.service.jobs[0]["id"])
        admin.settle(ledgers, found, settlement, "jo", "looked it up")
    place.succeeds(job("A", key="PM-1"))
    place.has("A")


@way("TASK_IS_AT_WORK")
def a_task_that_is_at_work_is_waited_for(place):
    if place.is_shared:
        return
    place.lose("A")
    said = place.fails(job("A", key="PM-1"))
    place.store().set_state("running")
    (line,) = re.findall(r"python -m fsm_provider ledger settle .*", said)
    line = line.replace("--job-id N", place.id_of("A"))
    code, refused = place.type(line)
    assert code == 1
    assert refused.endswith("its task is running: wait until it has ended\n")

    place.store().set_state("failed")
    assert place.type(line)[0] == 0
    place.succeeds(job("A", key="PM-1"))
    place.has("A")


@way("ID_OF_ANOTHER")
def the_id_of_another_key_is_given_back(place):
    """The first job was settled with the id of the second."""
    for reference in "AB":
        place.lose(reference)
        place.fails(job(reference, key=reference), task_id=reference)
    settle = "python -m fsm_provider ledger settle"
    assert place.type(f"{settle} A {place.id_of('B')}", *WHY)[0] == 0
    wrong = f"{settle} B {place.id_of('B')}"
    code, said = place.type(wrong, *WHY)
    assert code == 1
    assert said.endswith(
        "is that of key 'A': if that is wrong, pause the DAG of that key, forget it and settle it "
        "with its own id, and repeat this\n"
    )

    assert place.type("python -m fsm_provider ledger forget A", *WHY)[0] == 0
    assert place.type(f"{settle} A {place.id_of('A')}", *WHY)[0] == 0
    assert place.type(wrong, *WHY)[0] == 0
    for reference in "AB":
        place.succeeds(job(reference, key=reference), task_id=reference)
    place.has("A", "B")


@way("AFTER_REFUSAL")
def what_cannot_be_changed_says_what_to_do(place):
    settle = "python -m fsm_provider ledger settle PM-1"
    forget = "python -m fsm_provider ledger forget PM-1"
    place.lose("A")
    place.fails(job("A", key="PM-1"))
    assert place.type(forget, *WHY)[1].endswith("it is uncertain: settle it\n")

    assert place.type(f"{settle} --job-id 9999", *WHY)[0] == 0  # the wrong id
    said = place.type(f"{settle} {place.id_of('A')}", *WHY)[1]
    assert said.endswith(
        "it is done, with id 9999: clear its task to go on; to correct its id, pause its DAG, "
        "forget it and settle it\n"
    )
    assert place.type(forget, *WHY)[0] == 0
    assert place.type(f"{settle} {place.id_of('A')}", *WHY)[0] == 0
    place.succeeds(job("A", key="PM-1"))
    place.has("A")

    assert place.type(forget, *WHY)[0] == 0
    said = place.type(f"{settle} --not-created", *WHY)[1]
    assert said.endswith("it is free: the next attempt sends it\n")
    place.succeeds(job("A", key="PM-1"))
    place.has("A", "A")  # it was forgotten

    if place.is_shared:
        place.database.execute("UPDATE fsm_ledger SET state = 'sending'")
        said = place.type(forget, *WHY)[1]
        assert said.endswith(": wait until it is done or uncertain\n")


@way("settle_if_uncertain")
def a_state_that_this_version_does_not_know_is_settled(place):
    place.succeeds(job("A", key="PM-1"))
    if place.is_shared:
        place.database.execute("UPDATE fsm_ledger SET state = 'held', job_digest = NULL")
    else:
        place.edit_pages(lambda entry: entry.update(state="held"))
    said = place.fails(job("A", key="PM-1"))
    assert "its state is 'held', which this version does not know" in said
    assert place.type("python -m fsm_provider ledger list --uncertain")[0] == 0

    place.settle(said, place.id_of("A"))
    place.succeeds(job("A", key="PM-1"))
    place.has("A")


@pytest.mark.parametrize("name", WAYS)
def test_what_a_person_is_told_is_done(place, name):
    do, _, row, _ = WAYS[name]

    said = do(place)

    if row and said:
        assert to_do_about(said) == row


def rows_of_page():
    """Return the messages of writes on the page about troubleshooting, with what to do."""
    page = (DOCS / "troubleshooting.md").read_text()
    section = page.split("## Jobs and other writes")[1].split("\n## ")[0]
    return re.findall(r"^\| `(.*?)` \| .* \| (.*) \|$", section, re.MULTILINE)


def to_do_about(said):
    """Return what the page says to do about a message."""
    for pattern, to_do in rows_of_page():
        if re.search(re.escape(pattern).replace("…", "(.|\n)*"), said):
            return to_do
    return None


def test_each_row_of_the_page_is_done_or_sends_nothing():
    others = {"the same", "compare the job in the service"}
    done = {row for _, _, row, _ in WAYS.values()}
    for _, to_do in rows_of_page():
        assert to_do in done | others or to_do.startswith("select a value: ")


def test_each_text_is_done():
    done = {name for _, names, _, _ in WAYS.values() for name in names}
    texts = {name for name in vars(advice) if name.isupper() and name != "TYPE_CHECKING"}
    functions = {name for name in vars(advice) if name.startswith("for_")}
    methods = {name for name in vars(advice.Advice) if not name.startswith("_")}
    assert texts | functions | methods == done


@pytest.mark.parametrize("page", ["bulk", "jobs", "settle"])
def test_the_pages_say_what_is_done(page):
    text = " ".join((DOCS / f"{page}.md").read_text().split())
    for _, _, _, pages in WAYS.values():
        assert pages.get(page, "") in text
