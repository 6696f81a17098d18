"""A ledger in a database, shared by tasks, runs and Airflows: SQLite, PostgreSQL, PgBouncer,
MariaDB.
"""

import json
import logging
import multiprocessing
import os
import re
import shlex
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowNotFoundException

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.request import TimeLimit
from fsm_provider.commands.cli import main
from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.state import database as state_database
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.writes import runner
from fsm_provider.writes.admin import open_ledgers
from fsm_provider.writes.ledger import EntryFilter
from tests.capabilities import THREADS
from tests.unit.operators.jobs import attempt_of
from tests.unit.state_store import MemoryStateStore, context_for
from tests.unit.writes.databases import empty_database
from tests.unit.writes.operators import lose
from tests.unit.writes.waiting import Held, wait_for

ODD_KEYS = ["PO-1", "po-1", "PO-1\N{NO-BREAK SPACE}x", "\U0001f690", "a\0b", "k" * 5000, "Straße"]
LEASE = 1.5
UNCERTAIN = "may or may not have taken effect"


@pytest.fixture(autouse=True)
def connected(service, connect, database):
    connect(service, max_retries=0)


def run_of(run_id="run", *, store=None, **more):
    """Make the context of an attempt; ``store`` is given where an earlier one had it."""
    return context_for(store or MemoryStateStore(), run_id=run_id, **more)


def job(key="PO-1", operator=FsmCreateJobOperator, **more):
    given = {
        "property_id": 7,
        "job": {"customerReference": key},
        "key": key,
        "once_per": "key",
        **more,
    }
    return operator(task_id="task", **given)


def jobs(*keys, operator=FsmCreateJobsOperator, **more):
    payloads = [{"property_id": 7, "job": {"customerReference": key}, "key": key} for key in keys]
    return operator(task_id="task", **{"jobs": payloads, "once_per": "key", **more})


def request(key="PO-1", path="/properties/7/jobs", **more):
    given = {"json": {"customerReference": key}, "key": key, "once_per": "key", **more}
    return FsmRequestOperator(task_id="task", method="POST", path=path, **given)


def unkeyed(*references, key=None):
    """Jobs that are identified by their content, but the last one by its key, if there is one."""
    made = [{"property_id": 7, "job": {"customerReference": reference}} for reference in references]
    made[-1]["key"] = key
    return jobs(jobs=made, once_per="run", max_concurrency=1)


@contextmanager
def under_way(operator, context, held):
    """Have an attempt at work for the block, give its future."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(operator.execute, context)
        try:
            assert held.arrived.wait(10)
            yield future
        finally:
            held.go_on.set()


@pytest.mark.parametrize("make", [job, request])
def test_another_run_gets_what_the_ledger_has_of_the_result(service, make):
    first = make("7").execute(run_of("first"))

    operator = make(
        "{{ key }}", **{"json" if make is request else "job": {"customerReference": "7"}}
    )
    operator.key = 7  # the same key as its text
    second = operator.execute(run_of("second"))

    about = ("propertyID", "customerReference") * (make is job)
    kept = ("id", "createdOnDateTime", "lastUpdatedOnDateTime", *about)
    assert second == {name: first[name] for name in kept if name in first}
    assert second["id"] == service.jobs[0]["id"]
    assert len(service.jobs) == 1


def test_the_page_counts_what_was_sent_by_day_and_state(service):
    earliest = int(time.time()) // 86_400
    jobs("PO-1", "PO-2").execute(run_of())
    lose(service)
    with pytest.raises(AirflowFailException, match=UNCERTAIN):
        job("PO-3").execute(run_of("another"))

    with open_ledgers("fsm_default") as ledgers:
        counts = ledgers.counts()
        number = ledgers.number_of(EntryFilter(sent_by={"run_id": ["another"]}))

    assert {tally.day for tally in counts} <= {earliest, earliest + 1}
    assert Counter(tally.state for tally in counts.elements()) == {"done": 2, "uncertain": 1}
    assert number == 1


def test_what_is_no_job_may_have_the_id_of_a_job_and_of_another_write(service):
    job_id = job("job").execute(run_of())["id"]
    service.fail("POST", "/notes", faults.Status(200, body={"id": job_id}), every=True)

    for key in ("first", "second"):
        assert request(key, "/notes").execute(run_of(key))["id"] == job_id


def test_outcomes_name_who_created_each_job_and_both_operators_share_keys(service):
    first = jobs("PO-1", "PO-2").execute(run_of("first"))
    alone = job("PO-3").execute(run_of("second"))

    outcomes = jobs("PO-2", "PO-3", "PO-4").execute(run_of("third"))

    assert [outcome["outcome"] for outcome in outcomes] == ["existing", "existing", "created"]
    assert [outcome["jobID"] for outcome in outcomes[:2]] == [first[1]["jobID"], alone["id"]]
    by = {"dag_id": "dag", "run_id": "first", "task_id": "task", "map_index": -1, "airflow": ""}
    assert [outcome["by"] for outcome in outcomes] == [by, {**by, "run_id": "second"}, None]
    assert job("PO-1").execute(run_of("fourth"))["id"] == first[0]["jobID"]
    assert len(service.jobs) == 4


def test_a_key_is_written_once_for_each_run_or_once(service):
    for run_id in (
        "first",
        "second",
        "first",
    ):  # the last one as if the run was deleted and made again
        job(once_per="run").execute(run_of(run_id))
    assert len(service.jobs) == 2

    for run_id in ("first", "second"):
        job().execute(run_of(run_id))
    assert len(service.jobs) == 3


@pytest.mark.parametrize("key", ["None", "nan", {"id": 1}])
def test_a_key_whose_template_found_nothing_is_refused(service, key):
    for make in (job, request):
        operator = make("{{ key }}")
        operator.key = key
        with pytest.raises(AirflowFailException, match="key: "):
            operator.execute(run_of())
    for given, says in ((key, r"jobs\[0\]\.key: "), (None, r"jobs\[0\]\.key: is missing")):
        with pytest.raises((FsmInputError, AirflowFailException), match=says):
            jobs(given).execute(run_of())
    assert service.requests == []


@pytest.mark.parametrize("what", ["done", "uncertain"])
@pytest.mark.parametrize(
    "other",
    [
        lambda: job(property_id=8),
        lambda: job(job={"customerReference": "PO-1", "notes": "another"}),
        lambda: request(path="/properties/7/notes"),
        lambda: jobs(jobs=[{"property_id": 7, "job": {}, "key": "PO-1"}]),
    ],
    ids=["property", "payload", "operation", "in bulk"],
)
@pytest.mark.usefixtures("short_lease")
def test_a_key_of_other_content_is_refused_and_what_was_sent_is_named(
    service, database, other, what
):
    if what == "uncertain":
        lose(service)
        with pytest.raises(AirflowFailException):
            job().execute(run_of("first"))
        says = "that is what was sent with this key: the input is another now, and was not sent"
    else:
        job().execute(run_of("first"))
        job_id = service.jobs[0]["id"]
        says = rf"key 'PO-1' is that of POST /properties/7/jobs \(.*'PO-1'\) \(id {job_id}\)"
    (before,) = database.rows()

    operator, context = other(), run_of("second")
    operator.if_uncertain = "create"
    with pytest.raises(AirflowFailException, match=rf"{says}(.|\n)*sent (by|at)") as caught:
        operator.execute(context)

    assert "of run first of DAG dag" in str(caught.value)
    assert database.rows() == [before]
    assert len(service.requests) == 1
    for outcome in context["ti"].pushed.get("return_value", []):  # is what was sent, not the input
        assert outcome["customerReference"] == "PO-1"
        assert outcome["outcome"] == ("uncertain" if what == "uncertain" else "not_created")


def odd_keys_are_different_keys(service):
    payloads = [
        {"property_id": 7, "job": {"customerReference": "x"}, "key": key} for key in ODD_KEYS
    ]
    operator = jobs(jobs=payloads, max_concurrency=1)
    for run_id, expected in (("first \N{DELIVERY TRUCK}", "created"), ("second", "existing")):
        outcomes = operator.execute(
            run_of(run_id, task_id="t\N{LATIN SMALL LETTER A WITH DIAERESIS}sk")
        )
        assert [outcome["outcome"] for outcome in outcomes] == [expected] * len(ODD_KEYS)
    assert [outcome["key"][:2000] for outcome in outcomes] == [key[:2000] for key in ODD_KEYS]
    assert outcomes[0]["by"]["run_id"] == "first \N{DELIVERY TRUCK}"
    assert len(service.jobs) == len({outcome["jobID"] for outcome in outcomes}) == len(ODD_KEYS)


def test_keys_differ_as_texts_do(service, database):
    odd_keys_are_different_keys(service)
    assert len(database.rows()) == len(ODD_KEYS)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_is_not_in_utf8_holds_the_same(
    service, database_server, tmp_path, monkeypatch, encoding
):
    if database_server[0] in ("sqlite", "mariadb"):
        pytest.skip("its encoding is that of the table")
    other = empty_database(*database_server, tmp_path, encoding)
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", other.connection_json)
    odd_keys_are_different_keys(service)


def test_what_another_run_has_planned_meanwhile_is_not_planned_again(service, monkeypatch):
    run, first = runner.Runner.run, []

    def run_after_another(by):
        monkeypatch.setattr(runner.Runner, "run", run)
        first.append(job().execute(run_of("first"))["id"])
        run(by)

    monkeypatch.setattr(runner.Runner, "run", run_after_another)
    first_outcome, second_outcome = jobs("PO-1", "PO-2").execute(run_of("second"))

    assert (first_outcome["outcome"], second_outcome["outcome"]) == ("existing", "created")
    assert [first_outcome["jobID"]] == first
    assert len(service.jobs) == 2


@THREADS.needed
def test_what_is_under_way_in_another_run_is_waited_for(service, caplog):
    caplog.set_level("INFO")
    service.fail("POST", "/properties/*/jobs", faults.Before(held := Held()))
    with under_way(job(), run_of("first"), held) as first, ThreadPoolExecutor(1) as pool:
        second = pool.submit(lambda: jobs("PO-1", "PO-2").execute(run_of("second")))
        service.wait_for(lambda: len(service.jobs) == 1, 10)  # the rest is sent meanwhile
        assert service.jobs[0]["customerReference"] == "PO-2"
        says = (
            r"\(key 'PO-1'\): task task of run first of DAG dag is sending it: "
            r"waiting until ..:..:.. UTC"
        )
        assert re.search(says, caplog.text)
        held.go_on.set()

    first_outcome, second_outcome = second.result()
    assert (first_outcome["outcome"], second_outcome["outcome"]) == ("existing", "created")
    assert first_outcome["jobID"] == first.result()["id"]
    assert len(service.jobs) == 2


@THREADS.needed
def test_what_another_run_claims_at_the_same_moment_is_waited_for(service, monkeypatch):
    service.fail("POST", "/properties/*/jobs", faults.Before(held := Held()))
    claim_for, first = runner.Runner._claim_for, []
    with ThreadPoolExecutor(1) as pool:

        def claim_after_another(by, write):
            monkeypatch.setattr(runner.Runner, "_claim_for", claim_for)
            first.append(pool.submit(job().execute, run_of("first")))
            assert held.arrived.wait(10)
            threading.Timer(1, held.go_on.set).start()
            return claim_for(by, write)

        monkeypatch.setattr(runner.Runner, "_claim_for", claim_after_another)
        second = job().execute(run_of("second"))

    assert second["id"] == first[0].result()["id"]
    assert len(service.jobs) == 1


@THREADS.needed
def test_a_row_that_is_deleted_in_flight_fails_the_task_without_a_retry(service, database, caplog):
    service.fail("POST", "/properties/*/jobs", faults.Before(held := Held()))
    with under_way(job(), run_of("first"), held) as attempt:
        database.execute("DELETE FROM fsm_ledger")
        held.go_on.set()
        with pytest.raises(AirflowFailException, match=r"rows of fsm_ledger .* are gone"):
            attempt.result(30)

    assert (
        f"job {service.jobs[0]['id']} (key 'PO-1') was made, and cannot be recorded" in caplog.text
    )


@THREADS.needed
def test_a_row_that_is_deleted_fails_the_task_that_waits_for_it(service, database, caplog):
    caplog.set_level("INFO")
    service.fail("POST", "/properties/*/jobs", faults.Before(held := Held()))
    with under_way(job(), run_of("first"), held), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(job().execute, run_of("second"))
        wait_for(lambda: "is sending it: waiting until" in caplog.text)
        database.execute("DELETE FROM fsm_ledger")
        with pytest.raises(AirflowFailException, match=r"rows of fsm_ledger .* are gone"):
            waiting.result(30)

    assert len(service.jobs) == 1


@THREADS.needed
def test_a_stopped_task_leaves_what_another_is_sending_uncertain(service):
    service.fail("POST", "/properties/*/jobs", faults.Before(held := Held()))
    with under_way(job(), run_of("first"), held):
        waiting, context = jobs("PO-1"), run_of("second")
        waiting.on_kill()
        with pytest.raises(
            Exception, match=r"it may be under way for another \d+ s \(sent by task task of"
        ):
            waiting.execute(context)

    assert context["ti"].pushed["return_value"][0]["outcome"] == "uncertain"


@THREADS.needed
def test_the_same_run_of_another_airflow_is_another_task(service, monkeypatch):
    for once_per, made in (("key", 1), ("run", 3)):
        for airflow in ("north", "south"):
            monkeypatch.setenv("AIRFLOW__FSM__AIRFLOW_NAME", airflow)
            (outcome,) = jobs("PO-1", once_per=once_per).execute(run_of("monday"))
            if (once_per, airflow) == ("key", "south"):
                assert (outcome["outcome"], outcome["by"]["airflow"]) == ("existing", "north")
        assert len(service.jobs) == made


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("once_per", ["key", "run"])
def test_a_lost_response_is_uncertain_for_all_who_are_told_what_to_type(service, once_per):
    lose(service)
    before = datetime.now(UTC) - timedelta(seconds=1)
    run_ids = ("first", "second", "first") if once_per == "key" else ("first", "first")
    for run_id in run_ids:
        with pytest.raises(AirflowFailException, match=UNCERTAIN) as caught:
            job(once_per=once_per).execute(run_of(run_id))
        assert "(sent by task task of run first of DAG dag)" in str(caught.value)
        assert "key 'PO-1', propertyID 7, customerReference 'PO-1'" in str(caught.value)
        (sent_at,) = re.findall("attempted at ([^ ,]+)", str(caught.value))
        assert before <= datetime.fromisoformat(sent_at) <= datetime.now(UTC)
    context = run_of("first")
    with pytest.raises(AirflowFailException):
        jobs("PO-1", "PO-2", once_per=once_per).execute(context)
    uncertain, created = context["ti"].pushed["return_value"]
    assert (uncertain["outcome"], uncertain["by"]["run_id"]) == ("uncertain", "first")
    assert created["outcome"] == "created"
    assert [job["customerReference"] for job in service.jobs] == ["PO-1", "PO-2"]

    (line,) = re.findall("python -m fsm_provider ledger (.*)", uncertain["error"])
    typed = line.replace("--job-id N", f"--job-id {service.jobs[0]['id']}")
    assert main(["ledger", *shlex.split(typed)]) == 0
    assert job(once_per=once_per).execute(run_of("first"))["id"] == service.jobs[0]["id"]
    assert len(service.jobs) == 2


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("make", [job, jobs, request])
def test_what_is_uncertain_is_created_once_its_lease_is_over_and_once_in_an_attempt(
    service, database, make, monkeypatch
):
    waited = []

    class TimePasses(logging.Handler):
        """Ends the lease of what an attempt waits for."""

        def emit(self, record):
            if "its last request may still be on its way: waiting until" in record.getMessage():
                waited.append(record)
                database.execute("UPDATE fsm_ledger SET lease_until = 0")

    monkeypatch.setattr(runner, "MIN_LEASE", 60.0)
    monkeypatch.setattr(runner, "logger", logging.Logger("runner"))
    runner.logger.addHandler(TimePasses())
    lose(service, calls=(1, 2))
    with pytest.raises(AirflowFailException, match=UNCERTAIN):
        make("PO-1").execute(run_of("first"))
    with pytest.raises(AirflowFailException, match=UNCERTAIN):
        make("PO-1", if_uncertain="create").execute(run_of("second"))
    assert (len(service.jobs), len(waited)) == (2, 1)

    make("PO-1", if_uncertain="create").execute(run_of("third"))

    assert (len(service.jobs), len(waited)) == (3, 2)


@pytest.mark.parametrize("lost", range(10))
def test_a_commit_whose_response_is_lost_is_recognised(service, database, monkeypatch, lost):
    """An undisturbed attempt makes fewer than ten of them."""
    dialect, commits = type((engine := state_database.open_database("ledger")).dialect), []
    engine.dispose()
    do_commit = dialect.do_commit

    def commit(self, connection):
        do_commit(self, connection)
        commits.append(connection)
        if len(commits) == lost + 1:
            raise self.dbapi.OperationalError(
                2013, "the connection was lost, or database is locked"
            )

    monkeypatch.setattr(dialect, "do_commit", commit)
    made = job().execute(run_of("first"))

    assert [made["id"]] == [job["id"] for job in service.jobs]
    assert [(row.state, row.note) for row in database.rows()] == [("done", None)]
    assert len(commits) <= 10


class SenderAround:
    """The client, and what a test does with each response, in the thread that got it."""

    def __init__(self, operator, after):
        self.operator = operator
        self.after = after

    def send(self, request, **options):
        response = self.operator.hook.client.send(request, **options)
        self.after(request)
        return response


class Slow(FsmCreateJobOperator):
    """Its thread is slow after the response has come."""

    def sender(self):
        return SenderAround(self, lambda request: self.held())


class SlowJobs(FsmCreateJobsOperator):
    sender = Slow.sender


class Defective(FsmCreateJobsOperator):
    def sender(self):
        return SenderAround(self, self.fail_for_the_first)

    def fail_for_the_first(self, request):
        for write in self._runner.writes.values():
            if write.request is request and write.entry.key == "PO-1":
                raise TypeError("a defect")


def test_a_defect_is_raised_once_all_that_was_sent_is_recorded(service, database):
    requests = [{"property_id": 7, "job": {}, "key": f"PO-{number}"} for number in range(1, 5)]
    operator = Defective(task_id="task", jobs=requests, once_per="key", max_concurrency=4)

    with pytest.raises(TypeError, match="a defect"):
        operator.execute(run_of("first"))

    states = {row.key: row.state for row in database.rows()}
    assert states["PO-1"] == "uncertain"
    assert sum(state != "free" for state in states.values()) == len(service.jobs)
    assert "sending" not in states.values()


@THREADS.needed
@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("meanwhile", ["nothing", "not created", "made", "created", "sending"])
def test_a_late_success_is_recorded_or_noted(service, database, monkeypatch, meanwhile):
    slow = job(operator=Slow)
    slow.held, why = Held(), ("--why", "looked it up", "--by", "jo")

    with under_way(slow, run_of("first"), slow.held) as first:
        wait_for(lambda: database.rows()[0].lease_until < time.time() * 1000)
        monkeypatch.setattr(runner, "MIN_LEASE", 60)
        if meanwhile == "not created":
            assert main(["ledger", "settle", "PO-1", "--not-created", *why]) == 0
        elif meanwhile == "made":
            assert main(["ledger", "settle", "PO-1", "--job-id", "4711", *why]) == 0
        elif meanwhile == "created":
            job(if_uncertain="create").execute(run_of("second"))
        elif meanwhile == "sending":
            service.fail("POST", "/properties/*/jobs", faults.Before(held := Held()))
            with under_way(job(if_uncertain="create"), run_of("second"), held):
                slow.held.go_on.set()
                wait_for(lambda: "late response" in str(database.rows()[0].note))

    (row,), late = database.rows(), service.jobs[0]["id"]
    assert row.state == "done"
    replaced = meanwhile in ("made", "created", "sending")
    assert json.loads(row.result)["id"] == {"made": 4711}.get(meanwhile, service.jobs[-1]["id"])
    noted = f"a late response to task task of run first of DAG dag: job {late} was made"
    assert (noted in str(row.note)) == replaced
    assert ("jo at" in str(row.note)) == (meanwhile in ("made", "not created"))
    assert str(first.exception()).count(UNCERTAIN) == (meanwhile == "sending")
    assert len(service.jobs) == (2 if meanwhile in ("created", "sending") else 1)


@THREADS.needed
@pytest.mark.usefixtures("short_lease")
def test_a_job_that_another_run_has_created_again_is_told_as_that_of_the_other(service, database):
    slow = jobs("PO-1", operator=SlowJobs)
    slow.held = Held()

    with under_way(slow, run_of("first"), slow.held) as first:
        wait_for(lambda: database.rows()[0].lease_until < time.time() * 1000)
        job(if_uncertain="create").execute(run_of("second"))

    (outcome,) = first.result()
    assert outcome["by"]["run_id"] == "second"
    assert outcome["jobID"] == service.jobs[1]["id"]


@pytest.mark.usefixtures("short_lease")
def test_what_a_person_settles_while_the_task_runs_is_told_as_it_is_then(service, database):
    lose(service)
    with pytest.raises(AirflowFailException, match=UNCERTAIN):
        job("PO-1").execute(run_of("first"))
    wait_for(lambda: database.rows()[0].lease_until < time.time() * 1000)
    settle = ["ledger", "settle", "PO-1", "--not-created", "--why", "not there", "--by", "jo"]
    service.fail("POST", "/properties/*/jobs", faults.Before(lambda: main(settle)))

    second = run_of("second")
    with pytest.raises(AirflowFailException, match="1 created, 1 not created"):
        jobs("PO-1", "PO-2").execute(second)

    outcome = second["ti"].pushed["return_value"][0]
    assert outcome["error"] == "not sent: its entry was settled or forgotten while this task ran"


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize(
    ("command", "outcome"), [("settle --not-created", "uncertain"), ("forget", "created")]
)
def test_what_this_attempt_has_sent_may_exist_whatever_a_person_says_while_it_runs(
    service, database, command, outcome
):
    if outcome == "uncertain":
        lose(service)

    def say():
        first = next(row for row in database.rows() if row.key == "PO-1")
        wait_for(lambda: first.lease_until < time.time() * 1000)
        assert main(["ledger", *command.split(), "PO-1", "--why", "not there", "--by", "jo"]) == 0

    service.fail("POST", "/properties/*/jobs", faults.Before(say), call=2)
    outcomes, _ = attempt_of(MemoryStateStore(), jobs("PO-1", "PO-2", max_concurrency=1))

    assert outcomes[0]["outcome"] == outcome
    assert {row.key: row.state for row in database.rows()}["PO-1"] == "free"


def in_process(environment, run_id, keys, ended):
    """Run an attempt in a process of its own."""
    os.environ.update(environment)
    logging.disable()
    runner.MIN_LEASE, runner.LEASE_TIMEOUTS = LEASE, 0
    runner.TimeLimit = lambda *_, **__: TimeLimit(30.0)
    ended.put([outcome["outcome"] for outcome in jobs(*keys).execute(run_of(run_id))])


@pytest.fixture
def processes():
    """Starts attempts in processes of their own."""
    context, started = multiprocessing.get_context("spawn"), []
    ended = context.Queue()

    def start(run_id, *keys):
        process = context.Process(target=in_process, args=(dict(os.environ), run_id, keys, ended))
        process.start()
        started.append(process)
        return process

    start.ended = ended
    yield start
    for process in started:
        process.kill()
        process.join()


def test_processes_at_the_same_moment_create_each_job_once(service, processes):
    keys = [f"PO-{number}" for number in range(20)]
    service.settings.latency = 0.02
    for run_id in ("first", "second"):
        processes(run_id, *keys)
    outcomes = [outcome for _ in range(2) for outcome in processes.ended.get(timeout=60)]

    assert sorted(job["customerReference"] for job in service.jobs) == sorted(keys)
    assert sorted(outcomes) == ["created"] * 20 + ["existing"] * 20


@pytest.mark.usefixtures("short_lease")
def test_what_a_killed_process_has_sent_is_uncertain_once_its_lease_is_over(service, processes):
    running = []
    service.fail(
        "POST", "/properties/*/jobs", faults.Before(lambda: (running[0].kill(), running[0].join()))
    )
    running.append(processes("first", "PO-1"))
    running[0].join(60)
    service.wait_for(lambda: service.jobs, 10)

    (made,) = service.jobs

    with pytest.raises(
        AirflowFailException, match=r"no response was recorded \(sent by .* run first of"
    ):
        job().execute(run_of("second"))
    found = job(find_existing=lambda hook, job: made["id"]).execute(run_of("second"))
    assert found["id"] == made["id"]
    assert len(service.jobs) == 1


def test_a_mapped_index_takes_no_other_write_unless_it_has_a_key(service):
    def create(map_index, reference, **options):
        operator = FsmCreateJobOperator(
            task_id="task", property_id=7, job={"customerReference": reference}, **options
        )
        return operator.execute(run_of(map_index=map_index))["id"]

    first = create(0, "A")
    with pytest.raises(AirflowFailException, match=r"key 'task\[0\]' is that of POST .*'A'"):
        create(0, "B")
    with pytest.raises(AirflowFailException, match=r"has sent POST .*'A'.* is new in its input"):
        unkeyed("B").execute(run_of(map_index=0))
    assert create(0, "A") == first
    assert len(service.jobs) == 1

    keyed = [create(index, key, key=key) for index, key in enumerate("XY", 2)]
    moved = [create(index, key, key=key) for index, key in enumerate("NXY", 2)]
    assert moved[1:] == keyed
    assert len(service.jobs) == 4


def test_an_edited_item_is_not_taken_for_a_new_one_and_a_shorter_list_is_fine(service):
    service.fail("POST", "/properties/*/jobs", faults.Status(400), calls=(2, 3))
    with pytest.raises(AirflowFailException, match="1 created, 2 rejected"):
        unkeyed("A", "B", "C").execute(run_of())
    context = run_of()
    with pytest.raises(
        AirflowFailException, match=r"has sent POST .*'A'.*'A2'.* may be the same, edited"
    ):
        unkeyed("A2", "B", "C").execute(context)
    assert "return_value" not in context["ti"].pushed
    assert len(service.requests) == 3

    for references, key, outcomes in (
        (["B"], None, ["created"]),
        (["A", "B", "C2"], None, ["existing", "existing", "created"]),  # nothing came of C
        (["B", "A2"], "another", ["existing", "created"]),
    ):
        made = unkeyed(*references, key=key).execute(run_of())
        assert [outcome["outcome"] for outcome in made] == outcomes
    assert [job["customerReference"] for job in service.jobs] == ["A", "B", "C2", "A2"]


@pytest.mark.parametrize(
    ("way", "made"), [("capitals", (1, 0)), ("account", (2, 0)), ("host", (1, 1))]
)
def test_a_key_is_written_once_for_each_service(service, connect, monkeypatch, way, made):
    job().execute(run_of("first"))
    connection = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
    with FakeFieldService(token=service.settings.token) as other:
        change = {
            "capitals": {"host": service.base_url.replace("http", "HTTP") + "/"},
            "account": {"login": "north"},
            "host": {"host": other.base_url},
        }[way]
        monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps({**connection, **change}))
        if way != "capitals":
            with pytest.raises(AirflowFailException, match="add-service") as refused:
                job().execute(run_of("second"))
            (add,) = re.findall(
                "python -m fsm_provider (ledger add-service .*)", str(refused.value)
            )
            assert main(shlex.split(add)) == 0
        for run_id in ("second", "third"):
            its_id = job().execute(run_of(run_id))["id"]
            assert its_id == (other if way == "host" else service).jobs[-1]["id"]

        assert (len(service.jobs), len(other.jobs)) == made


def test_a_run_does_not_change_over_to_another_ledger(service, connect, connection_extra):
    in_airflow, in_database = MemoryStateStore(), MemoryStateStore()
    job(once_per="run").execute(run_of(store=in_database))
    del connection_extra["state_conn_id"]
    connect(service)
    job(once_per="run").execute(run_of("other", store=in_airflow))
    with pytest.raises(
        AirflowFailException, match=r"state_conn_id: .* recorded in another database"
    ):
        job(once_per="run").execute(run_of(store=in_database))
    connect(service, state_conn_id="ledger")
    with pytest.raises(AirflowFailException, match=r"state_conn_id: .* recorded in Airflow itself"):
        job().execute(run_of("other", store=in_airflow))
    assert len(service.jobs) == 2


@pytest.mark.parametrize(
    ("once_per", "store", "is_cleared"),
    [("key", MemoryStateStore(), False), ("run", None, False), ("run", MemoryStateStore(), True)],
)
def test_without_a_database_one_message_says_how_to_add_it(
    service, connect, connection_extra, monkeypatch, once_per, store, is_cleared
):
    """For each key; before Airflow 3.3, where tasks have no store; and if a success clears the
    store.
    """
    monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", str(is_cleared))
    del connection_extra["state_conn_id"]
    connect(service)
    with pytest.raises(AirflowFailException, match="state_conn_id: is missing: ") as caught:
        job(once_per=once_per).execute(context_for(store))
    assert "airflow connections add fsm_ledger --conn-type sqlite --conn-host /" in str(
        caught.value
    )
    assert service.requests == []


def test_tables_are_made_once_by_many_at_the_same_moment(database):
    barrier = threading.Barrier(6)

    def make(_):
        barrier.wait()
        state_database.open_database("ledger").dispose()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(make, range(6)))
    assert database.rows("fsm_tasks") == []


def test_who_may_not_create_tables_is_told_so(database, database_server, service):
    if database_server[0] in ("sqlite", "mariadb"):
        pytest.skip("the users of the other databases may create tables")
    owner = database.connection["login"]
    admin = sqlalchemy.create_engine(database.url.replace(f"{owner}@", "postgres@"))
    with admin.begin() as connection:
        connection.execute(sqlalchemy.text(f"ALTER SCHEMA {owner} OWNER TO postgres"))

    with pytest.raises(sqlalchemy.exc.ProgrammingError, match="denied") as caught:
        job().execute(run_of())
    assert "state_conn_id: connection 'ledger', " in str(caught.value)
    assert service.requests == []


def test_nothing_is_sent_while_the_database_is_away(service, monkeypatch, database):
    monkeypatch.setattr(state_database, "MAX_REPEATS", 0)
    connection = {**database.connection, "port": 1, "password": "canary"}
    if connection["conn_type"] == "sqlite":
        connection = {"conn_type": "sqlite", "host": "/nowhere/ledger.db"}
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(connection))

    with pytest.raises(sqlalchemy.exc.OperationalError) as caught:
        jobs("PO-1").execute(run_of())

    assert "state_conn_id: connection 'ledger', " in str(caught.value)
    assert "canary" not in str(caught.value)
    assert service.requests == []


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({"conn_type": "http", "host": "x"}, "is of type http, not of a SQL database"),
        ({"conn_type": "sqlite", "host": "a.db"}, "its host should be the absolute path of a file"),
        ({"conn_type": "sqlite"}, "its host should be the absolute path of a file"),
        (
            {"conn_type": "postgres", "host": "x", "extra": {"sslmode": "require"}},
            "sslmode: would be ignored here",
        ),
        (
            {
                "conn_type": "postgres",
                "host": "x",
                "extra": {"sqlalchemy_scheme": "postgresql+nothing"},
            },
            ".*install apache-airflow-providers-postgres or",
        ),
        (
            {"conn_type": "nosuch", "host": "x"},
            ".*nosuch.*install apache-airflow-providers-postgres or",
        ),
    ],
    ids=["no database", "a relative file", "no file", "an option", "no driver", "no provider"],
)
def test_a_connection_that_is_no_lasting_database_is_refused(
    monkeypatch, service, connection, message
):
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(connection))

    with pytest.raises(
        AirflowFailException, match=rf"^state_conn_id: connection 'ledger'\S* {message}"
    ):
        job().execute(run_of())
    assert service.requests == []


def test_a_database_whose_connection_is_not_defined_is_named_with_the_setting(monkeypatch, service):
    monkeypatch.delenv("AIRFLOW_CONN_LEDGER")

    with pytest.raises(AirflowNotFoundException) as missing:
        job().execute(run_of())

    assert re.match(r"state_conn_id: .*\bledger\b.* defined", str(missing.value))
    assert missing.value.__suppress_context__
    assert service.requests == []
