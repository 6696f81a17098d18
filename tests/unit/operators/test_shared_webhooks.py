"""Registering webhooks with a ledger in a database, which runs, DAGs and Airflows share.

The tasks use Airflow's own SDK against the supervisor of ``tests.unit.supervisor``, which holds the
Variables: another Airflow has others.
"""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.state import database as state_database
from fsm_provider.testing import faults
from fsm_provider.writes import runner, sql_ledger
from tests.capabilities import CONCURRENT_MESSAGES
from tests.unit.state_store import MemoryStateStore, context_for
from tests.unit.supervisor import AirflowRuntimeError, comms

pytestmark = pytest.mark.usefixtures("supervisor")

TARGET = "https://hooks.example.com/fsm"
VARIABLE = "fsm_webhook_secret_fsm_default_jobs_"
"""How the names of registrations begin."""
BOTH = ["jobs.created", "jobs.closed"]
UNCERTAIN = "may or may not have taken effect"


@pytest.fixture(autouse=True)
def connected(service, connect, database):
    connect(service)


def attempt(run_id="run", dag_id="dag", **more):
    """Make the context of an attempt."""
    context = context_for(MemoryStateStore(), run_id=run_id, **more)
    context["ti"].dag_id = dag_id
    return context


def register(context, **kwargs):
    given = {"object": "jobs", "event_types": "jobs.created", "target_url": TARGET}
    return FsmRegisterWebhookOperator(task_id="task", **{**given, **kwargs}).execute(context)


def ids(registered):
    return [one["id"] for one in registered]


def records(variables):
    """What is stored of each registration."""
    return [json.loads(text) for name, text in variables.items() if name.startswith(VARIABLE)]


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


class TestOnce:
    def test_another_run_dag_and_airflow_register_nothing(self, service, variables, database, caplog):
        first = register(attempt("1"), event_types=BOTH)

        assert register(attempt("2"), event_types=BOTH) == first
        assert register(attempt("1", "another_dag"), event_types=BOTH) == first
        assert caplog.text.count("is not in this Airflow") == 0
        variables.clear()  # as in another Airflow
        found = register(attempt("1", "another_airflow"), event_types=BOTH)
        assert [(one["id"], one["eventTypes"], one["targetURL"]) for one in found] == [
            (number, [event], TARGET) for number, event in enumerate(BOTH, 1)
        ]
        assert caplog.text.count("is not in this Airflow") == 2
        assert len(service.webhooks) == 2
        assert {(row.state, row.scope[:5]) for row in database.rows()} == {("done", "keys-")}

    @pytest.mark.parametrize("event_types", ["jobs.created", BOTH])
    def test_runs_and_dags_at_the_same_moment_register_once(self, service, database, variables, event_types):
        service.settings.latency = 0.2
        start = threading.Barrier(4)

        def run(number):
            start.wait()
            return register(attempt(f"run-{number % 2}", f"dag-{number // 2}"), event_types=event_types)

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(run, range(4)))

        assert results == [results[0]] * 4
        assert len(service.webhooks) == len(results[0]) == len(database.rows())
        secrets = {webhook["signingSecret"] for webhook in service.webhooks}
        assert {record["secret"] for record in records(variables)} == secrets

    @CONCURRENT_MESSAGES.needed
    def test_what_another_airflow_is_registering_is_waited_for(self, service, variables, caplog):
        caplog.set_level("INFO")
        service.fail("POST", "/settings/webhooks", held := Held())
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(lambda: register(attempt("first")))
            assert held.arrived.wait(10)
            variables.clear()
            second = pool.submit(lambda: register(attempt("second")))
            wait_for(lambda: "run first of DAG dag is sending it: waiting until" in caplog.text)
            held.go_on.set()

        assert second.result() == first.result()
        assert len(service.webhooks) == 1

    @CONCURRENT_MESSAGES.needed
    def test_what_another_task_has_stored_meanwhile_is_not_overwritten(self, service, supervisor, variables):
        """The second task writes its Variable late, after the first has registered."""
        stored, checking = threading.Event(), threading.Event()

        def before(message):
            if isinstance(message, comms.PutVariable) and threading.current_thread().name == "second":
                checking.set()
                assert stored.wait(20)

        supervisor.before = before
        second = threading.Thread(target=lambda: register(attempt("second")), name="second")
        second.start()
        checking.wait(2)
        register(attempt("first"))
        stored.set()
        second.join()

        (record,) = records(variables)
        assert [record["secret"]] == [webhook["signingSecret"] for webhook in service.webhooks]

    def test_no_variable_is_written_where_all_is_registered(self, supervisor):
        register(attempt("1"), event_types=BOTH)
        supervisor.refuse(comms.PutVariable)

        assert ids(register(attempt("2"), event_types=BOTH)) == [1, 2]

    def test_a_registration_from_before_the_setting_is_found(self, service, connect, connection_extra):
        state_conn_id = connection_extra.pop("state_conn_id")
        connect(service)
        first = register(attempt("1"))
        connect(service, state_conn_id=state_conn_id)

        assert register(attempt("2")) == first
        connect(service)
        assert register(attempt("3")) == first
        assert len(service.webhooks) == 1

    @pytest.mark.usefixtures("short_lease")
    def test_what_is_uncertain_is_so_for_every_run_and_airflow_and_sent_again_if_that_is_allowed(
        self, service, variables
    ):
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True))
        for run_id in "123":
            with pytest.raises(AirflowFailException, match=rf"{UNCERTAIN}.*sent by .* of run 1 of DAG dag"):
                register(attempt(run_id))
            if run_id == "2":
                variables.clear()  # as in another Airflow

        assert ids(register(attempt("4"), if_uncertain="create")) == [2]
        assert ids(register(attempt("1", cleared=1))) == [2]


def wait_for(condition):
    """Wait for what no event tells of."""
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise TimeoutError


MAX_STEPS = 20
"""Of an undisturbed registration, on any version of Airflow: transactions, and messages to the supervisor."""


@contextmanager
def killed_after(steps, supervisor):
    """Let so many transactions and messages pass, then kill the task; yield those that have passed."""
    passed, in_transaction = [], sql_ledger.in_transaction

    def pass_on(step):
        if type(step).__name__ == "MaskSecret":  # as many as the connections have values
            return
        if len(passed) == steps:
            raise Killed
        passed.append(step)

    def pass_on_and_execute(engine, work):
        pass_on(work)
        return in_transaction(engine, work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "before", pass_on)
        patch.setattr(sql_ledger, "in_transaction", pass_on_and_execute)
        yield passed


class TestKills:
    @pytest.mark.usefixtures("short_lease")
    @pytest.mark.parametrize("after", range(MAX_STEPS))
    def test_a_task_killed_at_any_step_registers_nothing_twice(self, service, supervisor, after):
        with suppress(Killed), killed_after(after, supervisor):
            register(attempt("1"))

        for context in (attempt("2"), attempt("1", try_number=2), attempt("2", cleared=1), attempt("3")):
            try:
                assert ids(register(context)) == [1]
            except AirflowFailException as error:
                assert UNCERTAIN in str(error)  # noqa: PT017
            if context["ti"].run_id == "2":
                supervisor.variables.clear()  # as in another Airflow
        assert len(service.webhooks) <= 1

    def test_the_kills_cover_every_step(self, supervisor):
        with killed_after(None, supervisor) as steps:
            register(attempt("1"))

        assert MAX_STEPS - 12 < len(steps) <= MAX_STEPS


class TestTheDatabaseIsAway:
    @pytest.fixture(autouse=True)
    def no_repeats(self, monkeypatch):
        monkeypatch.setattr(state_database, "MAX_REPEATS", 0)

    @pytest.mark.usefixtures("short_lease")
    def test_after_the_request_the_variable_knows_and_other_airflows_are_told_that_it_is_uncertain(
        self, service, database, variables, caplog, monkeypatch
    ):
        # A quarter of it is for the request, in which the table is renamed.
        monkeypatch.setattr(runner, "MIN_LEASE", 6)

        def go_away():
            database.execute("ALTER TABLE fsm_ledger RENAME TO elsewhere")

        service.fail("POST", "/settings/webhooks", faults.Before(go_away))
        with pytest.raises(sqlalchemy.exc.DBAPIError):
            register(attempt("1"))
        assert "was made, and cannot be recorded" in caplog.text
        database.execute("ALTER TABLE elsewhere RENAME TO fsm_ledger")

        assert ids(register(attempt("1", try_number=2))) == ids(register(attempt("2"))) == [1]
        variables.clear()  # as in another Airflow
        with pytest.raises(AirflowFailException, match=UNCERTAIN):
            register(attempt("2"))
        assert len(service.webhooks) == 1


class TestSecrets:
    @pytest.fixture(autouse=True)
    def configured(self, variables):
        receiver = {
            "base_url": "https://airflow.example.com",
            "endpoints": {"fsm_default/jobs": {"signature": "standard-webhooks"}},
        }
        variables["fsm_webhooks"] = json.dumps(receiver)

    def confidential_in(self, database, service, variables):
        """Return what of tokens and secrets is in the database, with SQLite the bytes of its file."""
        tokens = [record["token"] for record in records(variables)]
        assert tokens
        tables = sqlalchemy.inspect(database.engine).get_table_names()
        text = repr([[tuple(row) for row in database.rows(table)] for table in tables])
        assert VARIABLE in text
        if database.connection["conn_type"] == "sqlite":
            text += Path(database.connection["host"]).read_bytes().decode(errors="replace")
        secrets = [webhook["signingSecret"] for webhook in service.webhooks]
        return [one for one in [*tokens, *secrets] if one in text]

    def test_neither_token_nor_signing_secret_reaches_the_database(self, service, variables, database):
        register(attempt(), target_url=None, event_types=BOTH)

        assert self.confidential_in(database, service, variables) == []

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
        assert self.confidential_in(database, service, variables) == []

    def test_nor_does_a_registration_for_other_event_types(self, service, connect, variables, database):
        connect(service, event_types_style="repeat")

        with pytest.raises(AirflowFailException, match="webhook 1 was not registered for"):
            register(attempt(), target_url=None, event_types=BOTH)
        assert self.confidential_in(database, service, variables) == []

    def test_nor_does_a_secret_that_could_not_be_stored(
        self, service, variables, database, supervisor, monkeypatch
    ):
        monkeypatch.setattr("fsm_provider.state.variables.WRITE_ATTEMPTS", 1)

        def fails(message):
            if isinstance(message, comms.PutVariable) and '"registration"' in message.value:
                raise AirflowRuntimeError(comms.ErrorResponse())

        supervisor.before = fails

        with pytest.raises(AirflowException, match="webhook 1 was registered, but Variable"):
            register(attempt(), target_url=None)
        assert self.confidential_in(database, service, variables) == []
