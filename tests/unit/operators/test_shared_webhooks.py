"""Registering webhooks with a ledger in a database, which runs, DAGs and Airflows share.

The supervisor holds the Variables: another Airflow has others.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import sqlalchemy
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from fsm_provider.state import database as state_database
from fsm_provider.testing import faults
from fsm_provider.writes import sql_ledger
from tests.capabilities import CONCURRENT_MESSAGES
from tests.unit.operators.webhooks import (
    BOTH,
    RECEIVER,
    TARGET,
    UNCERTAIN,
    VARIABLE,
    Echo,
    Killed,
    ids,
    killed_after,
    records,
    register,
    register_for_receiver,
    run,
    tokens,
)
from tests.unit.supervisor import AirflowRuntimeError, comms
from tests.unit.writes.waiting import Held, wait_for

pytestmark = pytest.mark.usefixtures("supervisor")


@pytest.fixture(autouse=True)
def connected(service, connect, database):
    connect(service)


class TestOnce:
    def test_another_run_dag_and_airflow_register_nothing(
        self, service, variables, database, caplog
    ):
        first = register(run("1"), event_types=BOTH)

        assert register(run("2"), event_types=BOTH) == first
        assert register(run("1", "another_dag"), event_types=BOTH) == first
        assert caplog.text.count("is not in this Airflow") == 0
        variables.clear()  # as in another Airflow
        found = register(run("1", "another_airflow"), event_types=BOTH)
        assert [(entry["id"], entry["eventTypes"], entry["targetURL"]) for entry in found] == [
            (number, [event], TARGET) for number, event in enumerate(BOTH, 1)
        ]
        assert caplog.text.count("is not in this Airflow") == 2
        assert len(service.webhooks) == 2
        assert {(row.state, row.scope[:5]) for row in database.rows()} == {("done", "keys-")}

    @pytest.mark.parametrize("event_types", ["jobs.created", BOTH])
    def test_runs_and_dags_at_the_same_moment_register_once(
        self, service, database, variables, event_types
    ):
        service.settings.latency = 0.2
        start = threading.Barrier(4)

        def attempt(number):
            start.wait()
            return register(run(f"run-{number % 2}", f"dag-{number // 2}"), event_types=event_types)

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(attempt, range(4)))

        assert results == [results[0]] * 4
        assert len(service.webhooks) == len(results[0]) == len(database.rows())
        secrets = {webhook["signingSecret"] for webhook in service.webhooks}
        assert {record["secret"] for record in records(variables)} == secrets

    @CONCURRENT_MESSAGES.needed
    def test_what_another_airflow_is_registering_is_waited_for(self, service, variables, caplog):
        caplog.set_level("INFO")
        service.fail("POST", "/settings/webhooks", faults.Before(held := Held()))
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(lambda: register(run("first")))
            assert held.arrived.wait(10)
            variables.clear()
            second = pool.submit(lambda: register(run("second")))
            wait_for(lambda: "run first of DAG dag is sending it: waiting until" in caplog.text)
            held.go_on.set()

        assert second.result() == first.result()
        assert len(service.webhooks) == 1

    @CONCURRENT_MESSAGES.needed
    def test_what_another_task_has_stored_meanwhile_is_not_overwritten(
        self, service, supervisor, variables
    ):
        """The second task writes its Variable late, after the first has registered."""
        stored, checking = threading.Event(), threading.Event()

        def before(message):
            if (
                isinstance(message, comms.PutVariable)
                and threading.current_thread().name == "second"
            ):
                checking.set()
                assert stored.wait(20)

        supervisor.before = before
        second = threading.Thread(target=lambda: register(run("second")), name="second")
        second.start()
        checking.wait(2)
        register(run("first"))
        stored.set()
        second.join()

        (record,) = records(variables)
        assert [record["secret"]] == [webhook["signingSecret"] for webhook in service.webhooks]

    def test_a_registration_from_before_the_setting_is_found(
        self, service, connect, connection_extra
    ):
        state_conn_id = connection_extra.pop("state_conn_id")
        connect(service)
        first = register(run("1"))
        connect(service, state_conn_id=state_conn_id)

        assert register(run("2")) == first
        connect(service)
        assert register(run("3")) == first
        assert len(service.webhooks) == 1


MAX_STEPS = 20
"""Of an undisturbed registration, on any version of Airflow: transactions, and messages to the
supervisor.
"""


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("after", range(MAX_STEPS))
def test_a_task_killed_at_any_step_registers_nothing_twice(service, supervisor, after):
    is_killed = True
    with suppress(Killed), killed_after(after, supervisor, sql_ledger, "in_transaction"):
        register(run("1"))
        is_killed = False
    assert is_killed == (after == 0) or after not in (0, MAX_STEPS - 1)  # each step is covered

    for context in (run("2"), run("1", try_number=2), run("2", cleared=1), run("3")):
        try:
            assert ids(register(context)) == [1]
        except AirflowFailException as error:
            assert UNCERTAIN in str(error)  # noqa: PT017
        if context["ti"].run_id == "2":
            supervisor.variables.clear()  # as in another Airflow
    assert len(service.webhooks) <= 1


@pytest.mark.usefixtures("short_lease")
def test_after_the_request_the_variable_knows_and_other_airflows_are_told_that_it_is_uncertain(
    service, database, variables, caplog, monkeypatch
):
    monkeypatch.setattr(state_database, "MAX_REPEATS", 0)

    def go_away():
        database.execute("ALTER TABLE fsm_ledger RENAME TO elsewhere")

    service.fail("POST", "/settings/webhooks", faults.Before(go_away))
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="was made, and cannot be recorded"):
        register(run("1"))
    assert "was made, and cannot be recorded" in caplog.text
    database.execute("ALTER TABLE elsewhere RENAME TO fsm_ledger")

    assert ids(register(run("1", try_number=2))) == ids(register(run("2"))) == [1]
    variables.clear()  # as in another Airflow
    with pytest.raises(AirflowFailException, match=UNCERTAIN):
        register(run("2"))
    assert len(service.webhooks) == 1


def registers(service, connect, supervisor):
    register_for_receiver(run("1"), event_types=BOTH)


def is_refused(service, connect, supervisor):
    service.fail("POST", "/settings/webhooks", Echo(409))
    register_for_receiver(run("1"))


def fails(service, connect, supervisor):
    service.fail("POST", "/settings/webhooks", Echo(503))
    register_for_receiver(run("1"))


def is_for_other_event_types(service, connect, supervisor):
    other = faults.Rewrite(lambda webhook: {**webhook, "eventTypes": ["jobs.other"]})
    service.fail("POST", "/settings/webhooks", other)
    register_for_receiver(run("1"), event_types=BOTH)


def cannot_be_stored(service, connect, supervisor):
    def fail(message):
        if isinstance(message, comms.PutVariable) and '"registration"' in message.value:
            raise AirflowRuntimeError(comms.ErrorResponse())

    supervisor.before = fail
    register_for_receiver(run("1"))


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (registers, None),
        (is_refused, "no such host"),
        (fails, "no such host"),
        (is_for_other_event_types, "webhook 1 was not registered for"),
        (cannot_be_stored, "webhook 1 was registered, but Variable"),
    ],
)
def test_neither_token_nor_signing_secret_reaches_the_database_or_an_error(
    service, connect, supervisor, variables, database, monkeypatch, attempt, says
):
    monkeypatch.setattr("time.sleep", lambda _: None)
    variables["fsm_webhooks"] = json.dumps(RECEIVER)
    with pytest.raises(AirflowException, match=says) if says else nullcontext() as refused:
        attempt(service, connect, supervisor)

    secrets = [webhook["signingSecret"] for webhook in service.webhooks]
    tables = sqlalchemy.inspect(database.engine).get_table_names()
    text = repr([[tuple(row) for row in database.rows(table)] for table in tables])
    assert VARIABLE in text
    text += str(refused and refused.value)
    if database.connection["conn_type"] == "sqlite":  # also the bytes of its file
        text += Path(database.connection["host"]).read_bytes().decode(errors="replace")
    assert tokens(variables)
    assert secrets
    assert [secret for secret in tokens(variables) + secrets if secret in text] == []
