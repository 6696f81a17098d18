"""Registering webhooks with a ledger in a database, which runs, DAGs and Airflows share.

The tasks use Airflow's own SDK against the supervisor of ``tests.unit.supervisor``, which holds the
Variables: another Airflow has others. Tasks that register at the same moment do so as before Airflow 3.3,
where no claim in a Variable keeps them apart.
"""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.state import sql_entries
from fsm_provider.state.sql_entries import SqlEntries
from fsm_provider.testing import faults
from fsm_provider.writes.registrations import variable_name
from tests.capabilities import CONCURRENT_MESSAGES
from tests.unit.state_store import MemoryStateStore, context_for
from tests.unit.supervisor import comms

pytestmark = pytest.mark.usefixtures("supervisor")

TARGET = "https://hooks.example.com/fsm"
SECRETS = "fsm_webhook_secrets_fsm_default_jobs"
TOKENS = "fsm_webhook_secret_tokens_fsm_default_jobs"
REGISTRATION = variable_name("fsm_default", "jobs", ["jobs.created"], TARGET)
BOTH = ["jobs.created", "jobs.closed"]


@pytest.fixture(autouse=True)
def connected(service, connect, database):
    connect(service)


@pytest.fixture
def without_claims(monkeypatch):
    monkeypatch.setattr("fsm_provider.writes.registrations.variable_keys", lambda prefix: None)


@pytest.fixture
def impatient(monkeypatch):
    """What another task has not recorded is uncertain at once."""
    monkeypatch.setattr("fsm_provider.writes.ledgers.MIN_FLIGHT", 0)
    monkeypatch.setattr("fsm_provider.writes.ledgers.FLIGHT_TIMEOUTS", 0)


def attempt(run_id="run", dag_id="dag", **more):
    """Make the context of an attempt; later calls make later attempts."""
    context = context_for(MemoryStateStore(), run_id=run_id, **more)
    context["ti"].dag_id = dag_id
    return {**context, "dag_run": SimpleNamespace(id=int(context["ti"].id))}


def register(context, **kwargs):
    given = {"object": "jobs", "event_types": "jobs.created", "target_url": TARGET}
    return FsmRegisterWebhookOperator(task_id="task", **{**given, **kwargs}).execute(context)


def ids(registered):
    return [one["id"] for one in registered]


def entries_in(database):
    return {json.loads(row.entry)["key"]: json.loads(row.entry) for row in database.rows()}


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Held:
    """A request that the service handles only once the test lets it."""

    def __init__(self):
        self.arrived, self.go_on = threading.Event(), threading.Event()

    async def play(self, exchange):
        self.arrived.set()
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)
        await exchange.respond(await exchange.handle())


class Killed(BaseException):
    """A kill: nobody catches it."""


def killed_before_it_is_recorded(supervisor, context, **kwargs):
    """Kill a task between the service's response and any record of it."""

    def kill(message):
        if isinstance(message, comms.PutVariable) and '"result": {' in message.value:
            raise Killed

    supervisor.before = kill
    with pytest.raises(Killed):
        register(context, **kwargs)
    supervisor.before = lambda message: None


class TestOnce:
    def test_another_run_dag_and_airflow_register_nothing(self, service, variables, database):
        first = register(attempt("1"), event_types=BOTH)

        assert register(attempt("2"), event_types=BOTH) == first
        assert register(attempt("1", "another_dag"), event_types=BOTH) == first
        variables.clear()  # as in another Airflow
        assert register(attempt("1", "another_airflow"), event_types=BOTH) == first
        assert len(service.webhooks) == 2
        assert REGISTRATION in variables
        assert {row.state for row in database.rows()} == {"done"}
        assert {row.scope for row in database.rows()} == {""}

    @pytest.mark.usefixtures("without_claims")
    @pytest.mark.parametrize("event_types", ["jobs.created", BOTH])
    def test_runs_and_dags_at_the_same_moment_register_once(self, service, database, event_types):
        service.settings.latency = 0.2
        start = threading.Barrier(4)

        def run(number):
            start.wait()
            return register(attempt(f"run-{number % 2}", f"dag-{number // 2}"), event_types=event_types)

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(run, range(4)))

        assert results == [results[0]] * 4
        assert len(service.webhooks) == len(results[0]) == len(database.rows())

    @pytest.mark.usefixtures("without_claims")
    def test_what_another_airflow_is_registering_is_waited_for(self, service, variables, caplog):
        caplog.set_level("INFO")
        service.fail("POST", "/settings/webhooks", held := Held())
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(lambda: register(attempt("first")))
            assert held.arrived.wait(10)
            del variables[REGISTRATION]
            second = pool.submit(lambda: register(attempt("second")))
            wait_for(lambda: "Waiting for another task" in caplog.text or second.done())
            held.go_on.set()

        assert second.result() == first.result()
        assert len(service.webhooks) == 1

    @CONCURRENT_MESSAGES.needed
    @pytest.mark.usefixtures("without_claims")
    def test_what_begins_after_the_ledger_was_read_is_waited_for(self, service, supervisor, caplog):
        caplog.set_level("INFO")
        service.fail("POST", "/settings/webhooks", held := Held())
        reads, futures = [], []

        def before(message):
            if isinstance(message, comms.GetVariable) and message.key == REGISTRATION:
                reads.append(message)
                if len(reads) == 2:
                    futures.append(pool.submit(lambda: register(attempt("first"))))
                    assert held.arrived.wait(10)

        supervisor.before = before
        with ThreadPoolExecutor(2) as pool:
            second = pool.submit(lambda: register(attempt("second")))
            wait_for(lambda: "Waiting for another task" in caplog.text or second.done())
            held.go_on.set()
        (first,) = futures

        assert second.result() == first.result()
        assert len(service.webhooks) == 1

    def test_an_outcome_that_is_about_to_be_recorded_is_left_to_its_task(self, supervisor, database, caplog):
        def before(message):
            if '"result": {' in supervisor.variables.get(REGISTRATION, ""):
                supervisor.before = lambda message: None
                assert ids(register(attempt("2"))) == [1]

        supervisor.before = before

        register(attempt("1"))

        assert "has replaced it" not in caplog.text
        (row,) = database.rows()
        assert (row.run_id, row.state) == ("1", "done")

    def test_a_person_who_deletes_the_variable_makes_no_second_registration(self, service, variables):
        first = register(attempt("1"))
        del variables[REGISTRATION]

        assert register(attempt("2")) == first
        assert json.loads(variables[REGISTRATION])["result"] == first[0]
        assert len(service.webhooks) == 1

    def test_a_registration_that_failed_is_sent_by_the_retry_and_the_other_is_not(self, service):
        service.fail("POST", "/settings/webhooks", faults.Status(403), call=2)
        with pytest.raises(AirflowFailException, match="403"):
            register(attempt(), event_types=BOTH)

        assert ids(register(attempt(try_number=2), event_types=BOTH)) == [1, 2]
        assert [webhook["eventTypes"] for webhook in service.webhooks] == [["jobs.created"], ["jobs.closed"]]

    def test_the_secret_store_is_not_written_to_where_all_is_registered(self, supervisor):
        register(attempt("1"), event_types=BOTH)
        supervisor.refuse(comms.PutVariable)

        assert ids(register(attempt("2"), event_types=BOTH)) == [1, 2]

    def test_a_conflict_is_held_for_a_person_and_force_sends(self, service):
        service.fail("POST", "/settings/webhooks", faults.Status(409))
        for run_id in "12":
            with pytest.raises(AirflowFailException, match="409"):
                register(attempt(run_id))
        assert len(service.requests) == 1

        assert ids(register(attempt("2", try_number=2), force=True)) == [1]


MAX_STEPS = 36
"""Of an undisturbed registration, on any version of Airflow: transactions, and messages to the supervisor."""


@contextmanager
def killed_after(steps, supervisor):
    """Let so many transactions and messages pass, then kill the task; yield those that have passed."""
    passed, in_transaction = [], SqlEntries._in_transaction

    def pass_on(step):
        if len(passed) == steps:
            raise Killed
        passed.append(step)

    def pass_on_and_execute(entries, work):
        pass_on(work)
        return in_transaction(entries, work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "before", pass_on)
        patch.setattr(SqlEntries, "_in_transaction", pass_on_and_execute)
        yield passed


class TestKills:
    @pytest.mark.usefixtures("impatient")
    @pytest.mark.parametrize("after", range(MAX_STEPS))
    def test_a_task_killed_at_any_step_registers_nothing_twice(self, service, supervisor, after):
        with suppress(Killed), killed_after(after, supervisor):
            register(attempt("1"))
        for name in [name for name in supervisor.variables if "claim" in name]:
            del supervisor.variables[name]  # as the error asks people to do

        for context in (attempt("2"), attempt("1", try_number=2), attempt("2", cleared=1), attempt("3")):
            try:
                assert ids(register(context)) == [1]
            except AirflowFailException as error:
                assert "may or may not have taken effect" in str(error)  # noqa: PT017
            if context["ti"].run_id == "2":
                supervisor.variables.clear()  # as in another Airflow
        assert len(service.webhooks) <= 1

    def test_the_kills_cover_every_step(self, supervisor):
        with killed_after(None, supervisor) as steps:
            register(attempt("1"))

        assert MAX_STEPS - 10 < len(steps) <= MAX_STEPS


class TestTheSetting:
    def test_a_registration_from_before_it_was_set_is_found_by_all(
        self, service, connect, connection_extra, variables, database, caplog
    ):
        caplog.set_level("INFO")
        state_conn_id = connection_extra.pop("state_conn_id")
        connect(service)
        first = register(attempt("1"))
        connect(service, state_conn_id=state_conn_id)

        assert register(attempt("2")) == first
        assert caplog.text.count("was registered at") == 1
        variables.clear()  # as in another Airflow
        assert register(attempt("3")) == first
        assert len(service.webhooks) == 1

    def test_one_whose_outcome_was_unknown_before_stays_so(self, service, connect, connection_extra):
        state_conn_id = connection_extra.pop("state_conn_id")
        connect(service)
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True))
        for run_id, extra in (("1", {}), ("2", {"state_conn_id": state_conn_id})):
            connect(service, **extra)
            with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
                register(attempt(run_id))

        assert ids(register(attempt("3"), if_uncertain="create")) == [2]

    def test_without_it_again_the_variable_is_found(self, service, connect, connection_extra):
        first = register(attempt("1"))
        del connection_extra["state_conn_id"]
        connect(service)

        assert register(attempt("2")) == first
        assert len(service.webhooks) == 1

    def test_what_was_uncertain_is_so_without_it_too(self, service, connect, connection_extra, supervisor):
        killed_before_it_is_recorded(supervisor, attempt("1"))
        del connection_extra["state_conn_id"]
        connect(service)

        with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
            register(attempt("2"))
        assert len(service.webhooks) == 1


class TestUncertain:
    @pytest.mark.usefixtures("impatient")
    def test_a_kill_after_the_request_is_uncertain_for_every_run_and_airflow(
        self, service, supervisor, database
    ):
        killed_before_it_is_recorded(supervisor, attempt("1"))
        for name in [name for name in supervisor.variables if "claim" in name]:
            del supervisor.variables[name]  # as the error asks people to do
        assert json.loads(supervisor.variables[REGISTRATION])["result"] is None
        (row,) = database.rows()
        assert row.state == "sent"

        for run_id in "12":
            with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
                register(attempt(run_id))
        supervisor.variables.clear()  # as in another Airflow
        with pytest.raises(AirflowFailException, match=r"run 1 of DAG dag has recorded no response"):
            register(attempt("3"))
        assert len(service.webhooks) == 1

    @pytest.mark.parametrize("options", [{"if_uncertain": "create"}, {"force": True}])
    def test_the_options_send_what_another_run_left_uncertain(self, service, options):
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True))
        with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
            register(attempt("1"))

        assert ids(register(attempt("2"), **options)) == [2]
        assert ids(register(attempt("1", cleared=1))) == [2]

    def test_what_another_airflow_has_found_out_counts_more_than_an_unknown_outcome(self, service, variables):
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True))
        with pytest.raises(AirflowFailException):
            register(attempt("1"))
        mine = dict(variables)
        variables.clear()
        register(attempt("2"), if_uncertain="create")
        variables.clear()
        variables |= mine

        assert ids(register(attempt("3"))) == [2]
        assert json.loads(variables[REGISTRATION])["result"]["id"] == 2


class TestForce:
    def test_each_run_registers_again_and_no_retry_does(self, service, variables):
        register(attempt("1"))

        forced = [
            ids(register(attempt(run_id, cleared=cleared), force=True))
            for run_id, cleared in [("2", 0), ("2", 0), ("3", 0), ("3", 0), ("3", 1), ("3", 1)]
        ]

        assert forced == [[2], [2], [3], [3], [4], [4]]
        assert ids(register(attempt("1"))) == [4]
        variables.clear()
        assert ids(register(attempt("4"))) == [4]

    def test_a_retry_repeats_nothing_that_another_run_has_registered_since(self, service):
        register(attempt("1"), force=True)
        register(attempt("2"), force=True)

        assert ids(register(attempt("1", try_number=2), force=True)) == [2]
        assert ids(register(attempt("1", cleared=1), force=True)) == [3]

    def test_each_mapped_task_registers_and_no_retry_of_it_does(self, service):
        forced = [ids(register(attempt(map_index=index), force=True)) for index in (0, 1, 0, 1)]

        assert forced == [[1], [2], [2], [2]]

    def test_a_retry_sends_only_what_failed(self, service):
        register(attempt("1"), event_types=BOTH)
        service.fail("POST", "/settings/webhooks", faults.Status(403), call=2)
        with pytest.raises(AirflowFailException, match="403"):
            register(attempt("2"), event_types=BOTH, force=True)

        assert ids(register(attempt("2", try_number=2), event_types=BOTH, force=True)) == [3, 4]


class TestTheDatabaseIsAway:
    @pytest.fixture(autouse=True)
    def no_retries(self, monkeypatch):
        monkeypatch.setattr(sql_entries, "RETRY_SECONDS", 0)

    def test_nothing_is_registered(self, service, variables, monkeypatch):
        away = {"conn_type": "sqlite", "host": "/nowhere/ledger.db"}
        monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(away))

        with pytest.raises(sqlalchemy.exc.OperationalError):
            register(attempt())
        assert service.requests == []
        assert REGISTRATION not in variables

    @pytest.mark.usefixtures("impatient")
    def test_after_the_request_the_variable_knows_and_tells_the_ledger(self, service, database, variables):
        def go_away():
            database.execute("ALTER TABLE fsm_ledger RENAME TO elsewhere")

        service.fail("POST", "/settings/webhooks", faults.Before(go_away))
        with pytest.raises(sqlalchemy.exc.DBAPIError):
            register(attempt("1"))
        database.execute("ALTER TABLE elsewhere RENAME TO fsm_ledger")
        mine = dict(variables)
        variables.clear()  # as in another Airflow
        with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
            register(attempt("2"))
        variables |= mine

        assert ids(register(attempt("1", try_number=2))) == [1]
        variables.clear()
        assert ids(register(attempt("2"))) == [1]
        assert len(service.webhooks) == 1

    @pytest.mark.usefixtures("impatient")
    @pytest.mark.parametrize("other", [{"run_id": "2"}, {"run_id": "1", "cleared": 1}])
    def test_a_registration_tells_nothing_of_a_later_one_in_another_airflow(
        self, service, variables, database, other
    ):
        """Which may have the same DAG, run and task."""
        register(attempt("1"))
        saved = json.loads(variables[REGISTRATION]) | {"at": "2026-01-05T08:00:00+00:00"}
        mine = {**variables, REGISTRATION: json.dumps(saved)}
        variables.clear()
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True))
        with pytest.raises(AirflowFailException):
            register(attempt(**other), force=True)
        variables.clear()
        variables |= mine

        assert ids(register(attempt("3"))) == [1]
        (row,) = database.rows()
        assert row.state == "uncertain"


class TestSecrets:
    @pytest.fixture(autouse=True)
    def configured(self, variables):
        receiver = {
            "base_url": "https://airflow.example.com",
            "endpoints": {"fsm_default/jobs": {"signature": "standard-webhooks"}},
        }
        variables["fsm_webhooks"] = json.dumps(receiver)

    def confidential(self, service, variables):
        tokens = [token for tokens in json.loads(variables[TOKENS]).values() for token in tokens]
        secrets = [webhook["signingSecret"] for webhook in service.webhooks]
        assert tokens
        return [*tokens, *secrets]

    def stored(self, database):
        """Read all that is in the database, and with SQLite the bytes of its file."""
        tables = sqlalchemy.inspect(database.engine).get_table_names()
        text = repr([[tuple(row) for row in database.rows(table)] for table in tables])
        if database.connection["conn_type"] == "sqlite":
            text += Path(database.connection["host"]).read_bytes().decode(errors="replace")
        return text

    def test_neither_token_nor_signing_secret_reaches_the_database(self, service, variables, database):
        register(attempt(), target_url=None, event_types=BOTH)

        stored = self.stored(database)
        assert "https://airflow.example.com/fsm/webhooks/fsm_default/jobs/***" in stored
        assert not [one for one in self.confidential(service, variables) if one in stored]

    @pytest.mark.parametrize("status", [409, 503])
    def test_nor_does_an_error_that_quotes_the_token(self, service, variables, database, status):
        class Echo:
            async def play(self, exchange):
                await exchange.handle()
                url = exchange.request.query_params["targetURL"]
                text = f"no such host: {url}, at {url.rpartition('/')[2]}"
                await exchange.respond(faults.Response(status, text.encode()))

        service.fail("POST", "/settings/webhooks", Echo(), every=True)

        with pytest.raises(AirflowFailException, match="no such host"):
            register(attempt(), target_url=None)

        stored = self.stored(database)
        assert "FsmConflictError" in stored or "FsmUncertainWriteError" in stored
        assert not [one for one in self.confidential(service, variables) if one in stored]

    def test_nor_does_a_registration_for_other_event_types(self, service, connect, variables, database):
        connect(service, event_types_style="repeat")

        with pytest.raises(AirflowFailException, match="webhook 1 was registered for"):
            register(attempt(), target_url=None, event_types=BOTH)

        stored = self.stored(database)
        assert "FsmRegistrationMismatchError" in stored
        assert not [one for one in self.confidential(service, variables) if one in stored]

    def test_nor_does_a_secret_that_could_not_be_stored(self, service, variables, database):
        def fail(key, secret):
            if secret:
                raise OSError(f"cannot write {secret}")

        with pytest.raises(AirflowException, match="webhook 1 was registered, but its"):
            register(attempt(), target_url=None, secret_store=fail)

        stored = self.stored(database)
        assert "FsmSecretNotStoredError" in stored
        assert not [one for one in self.confidential(service, variables) if one in stored]
