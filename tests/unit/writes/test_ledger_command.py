"""The commands for a ledger in a database: what they show, what they change, and what the next task does."""

import csv
import io
import json
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
import sqlalchemy
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.state.sql_tables import ATTEMPTS, HISTORY, LEDGER
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.writes.ledger_command import main
from fsm_provider.writes.ledger_table import JOB
from tests.capabilities import IS_AIRFLOW_3, THREADS
from tests.unit.conftest import TOKEN
from tests.unit.state_store import context_for

IN_DATABASE = pytest.mark.parametrize("store", ["in a database"], indirect=True)
pytestmark = IN_DATABASE
WHY = ("--why", "looked it up", "--by", "jo")


class Killed(BaseException):
    """A kill: nobody catches it."""


def create_job(key="PM-7", **options):
    job = {"customerReference": "PM-7"}
    return FsmCreateJobOperator(task_id="create", property_id=7, job=job, key=key, **options)


def create_jobs(key="PM-7", **options):
    jobs = [{"property_id": 7, "job": {"customerReference": "PM-7"}, "key": key}]
    return FsmCreateJobsOperator(task_id="create", jobs=jobs, **options)


def send_request(key="PM-7", **options):
    given = {name: value.replace("create", "send") for name, value in options.items()}
    return FsmRequestOperator(
        task_id="create", method="POST", path="/properties/7/jobs", json={"notes": "x"}, key=key, **given
    )


JOB_OPERATORS = pytest.mark.parametrize("write", [create_job, create_jobs])
OPERATORS = pytest.mark.parametrize("write", [create_job, create_jobs, send_request])


@pytest.fixture(autouse=True)
def connected(service, connect, store):
    connect(service, max_retries=0)


@pytest.fixture
def run(capsys):
    """Runs a command; returns its exit code, output and error."""

    import airflow.models  # noqa: F401 # logs to the standard output at its import

    def run_command(*arguments):
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        assert TOKEN not in captured.out + captured.err
        # Airflow 2 logs why it does not find a connection.
        assert "\n" not in captured.err.strip() or not IS_AIRFLOW_3
        return code, captured.out, captured.err

    return run_command


def leave_uncertain(service, store, operator, **context):
    service.fail("POST", "/properties/7/jobs", faults.Reset(after_handling=True))
    with pytest.raises(AirflowFailException, match=r"uncertain|may or may not"):
        operator.execute(context_for(store, **context))


def leave_sent(service, store, operator, **context):
    """Have an attempt killed while its request is under way."""

    def kill():
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fsm_provider.api.client.FsmClient.send_job", lambda *_: kill())
        with pytest.raises(Killed):
            operator.execute(context_for(store, **context))


def rows(store, table=LEDGER):
    with store.engine.connect() as connection:
        return connection.execute(sqlalchemy.select(table)).all()


def make_older(store, **age):
    """Make all that is stored older than it is."""
    with store.engine.begin() as connection:
        for table, column in ((LEDGER, "updated_at"), (ATTEMPTS, "stored_at")):
            connection.execute(
                table.update().values({column: datetime.now(UTC).replace(tzinfo=None) - timedelta(**age)})
            )
        for row in connection.execute(sqlalchemy.select(LEDGER)).all():
            entry = json.loads(row.entry)
            entry["sent"][2] = (datetime.now(UTC) - timedelta(**age)).isoformat(timespec="seconds")
            connection.execute(
                LEDGER.update().where(LEDGER.c.key_digest == row.key_digest).values(entry=json.dumps(entry))
            )


@pytest.mark.parametrize("once_per", ["run", "key"])
@JOB_OPERATORS
def test_a_job_that_was_found_is_returned_and_nothing_is_sent(service, store, run, write, once_per):
    leave_uncertain(service, store, write(once_per=once_per))
    requests = len(service.requests)

    code, output, _ = run("settle", "PM-7", "--job-id", "4711", *WHY)
    result = write(once_per=once_per).execute(context_for(store, cleared=1))

    assert (code, len(service.requests)) == (0, requests)
    assert "'PM-7'" in output
    assert "job 4711 is recorded" in output
    if write is create_jobs:
        assert (result[0]["outcome"], result[0]["jobID"]) == ("existing", 4711)
        assert result[0]["by"]["dag_id"] == "dag"
    else:
        assert result == {"id": 4711, "propertyID": 7, "customerReference": "PM-7"}


@OPERATORS
def test_what_was_not_created_is_sent_once(service, store, run, write):
    leave_uncertain(service, store, write())
    requests = len(service.requests)

    assert run("settle", "PM-7", "--not-created", *WHY)[0] == 0
    for cleared in (1, 2):
        write().execute(context_for(store, cleared=cleared))

    assert len(service.requests) == requests + 1


def test_the_answer_to_a_request_is_returned(service, store, run):
    leave_uncertain(service, store, send_request())
    requests = len(service.requests)

    code, _, error = run("settle", "PM-7", "--job-id", "4711", *WHY)
    assert (code, "settle it with --answer or --not-created" in error) == (1, True)
    assert run("settle", "PM-7", "--answer", '{"id": 5}', *WHY)[0] == 0

    assert send_request().execute(context_for(store, cleared=1)) == {"id": 5}
    assert len(service.requests) == requests


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        *[("--job-id", value, "a whole number, 1 or more") for value in ("abc", "0", "-1", "4711.0", "")],
        *[("--answer", value, "JSON") for value in ("{", '{"a": NaN}', '"\\ud83d"', "[" * 3000)],
    ],
)
def test_a_bad_value_of_settle_is_refused_with_what_it_should_be(capsys, option, value, expected):
    with pytest.raises(SystemExit) as ended:
        main(["settle", "PM-7", f"{option}={value}", *WHY])

    assert ended.value.code == 2
    assert f"argument {option}: should be {expected}" in capsys.readouterr().err


def test_an_answer_may_be_null(service, store, run):
    leave_uncertain(service, store, send_request())

    assert run("settle", "PM-7", "--answer", "null", *WHY)[0] == 0
    assert send_request().execute(context_for(store, cleared=1)) is None


def test_a_job_has_no_answer(service, store, run):
    leave_uncertain(service, store, create_job())

    code, _, error = run("settle", "PM-7", "--answer", "1", *WHY)

    assert (code, "settle it with --job-id or --not-created" in error) == (1, True)
    assert rows(store)[0].state == "uncertain"


def test_a_conflict_is_settled(service, store, run):
    service.fail("POST", "/properties/7/jobs", faults.Status(409))
    with pytest.raises(AirflowFailException, match="409"):
        create_job().execute(context_for(store))

    assert run("settle", "PM-7", "--job-id", "4711", *WHY)[0] == 0
    assert create_job().execute(context_for(store, cleared=1))["id"] == 4711


def test_what_was_sent_before_an_attempt_that_created_nothing_stays(service, store, run):
    first = create_job().execute(context_for(store))
    again = {"if_already_done": "create"}
    leave_uncertain(service, store, create_job(**again), cleared=1)
    assert rows(store)[0].state == "uncertain"

    code, output, _ = run("settle", "PM-7", "--not-created", *WHY)

    assert (code, "what was sent before it is recorded again" in output) == (0, True)
    assert create_job().execute(context_for(store, cleared=1))["id"] == first["id"]


@pytest.mark.parametrize(
    "settlement", [["--job-id", "1"], ["--not-created"], ["--answer", "1"]], ids=lambda words: words[0]
)
def test_what_is_done_is_not_settled(service, store, run, settlement):
    job = create_job().execute(context_for(store))
    before = rows(store)

    code, _, error = run("settle", "PM-7", *settlement, *WHY)

    assert (code, error != "") == (1, True)
    assert run("settle", "PM-7", "--job-id", str(job["id"]), *WHY)[0] == 0
    assert (rows(store), rows(store, HISTORY)) == (before, [])


def test_what_may_be_under_way_is_settled_only_by_force(service, store, run):
    leave_sent(service, store, create_job())
    settle = ("settle", "PM-7", "--job-id", "4711", *WHY)

    code, _, error = run(*settle)
    assert (code, "may be under way: wait until 20" in error) == (1, True)
    assert rows(store)[0].state == "sent"

    assert run(*settle, "--force")[0] == 0
    assert rows(store)[0].state == "done"


@THREADS.needed
def test_what_waited_to_be_sent_is_not_sent_after_others_took_it_over(service, store, run, monkeypatch):
    monkeypatch.setattr("fsm_provider.writes.ledger.INTENT_LIFETIME", 0.2)
    held, pool = Event(), ThreadPoolExecutor()
    waiting = service.fail("POST", "/properties/7/jobs", faults.Before(held.wait), calls=(1, 2))
    jobs = [{"property_id": 7, "job": {"customerReference": key}, "key": key} for key in ("A", "B", "PM-7")]
    operator = FsmCreateJobsOperator(task_id="create", jobs=jobs, max_concurrency=2, once_per="key")
    first = pool.submit(operator.execute, context_for(store))
    service.wait_for(lambda: waiting.hits == 2 and len(rows(store)) == 3, timeout=10)

    assert run("settle", "PM-7", "--not-created", "--force", *WHY)[0] == 0
    job = create_job(once_per="key").execute(context_for(store, run_id="another"))
    time.sleep(0.3)
    held.set()

    outcomes = {one["key"]: (one["outcome"], one["jobID"]) for one in first.result()}
    assert outcomes["PM-7"] == ("existing", job["id"])
    assert len(service.jobs) == 3


def test_what_was_sent_a_while_ago_is_settled(service, store, connect, run):
    leave_sent(service, store, create_job())
    make_older(store, seconds=150)
    connect(service, timeout=60)
    settle = ("settle", "PM-7", "--job-id", "4711", *WHY)

    assert run(*settle)[0] == 1  # four timeouts
    connect(service, timeout=30)
    assert run(*settle)[0] == 0


@JOB_OPERATORS
@pytest.mark.parametrize("before", ["nothing", "uncertain"])
def test_a_settlement_is_the_outcome_where_no_response_comes(service, store, run, caplog, write, before):
    if before == "uncertain":
        leave_uncertain(service, store, write())

    def settle():
        assert run("settle", "PM-7", "--job-id", "4711", "--force", *WHY)[0] == 0

    service.fail("POST", "/properties/7/jobs", faults.Before(settle, faults.Status(500)))
    result = write(if_uncertain="create").execute(context_for(store))

    (outcome,) = result if isinstance(result, list) else [{"jobID": result["id"]}]
    assert (outcome["jobID"], store.entries["PM-7"]["result"]["id"]) == (4711, 4711)
    assert "a settlement or a later attempt of this task has replaced it" in caplog.text


@JOB_OPERATORS
def test_a_late_response_is_recorded_after_not_created(service, store, run, write):
    write().execute(context_for(store))

    def settle():
        assert run("settle", "PM-7", "--not-created", "--force", *WHY)[0] == 0

    service.fail("POST", "/properties/7/jobs", faults.Before(settle))
    write(if_already_done="create").execute(context_for(store, cleared=1))

    assert store.entries["PM-7"]["result"]["id"] == service.jobs[1]["id"]


@JOB_OPERATORS
@pytest.mark.parametrize("before", ["nothing", "uncertain"])
def test_a_late_response_does_not_replace_a_settlement(service, store, run, caplog, write, before):
    if before == "uncertain":
        leave_uncertain(service, store, write())

    def settle():
        assert run("settle", "PM-7", "--job-id", "4711", "--force", *WHY)[0] == 0

    service.fail("POST", "/properties/7/jobs", faults.Before(settle))
    write(if_uncertain="create").execute(context_for(store))

    assert rows(store)[0].version > 1
    assert store.entries["PM-7"]["result"]["id"] == 4711
    assert "The outcome of 'PM-7' is not stored" in caplog.text
    _, listed, _ = run("list", "--settled", "--json")
    *_, late = json.loads(listed)
    assert (late["action"], late["before"]["result"]["id"]) == ("late response", service.jobs[-1]["id"])
    assert late["who"].startswith("task task of run run")


def test_a_late_response_is_recorded_after_a_settlement_that_it_contradicts(service, store, run):
    def settle():
        assert run("settle", "PM-7", "--not-created", "--force", *WHY)[0] == 0

    service.fail("POST", "/properties/7/jobs", faults.Before(settle))
    job = create_job().execute(context_for(store))

    assert create_job().execute(context_for(store, cleared=1))["id"] == job["id"]
    assert len(service.jobs) == 1


def test_what_a_task_changes_meanwhile_is_not_settled(service, store, run, monkeypatch):
    leave_uncertain(service, store, create_job())
    from fsm_provider.writes.ledger_table import LedgerTable

    settle = LedgerTable.settle

    def task_is_faster(*given, **options):
        create_job(if_uncertain="create").execute(context_for(store, cleared=1))
        return settle(*given, **options)

    monkeypatch.setattr(LedgerTable, "settle", task_is_faster)
    code, _, error = run("settle", "PM-7", "--not-created", *WHY)

    assert (code, "has changed meanwhile" in error) == (1, True)
    assert rows(store)[0].state == "done"
    assert rows(store, HISTORY) == []


def test_an_ambiguous_key_is_settled_by_its_run(service, store, run):
    for run_id in ("one", "two"):
        leave_uncertain(service, store, create_job(), run_id=run_id)
    settle = ("settle", "PM-7", "--job-id", "4711", *WHY)

    code, output, error = run(*settle)
    assert (code, "2 entries have this key" in error) == (1, True)
    assert "run one" in output
    assert "run two" in output
    assert {row.state for row in rows(store)} == {"uncertain"}

    assert run(*settle, "--run", "two")[0] == 0
    assert {row.run_id: row.state for row in rows(store)} == {"one": "uncertain", "two": "done"}


def test_each_change_is_kept(service, store, run):
    leave_uncertain(service, store, create_job())
    uncertain = rows(store)[0].entry
    run("settle", "PM-7", "--job-id", "4711", *WHY)
    run("forget", "PM-7", "--why", "cancelled", "--by", "sam")

    code, output, _ = run("list", "--settled", "--json")
    first, second = json.loads(output)

    assert code == 0
    assert (first["action"], first["who"], first["why"], first["key"]) == (
        *("job 4711", "jo", "looked it up"),
        "PM-7",
    )
    assert abs(datetime.now(UTC) - datetime.fromisoformat(first["at"])) < timedelta(minutes=1)
    assert first["before"] == json.loads(uncertain)
    assert (second["action"], second["who"], second["before"]["result"]["id"]) == ("forgotten", "sam", 4711)
    assert run("list", "--settled", "--run", "run")[0] == 0
    for other in (("--run", "other"), ("--key", "other"), ("--once-per", "key")):
        assert run("list", "--settled", *other)[0] == 1
    table = run("list", "--settled")[1].splitlines()
    assert (len(table), "looked it up" in table[1]) == (3, True)


def test_a_change_that_cannot_be_kept_is_not_made(service, store, run):
    leave_uncertain(service, store, create_job())
    with store.engine.begin() as connection:
        connection.execute(
            sqlalchemy.text(
                f"CREATE TRIGGER no_history BEFORE INSERT ON {HISTORY.name} "
                "BEGIN SELECT RAISE(FAIL, 'refused by the test'); END"
            )
        )

    code, _, error = run("settle", "PM-7", "--job-id", "4711", *WHY)

    assert (code, "refused by the test" in error) == (2, True)
    assert rows(store)[0].state == "uncertain"


def test_the_list_is_a_table(service, store, run):
    create_job("done").execute(context_for(store, run_id="one"))
    leave_uncertain(service, store, create_job("uncertain"), run_id="two")
    leave_sent(service, store, create_job("a\nkey"), run_id="three")

    code, output, _ = run("list")
    head, *lines = output.splitlines()

    assert code == 0
    assert head.split() == ["key", "state", "job", "once", "per", "sent", "by", "at", "(UTC)", "subject"]
    done, uncertain, sent = lines
    assert done.startswith("done ")
    assert f" {service.jobs[0]['id']} " in done
    assert "propertyID 7, customerReference 'PM-7'" in done
    assert "task task of run two of DAG dag" in uncertain
    assert "uncertain  " in uncertain
    assert sent.startswith("a\\nkey  ")
    assert "sent, perhaps under way" in sent


@pytest.mark.parametrize(
    ("filters", "keys"),
    [
        ((), ["done", "lost", "shared"]),
        (("--uncertain",), ["lost"]),
        (("--key", "lost"), ["lost"]),
        (("--run", "two"), ["lost"]),
        (("--dag", "dag", "--task", "task"), ["done", "lost", "shared"]),
        (("--once-per", "key"), ["shared"]),
        (("--once-per", "run"), ["done", "lost"]),
    ],
)
def test_the_list_is_filtered(service, store, run, filters, keys):
    create_job("done").execute(context_for(store, run_id="one"))
    leave_uncertain(service, store, create_job("lost"), run_id="two")
    create_job("shared", once_per="key").execute(context_for(store, run_id="three"))

    code, output, _ = run("list", "--json", *filters)

    assert (code, sorted(one["key"] for one in json.loads(output))) == (0, keys)


def test_a_job_of_another_key_is_settled_only_by_force(service, store, run):
    create_job("PM-1").execute(context_for(store))
    leave_uncertain(service, store, create_job("PM-7"), run_id="two")
    settle = ("settle", "PM-7", "--job-id", str(service.jobs[0]["id"]), *WHY)

    code, _, error = run(*settle)
    assert (code, "is that of 'PM-1'" in error) == (1, True)
    assert run(*settle, "--force")[0] == 0


def test_the_blanks_around_a_key_are_no_part_of_it(service, store, run):
    leave_uncertain(service, store, create_job())

    assert run("list", "--key", " PM-7 ")[0] == 0
    with pytest.raises(SystemExit):
        run("settle", " ", "--not-created", *WHY)
    with pytest.raises(SystemExit):
        run("settle", "PM-7", "--not-created", "--why", " ")
    assert run("settle", " PM-7", "--not-created", *WHY)[0] == 0


def test_a_conflict_is_listed_with_what_is_uncertain(service, store, run):
    service.fail("POST", "/properties/7/jobs", faults.Status(409))
    with pytest.raises(AirflowFailException):
        create_job().execute(context_for(store))

    assert "conflict" in run("list", "--uncertain")[1]


def test_the_list_as_json_has_all_that_is_known(service, store, run):
    leave_uncertain(service, store, create_job())

    (found,) = json.loads(run("list", "--json")[1])

    assert found["state"] == "uncertain"
    assert found["jobID"] is None
    assert found["subject"] == {"propertyID": 7, "customerReference": "PM-7"}
    assert "may or may not have taken effect" in found["error"]
    assert found["run_id"] == "run"


def test_the_list_says_which_task_is_sending_and_which_has_recorded_no_response(service, store, run):
    leave_sent(service, store, create_job(), run_id="one")

    def error():
        (found,) = json.loads(run("list", "--json")[1])
        return found["under_way"], found["error"]

    under_way, says = error()
    assert (under_way, "task task of run one of DAG dag may be sending it" in says) == (True, True)
    make_older(store, seconds=150)
    under_way, says = error()
    assert (under_way, "task task of run one of DAG dag has recorded no response" in says) == (False, True)


EDITED = [
    *("no JSON", "[]", "{}", '"text"', "[" * 30_000, '{"key": {}}'),
    '{"key": "PM-7", "sent": []}',
]
"""What somebody has made of an entry."""
CHANGES = {
    "sent": ["POST", "/x", "2026-01-01T00:00:00", {}],
    "by": {"dag_id": "dag"},
    "error": {"type": "Nonsense"},
    "before": {"sent": 1},
}


def edit(store, key, text, table=LEDGER):
    with store.engine.begin() as connection:
        connection.execute(table.update().where(table.c.key == key).values(entry=text))


@pytest.mark.parametrize("change", [*EDITED, *CHANGES])
def test_an_entry_that_was_edited_is_named_and_left(service, store, run, change):
    leave_uncertain(service, store, create_job("PM-7"), run_id="one")
    create_job("PM-8").execute(context_for(store, run_id="two"))
    entry = json.loads(rows(store)[0].entry)
    edit(store, "PM-7", json.dumps({**entry, change: CHANGES[change]}) if change in CHANGES else change)
    before = rows(store)
    says = "the entry of 'PM-7' was changed and cannot be read"

    code, output, _ = run("list")
    lines = output.splitlines()
    assert (code, len(lines)) == (0, 3)
    assert any(line.startswith("PM-7  uncertain") and "run one" in line for line in lines)
    assert any("was changed, and cannot be read" in line for line in lines)
    assert any(line.startswith("PM-8  done") and "propertyID 7" in line for line in lines)
    found = {one["key"]: one for one in json.loads(run("export")[1])}
    assert says in found["PM-7"]["error"]
    assert (found["PM-7"]["run_id"], found["PM-7"]["state"]) == ("one", "uncertain")
    assert found["PM-8"]["error"] is None
    assert len(list(csv.DictReader(io.StringIO(run("export", "--format", "csv")[1])))) == 2
    for command in (
        ("settle", "PM-7", "--not-created", *WHY),
        ("settle", "PM-7", "--job-id", "4711", "--force", *WHY),
        ("forget", "PM-8", "PM-7", *WHY),
    ):
        code, output, error = run(*command)
        assert (code, output) == (1, "")
        assert says in error
        assert "look in the service, and restore or delete the row" in error
    assert rows(store) == before


def test_an_old_entry_that_was_edited_is_named_when_it_is_pruned(service, store, run):
    create_job("PM-7").execute(context_for(store))
    make_older(store, days=30)
    edit(store, "PM-7", "no JSON")

    code, output, _ = run("prune", "--older-than", "29", "--by", "jo")

    assert (code, rows(store)) == (0, [])
    assert output.startswith("'PM-7', which cannot be read, by task task of run run of DAG dag\n1 entries")


def test_what_was_edited_in_the_history_is_named(service, store, run):
    for key in ("PM-7", "PM-8"):
        create_job(key).execute(context_for(store, run_id=key))
    run("forget", "PM-7", "PM-8", *WHY)
    for text in ("no JSON", "[]", "{}", '{"key": "PM-7", "by": 1}'):
        edit(store, "PM-7", text, HISTORY)

        code, output, _ = run("list", "--settled")
        assert (code, [line.split()[2] for line in output.splitlines()]) == (0, ["key", "PM-7", "PM-8"])
        first, second = json.loads(run("list", "--settled", "--json")[1])
        assert (first["action"], first["before"]) == ("forgotten", None)
        assert second["before"]["key"] == "PM-8"
        assert json.loads(run("list", "--settled", "--json", "--task", "task")[1]) == [second]


def test_what_is_done_is_forgotten_by_its_key_and_sent_again(service, store, run):
    for key in ("PM-7", "PM-8", "PM-9"):
        create_job(key).execute(context_for(store, run_id=key))

    code, output, _ = run("forget", "PM-7", "PM-8", *WHY)

    assert (code, output.count("is forgotten")) == (0, 2)
    assert [row.key for row in rows(store)] == ["PM-9"]
    create_job("PM-7").execute(context_for(store, run_id="PM-7", cleared=1))
    assert len(service.jobs) == 4


def test_if_one_of_several_keys_is_not_done_nothing_is_forgotten(service, store, run):
    create_job("PM-7").execute(context_for(store, run_id="one"))
    leave_uncertain(service, store, create_job("PM-8"), run_id="two")

    for other, says in (("PM-8", "is uncertain: settle it"), ("PM-%", "nothing was found")):
        code, output, error = run("forget", "PM-7", other, *WHY)
        assert (code, output, says in error) == (1, "", True)
    assert len(rows(store)) == 2


@pytest.fixture
def old_and_new(service, store):
    create_job("old").execute(context_for(store, run_id="one"))
    create_job("shared", once_per="key").execute(context_for(store, run_id="two"))
    leave_uncertain(service, store, create_job("lost"), run_id="three")
    service.fail("POST", "/properties/7/jobs", faults.Status(409))
    with pytest.raises(AirflowFailException, match="409"):
        create_job("conflict").execute(context_for(store, run_id="four"))
    make_older(store, days=30)
    create_job("new").execute(context_for(store, run_id="five"))


@pytest.mark.parametrize(
    ("options", "named", "deleted"),
    [
        (("--older-than", "29"), {"old"}, {"old"}),
        (("--older-than", "29", "--keys"), {"old", "shared"}, {"old", "shared"}),
        (("--older-than", "31"), set(), set()),
        (("--older-than", "29", "--dry-run"), {"old"}, set()),
    ],
)
def test_old_entries_are_pruned_and_each_is_named_and_kept_in_the_history(
    old_and_new, store, run, options, named, deleted
):
    before = {row.key for row in rows(store)}

    code, output, _ = run("prune", *options, "--by", "jo")

    assert code == 0
    assert before - {row.key for row in rows(store)} == deleted
    *lines, summary = output.splitlines()
    assert {line.partition(", ")[0].strip("'") for line in lines} == named
    assert summary.startswith(f"{len(named)} entries and ")
    assert len(rows(store, ATTEMPTS)) == (5 if not deleted else 1)
    actions = [(row.action, row.who) for row in rows(store, HISTORY)]
    assert actions == [("pruned", "jo")] * len(deleted)
    for key in deleted:
        code, output, _ = run("list", "--settled", "--key", key, "--json")
        [change] = json.loads(output)
        assert (change["action"], change["key"], change["before"]["kind"]) == ("pruned", key, JOB)


def test_the_export_holds_all_entries(service, store, run):
    create_job("done").execute(context_for(store, run_id="one"))
    leave_uncertain(service, store, create_job("lost"), run_id="two")

    as_json = json.loads(run("export")[1])
    as_csv = list(csv.DictReader(io.StringIO(run("export", "--format", "csv")[1])))

    assert [one["key"] for one in as_json] == [one["key"] for one in as_csv] == ["done", "lost"]
    assert as_json[0]["result"]["id"] == service.jobs[0]["id"]
    assert json.loads(as_csv[0]["result"]) == as_json[0]["result"]
    assert as_csv[1]["subject"] == json.dumps(as_json[1]["subject"])


def test_the_entries_of_another_service_are_not_there(service, store, run, connect):
    leave_uncertain(service, store, create_job())
    with FakeFieldService(token=TOKEN) as other:
        connect(other)
        for command in (("list",), ("settle", "PM-7", "--not-created", *WHY), ("forget", "PM-7", *WHY)):
            assert run(*command)[0] == 1
        assert json.loads(run("export")[1]) == []

    assert len(rows(store)) == 1


def test_the_tables_are_made_once(store, run):
    code, _, error = run("list")
    assert (code, "no ledger yet: see create-tables" in error) == (1, True)

    for _ in range(2):
        assert run("create-tables")[0] == 0
    assert run("export") == (0, "[]\n", "")


def test_the_statements_make_the_same_tables(store, run, tmp_path):
    code, statements, _ = run("create-tables", "--sql")
    assert not sqlalchemy.inspect(store.engine).get_table_names()
    with store.engine.begin() as connection:
        for statement in statements.split(";")[:-1]:
            connection.execute(sqlalchemy.text(statement))

    assert code == 0
    assert run("list")[2] == "nothing was found\n"


def test_tables_of_another_version_are_not_touched(store, run):
    run("create-tables")
    with store.engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE fsm_ledger_schema SET version = 2"))

    for command in ("list", "create-tables"):
        code, _, error = run(command)
        assert (code, "are of version 2" in error) == (2, True)


def test_a_connection_without_a_database_is_named(service, monkeypatch, run):
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", service.connection_json())

    assert run("list") == (2, "", "connection 'fsm_default' has no state_conn_id: its ledger is in Airflow\n")


@pytest.mark.parametrize("host", ["https://[::1/v1", "https:///v1"])
def test_a_host_that_is_no_url_is_named(monkeypatch, run, host):
    connection = json.loads(os.environ["AIRFLOW_CONN_FSM_DEFAULT"])
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps({**connection, "host": host}))

    for command in (("list",), ("create-tables",), ("settle", "PM-7", "--not-created", *WHY)):
        code, output, error = run(*command)
        assert (code, output) == (2, "")
        assert error == (
            "connection 'fsm_default': host: should be a URL such as https://api.example.com/v1\n"
        )


@pytest.mark.parametrize(
    ("database", "says"),
    [
        (None, "ledger"),
        ({"conn_type": "fsm", "host": "https://x"}, "not of a SQL database"),
        ({"conn_type": "sqlite", "host": "ledger.db"}, "should be the absolute path"),
        ({"conn_type": "sqlite", "host": "/no/such/folder/ledger.db"}, "unable to open database file"),
        ({"conn_type": "nothing"}, "nothing"),
        (
            {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "x", "password": "pa55"},
            "refused",
        ),
    ],
)
def test_a_database_that_cannot_be_used_is_named(monkeypatch, run, database, says):
    monkeypatch.delenv("AIRFLOW_CONN_LEDGER")
    if database:
        monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(database))

    for command in ("list", "create-tables"):
        code, output, error = run(command)
        assert (code, output) == (2, "")
        assert says in error
        assert "pa55" not in error


def test_the_commands_read_connections_of_airflows_database(service, store, tmp_path):
    leave_uncertain(service, store, create_job())
    environment = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PATH": ""}
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    connection = service.connection()
    connection["extra"]["state_conn_id"] = "our_ledger"

    def run_process(*command):
        return subprocess.run(
            [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, check=False
        )

    assert run_process("airflow", "db", "migrate").returncode == 0
    for name, value in (("our_ledger", store.connection), ("fsm_ours", json.dumps(connection))):
        added = run_process("airflow", "connections", "add", name, "--conn-json", value)
        assert added.returncode == 0, added.stderr
    ours = ("--conn-id", "fsm_ours")
    settled = run_process("fsm_provider", "ledger", "settle", "PM-7", "--job-id", "4711", *WHY, *ours)
    listed = run_process("fsm_provider", "ledger", *ours, "list", "--json")

    assert (settled.returncode, settled.stderr) == (0, "")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert [one["jobID"] for one in json.loads(listed.stdout)] == [4711]
    assert create_job().execute(context_for(store, cleared=1))["id"] == 4711


def test_what_airflow_warns_of_meanwhile_is_not_shown(run, monkeypatch, caplog):
    def read_connection(_):
        logging.getLogger("anything").warning("deprecated")
        raise AirflowFailException("not there")

    monkeypatch.setattr("fsm_provider.compat.read_connection_outside_of_tasks", read_connection)

    assert run("list") == (2, "", "not there\n")
    assert caplog.messages == []
    logging.getLogger("anything").warning("afterwards")
    assert caplog.messages == ["afterwards"]
