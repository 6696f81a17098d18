"""A ledger in a database, shared by tasks, runs and Airflows: SQLite, PostgreSQL, MariaDB."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import sqlalchemy
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowNotFoundException

from fsm_provider.api.errors import (
    FsmBadRequestError,
    FsmInputError,
    FsmRateLimitedError,
    FsmUncertainWriteError,
)
from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.state import sql_entries, sql_tables
from fsm_provider.state.entries import SupersededError
from fsm_provider.state.task import Task
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.writes.ledger import Ledger
from fsm_provider.writes.write import Write
from tests.capabilities import THREADS
from tests.unit.state_store import MemoryStateStore, context_for

WRITE = Write("POST", "/properties/7/jobs", {"notes": "a"}, {"propertyID": 7}, "PO-1")
ODD_KEYS = ["PO-1", "po-1", "PO-1\N{NO-BREAK SPACE}x", "\U0001f690", "a\0b", "k" * 5000, "Straße"]


@pytest.fixture(autouse=True)
def connected(service, connect, database):
    connect(service, max_retries=0)


def run_of(run_id, *, map_index=-1, cleared=0, **more):
    """Make the context of an attempt; later calls make later attempts."""
    context = context_for(MemoryStateStore(), run_id=run_id, map_index=map_index, cleared=cleared, **more)
    return {**context, "dag_run": SimpleNamespace(id=int(context["ti"].id))}


def job(key="PO-1", **more):
    return FsmCreateJobOperator(
        task_id="task", property_id=7, job={"customerReference": key}, key=key, **{"once_per": "key", **more}
    )


def jobs(*keys, **more):
    payloads = [{"property_id": 7, "job": {"customerReference": key}, "key": key} for key in keys]
    return FsmCreateJobsOperator(task_id="task", jobs=payloads, **{"once_per": "key", **more})


def request(key="PO-1", path="/properties/7/jobs", **more):
    return FsmRequestOperator(
        task_id="task",
        method="POST",
        path=path,
        json={"customerReference": key},
        key=key,
        **{"once_per": "key", **more},
    )


class Entries:
    """Entries of attempts of tasks, without operators."""

    def __init__(self, database):
        self.engine = sql_tables.engine_for("ledger")
        sql_tables.check_tables(self.engine)

    def ledger(self, attempt, run_id="run", *, max_flight=60.0, load=(WRITE,), **options):
        task = Task("dag", run_id, "task", -1)
        entries = sql_entries.SqlEntries(
            self.engine, base_url="http://x", scope="", task=task, attempt=attempt
        )
        ledger = Ledger(entries, task=task, once_per_key=True, max_flight=max_flight, **options)
        ledger.load(load)
        return ledger


@pytest.fixture
def entries(database):
    made = Entries(database)
    yield made
    made.engine.dispose()


@pytest.mark.parametrize("make", [job, request])
def test_another_run_gets_the_result_and_sends_nothing(service, make, caplog):
    caplog.set_level("INFO")
    first = make().execute(run_of("first"))

    second = make().execute(run_of("second"))

    assert len(service.jobs) == 1
    assert second["id"] == first["id"] == service.jobs[0]["id"]
    assert "was sent by task task of run first of DAG dag" in caplog.text


def test_another_run_gets_outcomes_that_name_who_created_each_job(service):
    first = jobs("PO-1", "PO-2").execute(run_of("first"))

    second = jobs("PO-2", "PO-3").execute(run_of("second"))

    assert [one["outcome"] for one in second] == ["existing", "created"]
    assert second[0]["jobID"] == first[1]["jobID"]
    assert second[0]["by"] == {"dag_id": "dag", "run_id": "first", "task_id": "task", "map_index": -1}
    assert second[1]["by"] is None
    assert sorted(made["customerReference"] for made in service.jobs) == ["PO-1", "PO-2", "PO-3"]


def test_both_operators_find_what_the_other_has_created(service):
    (first,) = jobs("PO-1").execute(run_of("1"))
    alone = job("PO-2").execute(run_of("2"))

    kept = {"id": first["jobID"], "links": {"self": first["link"]}}
    assert job("PO-1").execute(run_of("3")) == kept
    (found,) = jobs("PO-2").execute(run_of("4"))

    assert (found["outcome"], found["jobID"], found["link"]) == (
        "existing",
        alone["id"],
        alone["links"]["self"],
    )
    assert len(service.jobs) == 2


@pytest.mark.parametrize("key", ["None", "nan", {"id": 1}])
def test_a_key_whose_template_found_nothing_is_refused(service, key):
    for make in (job, request):
        operator = make("{{ key }}")
        operator.key = key
        with pytest.raises(AirflowFailException, match="key: "):
            operator.execute(run_of("run"))
    with pytest.raises((FsmInputError, AirflowFailException), match=r"jobs\[0\]\.key: "):
        jobs(key).execute(run_of("run"))
    assert service.requests == []


def test_a_number_is_the_same_key_as_its_text(service):
    first = request("7").execute(run_of("first"))
    operator = request("{{ key }}")
    operator.key, operator.json = 7, {"customerReference": "7"}

    assert operator.execute(run_of("second")) == first
    assert len(service.jobs) == 1


def test_a_key_of_another_operation_is_refused(service):
    job().execute(run_of("first"))

    with pytest.raises(
        AirflowFailException, match=r"key: 'PO-1' is that of POST /properties/7/jobs .*run first"
    ):
        request(path="/properties/7/notes").execute(run_of("second"))
    assert len(service.requests) == 1


def test_the_key_of_a_request_is_refused_in_a_list_of_jobs(service):
    request().execute(run_of("first"))

    for options in ({}, {"existing_jobs": {"PO-1": 5}}):
        context = run_of("second")
        with pytest.raises(AirflowFailException, match="and cannot be that of"):
            jobs("PO-1", **options).execute(context)
        assert context["ti"].pushed["return_value"][0]["outcome"] == "unknown"
    assert len(service.jobs) == 1


def test_a_key_with_other_content_is_not_sent_and_a_warning_says_so(service, caplog):
    first = job().execute(run_of("first"))
    other = FsmCreateJobOperator(
        task_id="task", property_id=8, job={"notes": "another"}, key="PO-1", once_per="key"
    )

    assert other.execute(run_of("second"))["id"] == first["id"]
    assert "was sent with other content under key 'PO-1'; the change is not sent" in caplog.text


def test_what_was_refused_with_409_is_held_for_a_person(service):
    service.fail("POST", "/properties/*/jobs", faults.Status(409))
    for run_id in ("first", "second"):
        context = run_of(run_id)
        with pytest.raises(AirflowFailException, match="returned HTTP 409; what was to be written may exist"):
            jobs("PO-1").execute(context)
        assert context["ti"].pushed["return_value"][0]["outcome"] == "rejected"
    with pytest.raises(AirflowFailException, match="returned HTTP 409"):
        job().execute(run_of("third"))
    assert len(service.requests) == 1

    jobs("PO-1", if_uncertain="create").execute(run_of("fourth"))
    assert len(service.jobs) == 1


def test_keys_differ_as_texts_do(service, database):
    jobs = [{"property_id": 7, "job": {}, "key": key} for key in ODD_KEYS]
    operator = FsmCreateJobsOperator(task_id="task", jobs=jobs, once_per="key", max_concurrency=1)

    for run_id, outcome in (("first", "created"), ("second", "existing")):
        outcomes = operator.execute(run_of(run_id))
        assert [one["outcome"] for one in outcomes] == [outcome] * len(ODD_KEYS)
    assert (
        len(service.jobs) == len(database.rows()) == len({one["jobID"] for one in outcomes}) == len(ODD_KEYS)
    )


@THREADS.needed
def test_runs_at_the_same_moment_create_each_job_once(service, database):
    service.settings.latency = 0.01
    keys = [f"PO-{number}" for number in range(40)]
    contexts = [run_of(f"run-{number}") for number in range(4)]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda context: jobs(*keys).execute(context), contexts))

    assert sorted(made["customerReference"] for made in service.jobs) == sorted(keys)
    ids = {made["customerReference"]: made["id"] for made in service.jobs}
    for outcomes in results:
        assert {one["outcome"] for one in outcomes} <= {"created", "existing"}
        assert [one["jobID"] for one in outcomes] == [ids[key] for key in keys]
    created = [one for outcomes in results for one in outcomes if one["outcome"] == "created"]
    assert len(created) == len(keys)
    assert {row.state for row in database.rows()} == {"done"}


@THREADS.needed
def test_what_is_under_way_in_another_run_is_waited_for(service, caplog):
    caplog.set_level("INFO")
    arrived, go_on = threading.Event(), threading.Event()

    def hold():
        arrived.set()
        go_on.wait(20)

    service.fail("POST", "/properties/*/jobs", faults.Before(hold))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: job().execute(run_of("first")))
        assert arrived.wait(10)
        second = pool.submit(lambda: jobs("PO-1").execute(run_of("second")))
        service.wait_for(lambda: "Waiting for another task" in caplog.text, 10)
        assert "task task of run first of DAG dag may be sending it" in caplog.text
        go_on.set()

    (outcome,) = second.result()
    assert (outcome["outcome"], outcome["jobID"]) == ("existing", first.result()["id"])
    assert len(service.jobs) == 1


@THREADS.needed
def test_the_same_run_of_another_airflow_is_another_task(service, monkeypatch):
    """Both have a name; otherwise the second would be taken for a later attempt of the first."""
    arrived = threading.Event()

    def hold():
        arrived.set()
        time.sleep(1)

    service.fail("POST", "/properties/*/jobs", faults.Before(hold))
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setenv("AIRFLOW__FSM__AIRFLOW_NAME", "north")
        north = pool.submit(lambda: jobs("PO-1", "PO-2", max_concurrency=1).execute(run_of("monday")))
        assert arrived.wait(10)
        monkeypatch.setenv("AIRFLOW__FSM__AIRFLOW_NAME", "south")
        south = jobs("PO-1", "PO-2").execute(run_of("monday"))

    both = [*north.result(), *south]
    assert sorted(made["customerReference"] for made in service.jobs) == ["PO-1", "PO-2"]
    assert sorted(one["outcome"] for one in both) == ["created", "created", "existing", "existing"]
    assert south[0]["by"]["airflow"] == "north"


def test_what_another_run_is_sending_is_no_existing_job(service, entries):
    def send():
        context = run_of("second")
        with pytest.raises(
            AirflowFailException, match=r"existing_jobs\.PO-1: may not be created yet: .*run first"
        ):
            jobs("PO-1", existing_jobs={"PO-1": 4711}).execute(context)
        return {"id": 1}

    operator = job()
    operator._create = lambda request, hook, headers: send()
    operator.execute(run_of("first"))

    assert jobs("PO-1").execute(run_of("third"))[0]["jobID"] == 1


@pytest.mark.parametrize(
    "refusal", [FsmBadRequestError(400, "POST", "/x"), FsmRateLimitedError(429, "POST", "/x")]
)
def test_a_refusal_does_not_hide_what_another_run_has_made_meanwhile(entries, refusal):
    def send():
        other = entries.ledger("b1", "other", repeat_uncertain=True)
        other.max_flight = 0.0
        with other:
            other.run_once(WRITE, lambda: {"id": 2})
        raise refusal

    assert entries.ledger("a1", max_flight=0.0).run_once(WRITE, send) == {"id": 2}


def test_the_wait_for_another_task_has_an_end_even_if_its_clock_is_ahead(entries, database):
    with pytest.raises(KeyboardInterrupt):
        entries.ledger("a1", max_flight=0.0).run_once(WRITE, interrupted)
    (row,) = database.rows()
    entry = json.loads(row.entry)
    entry["sent"][2] = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    with database.engine.begin() as connection:
        connection.execute(sql_tables.LEDGER.update().values(entry=json.dumps(entry)))

    ledger = entries.ledger("b1", "other")
    ledger.max_flight = 1.0
    with pytest.raises(FsmUncertainWriteError, match="has recorded no response"):
        ledger.run_once(WRITE, lambda: pytest.fail("it was sent"))


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", '"text"', "{}", '{"key": "PO-2"}', '{"key": {}}', '{"key": "PO-1", "sent": []}']
)
def test_an_entry_that_was_edited_is_named_and_nothing_is_sent(service, database, text):
    job().execute(run_of("first"))
    with database.engine.begin() as connection:
        connection.execute(sql_tables.LEDGER.update().values(entry=text))

    context = run_of("second")
    with pytest.raises(AirflowFailException, match="the entry of 'PO-1' was changed and cannot be read"):
        jobs("PO-1").execute(context)
    assert context["ti"].pushed["return_value"][0]["outcome"] == "unknown"
    assert len(service.jobs) == 1


def test_an_entry_that_was_edited_after_a_task_had_read_it_is_named(entries, database):
    ledger = entries.ledger("b1", "second")
    with entries.ledger("a1", "first") as first:
        first.run_once(WRITE, lambda: {"id": 1})
    with database.engine.begin() as connection:
        connection.execute(sql_tables.LEDGER.update().values(entry="no JSON"))

    with pytest.raises(FsmInputError, match="the entry of 'PO-1' was changed and cannot be read"):
        ledger.run_once(WRITE, lambda: pytest.fail("it was sent"))


def test_outcomes_and_claims_are_stored_together_in_a_few_statements(entries, database):
    def write(number):
        return Write("POST", f"/properties/{number}/jobs", {}, {"propertyID": number}, f"PO-{number}")

    ledger = entries.ledger("a1")
    statements = []
    sqlalchemy.event.listen(entries.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    for first in range(0, 240, 120):
        for number in range(first, first + 120):
            ledger.entries.put(write(number).key, ledger._intent(write(number)))
        for number in range(first - 120, first):
            if number >= 0:
                ledger.entries.put(
                    write(number).key, {**ledger._intent(write(number)), "result": {"id": number}}
                )
        statements.clear()
        ledger.store()

    assert [statement.split()[0] for statement in statements] == ["UPDATE"] * 4 + ["INSERT"]
    found = {row.key: (row.state, json.loads(row.entry).get("result")) for row in database.rows()}
    assert found == {
        f"PO-{number}": ("done", {"id": number}) if number < 120 else ("sent", None) for number in range(240)
    }


def test_a_row_names_the_task_that_has_written_its_entry(entries, database):
    with pytest.raises(KeyboardInterrupt):
        entries.ledger("a1", max_flight=0.0).run_once(WRITE, interrupted)
    ledger = entries.ledger("b1", "other", repeat_uncertain=True)
    ledger.max_flight = 0.0

    def refused():
        assert run_ids() == ["other"]
        raise FsmBadRequestError(400, "POST", "/x")

    def run_ids():
        return [row.run_id for row in database.rows()]

    for _ in range(2):
        with pytest.raises(FsmUncertainWriteError):
            ledger.run_once(WRITE, refused)
        assert run_ids() == ["run"]
    ledger.run_once(WRITE, lambda: {"id": 1})
    assert run_ids() == ["other"]


def test_another_tasks_row_is_not_deleted_by_a_claim_that_was_given_up(entries, monkeypatch):
    first = entries.ledger("a1")
    with entries.ledger("b1", "other") as other:
        other.run_once(WRITE, lambda: {"id": 2})
    monkeypatch.setattr(sql_entries, "RETRY_SECONDS", 0)
    first.load([WRITE])
    first.entries.put(WRITE.key, None)

    first.store()

    assert entries.ledger("c1", "third").get(WRITE).result == {"id": 2}


def test_what_another_run_did_not_record_is_uncertain_and_names_it(service, monkeypatch):
    monkeypatch.setattr("fsm_provider.writes.ledgers.MIN_FLIGHT", 0)
    monkeypatch.setattr("fsm_provider.writes.ledgers.FLIGHT_TIMEOUTS", 0)
    service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=True))
    with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
        job().execute(run_of("first"))

    with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
        job().execute(run_of("second"))
    context = run_of("third")
    with pytest.raises(AirflowFailException):
        jobs("PO-1", "PO-2").execute(context)

    outcomes = context["ti"].pushed["return_value"]
    assert [one["outcome"] for one in outcomes] == ["uncertain", "created"]
    assert outcomes[0]["by"]["run_id"] == "first"
    assert len(service.jobs) == 2


def test_what_may_be_under_way_is_uncertain_in_time(entries):
    with pytest.raises(KeyboardInterrupt):
        entries.ledger("a1", max_flight=0.0).run_once(WRITE, interrupted)

    ledger = entries.ledger("b1", "other")
    assert ledger.get(WRITE).under_way
    ledger.max_flight = 0.0
    with pytest.raises(FsmUncertainWriteError, match="of run run of DAG dag has recorded no response"):
        ledger.run_once(WRITE, interrupted)


def test_a_request_has_the_time_that_its_sender_gives_it(entries, caplog):
    caplog.set_level("INFO")
    with pytest.raises(KeyboardInterrupt):
        entries.ledger("a1", max_flight=2.5).run_once(WRITE, interrupted)

    ledger = entries.ledger("b1", "other", max_flight=0.0, repeat_uncertain=True)
    assert ledger.get(WRITE).under_way
    began = time.monotonic()
    assert ledger.run_once(WRITE, lambda: {"id": 1}) == {"id": 1}

    assert time.monotonic() - began > 1
    assert "Waiting for another task" in caplog.text


@pytest.mark.parametrize("found", [{"id": 5}, None])
def test_what_was_sent_before_its_key_was_corrected_is_waited_for_and_looked_up(entries, found):
    with pytest.raises(KeyboardInterrupt):
        entries.ledger("a1", max_flight=1.5).run_once(WRITE, interrupted)
    corrected = replace(WRITE, given_key="PO-1b")
    sent = []

    def send():
        sent.append(corrected)
        return {"id": 6}

    ledger, began = entries.ledger("a2", max_flight=0.0, load=[corrected]), time.monotonic()
    ledger.expect([corrected])
    result = ledger.run_once(corrected, send, find=lambda: found)

    assert result == (found or {"id": 6})
    assert (len(sent), time.monotonic() - began > 1) == (0 if found else 1, True)


def test_what_may_be_anothers_job_is_not_found(entries, caplog):
    with pytest.raises(KeyboardInterrupt):
        entries.ledger("a1").run_once(WRITE, interrupted)
    other, lost = replace(WRITE, given_key="PO-2"), FsmUncertainWriteError("POST", "/x", "lost", "now", {})

    def send():
        raise lost

    with pytest.raises(FsmUncertainWriteError, match="lost"):
        entries.ledger("b1", "other", load=[other]).run_once(other, send, find=lambda: {"id": 5})
    assert (
        "job 5 may be what is being sent with key 'PO-1', by task task of run run of DAG dag" in caplog.text
    )


def interrupted():
    raise KeyboardInterrupt


def test_a_replaced_attempt_claims_nothing_and_records_what_it_has_sent(entries):
    first = entries.ledger("a1")
    other = Write("POST", "/properties/8/jobs", {}, {}, "PO-2")

    def send():
        entries.ledger("a2")
        return {"id": 1}

    assert first.run_once(WRITE, send) == {"id": 1}
    with pytest.raises(SupersededError):
        first.run_once(other, lambda: pytest.fail("it was sent"))
    with pytest.raises(SupersededError):
        first.check_current()
    with pytest.raises(SupersededError):
        entries.ledger("a1")
    assert entries.ledger("a3").get(WRITE).result == {"id": 1}
    assert entries.ledger("a3").get(other) is None


def test_an_entry_that_was_deleted_and_made_again_is_not_taken_for_the_old_one(entries, database):
    with pytest.raises(KeyboardInterrupt):
        entries.ledger("a1", max_flight=0.0).run_once(WRITE, interrupted)
    waiting = entries.ledger("b1", "other", repeat_uncertain=True)
    waiting.max_flight = 0.0
    database.execute("DELETE FROM fsm_ledger")
    with entries.ledger("c1", "third") as ledger:
        ledger.record(WRITE, {"id": 1})

    assert waiting.run_once(WRITE, lambda: pytest.fail("it was sent")) == {"id": 1}


@pytest.mark.parametrize("cleared", [0, 1])
def test_a_row_inserted_before_mapped_tasks_creates_one_job(service, cleared):
    before, after = ["A", "B"], ["N", "A", "B"]

    def run(keys, cleared):
        for index, key in enumerate(keys):
            job(key, once_per="run").execute(run_of("run", map_index=index, cleared=cleared))

    run(before, 0)
    run(after, cleared) if cleared else None
    run(after if cleared else before, cleared)

    assert [made["customerReference"] for made in service.jobs] == ["A", "B", *(["N"] if cleared else [])]


def test_without_keys_a_mapped_row_that_may_be_a_changed_one_is_refused(service):
    def create(reference, **more):
        FsmCreateJobOperator(task_id="task", property_id=7, job={"customerReference": reference}).execute(
            run_of("run", map_index=0, **more)
        )

    create("A")
    with pytest.raises(AirflowFailException, match="is new, and may be the same, changed"):
        create("B", cleared=1)
    assert len(service.jobs) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: FsmCreateJobOperator(task_id="task", property_id=7, job={"notes": "a"}),
        lambda: FsmCreateJobsOperator(task_id="task", jobs=[{"property_id": 7, "job": {"notes": "a"}}]),
    ],
)
def test_equal_mapped_tasks_without_keys_are_refused(service, make):
    def create(map_index, cleared=0):
        make().execute(run_of("run", map_index=map_index, cleared=cleared))

    create(0)
    with pytest.raises(AirflowFailException, match="is equal to what task task"):
        create(1)
    create(1, cleared=1)  # after a clear, the row may have moved
    assert len(service.jobs) == 1


@pytest.mark.parametrize("other", [{"map_index": 1}, {"airflow": "south"}])
def test_another_job_with_the_key_of_one_of_this_run_is_refused(service, monkeypatch, other):
    def create(reference, airflow="north", **more):
        monkeypatch.setenv("AIRFLOW__FSM__AIRFLOW_NAME", airflow)
        operator = FsmCreateJobOperator(
            task_id="task", property_id=7, job={"customerReference": reference}, key="row 1"
        )
        return operator.execute(run_of("run", **{"map_index": 0, **more}))["id"]

    made = create("A")
    with pytest.raises(
        AirflowFailException, match=r"has the key of POST .*'A'.*: give each a key of its own"
    ):
        create("B", **other)
    assert create("A", **other) == made
    assert len(service.jobs) == 1


@pytest.mark.parametrize(("before", "after"), [("run", "key"), ("key", "run")])
def test_once_per_does_not_change_within_a_run(service, before, after):
    job(once_per=before).execute(run_of("run"))

    with pytest.raises(AirflowFailException, match=f"once_per: is '{after}' now"):
        job(once_per=after).execute(run_of("run", cleared=1, try_number=2))
    assert len(service.jobs) == 1


def test_a_run_that_is_deleted_and_triggered_again_creates_nothing(service):
    first = job(once_per="run").execute(run_of("run"))

    assert job(once_per="run").execute(run_of("run"))["id"] == first["id"]
    job(once_per="run").execute(run_of("another"))
    assert len(service.jobs) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: job(key=None), "key: is missing; once_per='key' needs it"),
        (lambda: request(key=None), "key: is missing; once_per='key' needs it"),
        (lambda: job(if_already_done="create"), "if_already_done: should be 'reuse' with once_per='key'"),
        (lambda: job(once_per="day"), "once_per: 'day' is none of run, key"),
    ],
)
def test_what_contradicts_a_key_is_refused_when_the_dag_is_parsed(make, message):
    with pytest.raises(FsmInputError, match=message):
        make()


def test_each_missing_key_is_named_before_anything_is_sent(service):
    with pytest.raises(AirflowFailException, match=r"jobs\[0\]\.key, jobs\[1\]\.key: is missing"):
        FsmCreateJobsOperator(
            task_id="task",
            jobs=[{"property_id": number, "job": {}} for number in (1, 2)],
            once_per="key",
        ).execute(run_of("run"))
    assert service.requests == []


def test_each_way_to_write_the_base_url_is_the_same_service(service, monkeypatch):
    job().execute(run_of("1"))
    connection = json.loads(service.connection_json())
    extra = connection["extra"] if isinstance(connection["extra"], dict) else json.loads(connection["extra"])
    connection["extra"] = {**extra, "state_conn_id": "ledger"}
    connection["host"] = service.base_url.replace("http", "HTTP") + "/"
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps(connection))
    job().execute(run_of("2"))
    assert len(service.jobs) == 1

    with FakeFieldService() as another:
        connection["host"], connection["password"] = another.base_url, another.settings.token
        monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps(connection))
        job().execute(run_of("3"))
        assert len(another.jobs) == 1


@pytest.mark.parametrize("once_per", ["run", "key"])
def test_a_run_whose_ledger_is_in_airflow_does_not_change_over(
    once_per, service, connect, connection_extra, monkeypatch
):
    monkeypatch.delitem(connection_extra, "state_conn_id")
    connect(service)
    store = MemoryStateStore()
    job(once_per="run").execute(context_for(store))
    connect(service, state_conn_id="ledger")

    with pytest.raises(AirflowFailException, match="state_conn_id: is new: earlier attempts of this task"):
        job(once_per=once_per).execute(context_for(store))
    assert len(service.jobs) == 1


def test_a_key_needs_a_database(service, connect, connection_extra):
    connect(service, state_conn_id=None)

    with pytest.raises(AirflowFailException, match="once_per: 'key' needs a ledger in a database"):
        job().execute(run_of("run"))
    assert service.requests == []


def test_tables_are_made_once_by_many_at_the_same_moment(database):
    barrier = threading.Barrier(6)

    def make(_):
        engine = sql_tables.engine_for("ledger")
        barrier.wait()
        try:
            sql_tables.check_tables(engine)
        finally:
            engine.dispose()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(make, range(6)))
    assert [tuple(row) for row in database.rows("fsm_ledger_schema")] == [(sql_tables.SCHEMA_VERSION,)]


def test_the_statements_make_the_tables(database, service):
    engine = sql_tables.engine_for("ledger")
    assert not sqlalchemy.inspect(engine).has_table("fsm_ledger")
    database.execute(*[one for one in sql_tables.statements(engine).split(";") if one.strip()])
    engine.dispose()

    job().execute(run_of("run"))

    assert len(database.rows()) == 1


def test_tables_of_a_newer_version_are_left_alone(database, service):
    job().execute(run_of("run"))
    database.execute("UPDATE fsm_ledger_schema SET version = 99")

    with pytest.raises(AirflowFailException, match="the ledger's tables are of version 99"):
        job().execute(run_of("another"))
    assert len(service.requests) == 1


def test_who_may_not_create_tables_is_given_the_statements(database, database_server, service):
    if database_server[0] != "postgresql":
        pytest.skip("the users of the other databases may create tables")
    owner = database.connection["login"]
    admin = sqlalchemy.create_engine(database.url.replace(f"{owner}@", "postgres@"))
    with admin.begin() as connection:
        connection.execute(sqlalchemy.text(f"ALTER SCHEMA {owner} OWNER TO postgres"))
    admin.dispose()

    with pytest.raises(AirflowFailException) as caught:
        job().execute(run_of("run"))

    assert "CREATE TABLE fsm_ledger " in str(caught.value)
    assert "INSERT INTO fsm_ledger_schema (version) VALUES (1);" in str(caught.value)
    assert service.requests == []


def test_nothing_is_sent_while_the_database_is_away(service, monkeypatch, database):
    monkeypatch.setattr(sql_entries, "RETRY_SECONDS", 0)
    connection = {**database.connection, "port": 1, "password": "canary"}
    if connection["conn_type"] == "sqlite":
        connection = {"conn_type": "sqlite", "host": "/nowhere/canary.db"}
    else:
        connection["host"] = "127.0.0.1"
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(connection))
    context = run_of("run")

    with pytest.raises(Exception) as caught:  # noqa: PT011 - each database has its own
        jobs("PO-1").execute(context)

    assert "canary" not in str(caught.value)
    assert not isinstance(caught.value, AirflowFailException)
    (outcome,) = context["ti"].pushed["return_value"]
    assert outcome["outcome"] == "unknown"
    assert service.requests == []


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({"conn_type": "http", "host": "x"}, "connection 'ledger' is of type http, not of a SQL database"),
        ({"conn_type": "sqlite", "host": "a.db"}, "should be the absolute path of a file"),
        (
            {"conn_type": "postgres", "host": "x", "extra": {"sslmode": "require"}},
            "'ledger': sslmode: would be ignored here",
        ),
        ({"conn_type": "sqlite"}, "should be the absolute path of a file"),
    ],
)
def test_a_connection_that_is_no_lasting_database_is_refused(monkeypatch, service, connection, message):
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(connection))

    with pytest.raises(AirflowFailException, match=message):
        job().execute(run_of("run"))
    assert service.requests == []


def test_a_database_whose_connection_is_not_defined_is_named_with_the_setting(monkeypatch, service):
    monkeypatch.delenv("AIRFLOW_CONN_LEDGER")
    context = run_of("run")

    with pytest.raises(AirflowNotFoundException) as missing:
        job().execute(context)

    assert re.match(r"state_conn_id: .*\bledger\b.* defined", str(missing.value))
    assert missing.value.__suppress_context__
    assert service.requests == []


def test_personal_data_of_a_job_is_not_stored(service, database):
    FsmCreateJobOperator(
        task_id="task", property_id=7, job={"notes": "canary: 07700 900123"}, key="PO-1", once_per="key"
    ).execute(run_of("run"))

    assert "canary" not in repr([tuple(row) for row in database.rows()])
