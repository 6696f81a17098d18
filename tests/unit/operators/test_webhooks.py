"""Registering webhooks: each is sent once, and its Variable holds the signing secret and the path
token.
"""

import json
import logging
from contextlib import suppress
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from fsm_provider.api.errors import FsmNotSentError
from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import SUPERVISOR_MASKS, VARIABLE_KEYS
from tests.unit.operators.webhooks import (
    BOTH,
    RECEIVER,
    TARGET,
    UNCERTAIN,
    VARIABLE,
    Killed,
    ids,
    killed_after,
    operator,
    records,
    register,
    register_for_receiver,
    run,
    tokens,
)
from tests.unit.state_store import IN_AIRFLOW, MemoryStateStore, context_for
from tests.unit.supervisor import AirflowRuntimeError, comms

pytestmark = pytest.mark.usefixtures("supervisor")
register_both = partial(register, event_types=BOTH)


def events_for(service):
    return [webhook["eventTypes"] for webhook in service.webhooks]


def test_several_event_types_are_one_registration_each(service, connect):
    connect(service)

    registered = register_both(run(1), description="from Airflow")

    assert [webhook["eventTypes"] for webhook in registered] == [["jobs.created"], ["jobs.closed"]]
    assert [dict(request.query) for request in service.requests] == [
        {"description": "from Airflow", "object": "jobs", "eventTypes": event, "targetURL": TARGET}
        for event in BOTH
    ]


def test_a_template_is_checked_once_it_is_rendered(service, connect):
    connect(service)
    task = operator(object="{{ watched }}")
    task.render_template_fields({"watched": "forms"})

    with pytest.raises(AirflowFailException, match=r"webhook\.object"):
        task.execute(run(1))
    assert service.requests == []


class TestTheSecret:
    def test_it_goes_to_the_variable_of_its_registration_and_nowhere_else(
        self, service, connect, supervisor
    ):
        connect(service)
        store = MemoryStateStore()

        registered = register_both(context_for(store))

        stored = records(supervisor.variables)
        assert len(stored) == len(supervisor.variables) == 2
        assert [value["secret"] for value in stored] == [
            webhook["signingSecret"] for webhook in service.webhooks
        ]
        assert [value["registration"] for value in stored] == registered
        assert {value["for"] for value in stored} == {"fsm_default/jobs"}
        assert ids(registered) == ids(service.webhooks)
        elsewhere = json.dumps([registered, store.kept])
        secrets = {value["secret"] for value in stored}
        assert not any(secret in elsewhere for secret in secrets)
        assert not SUPERVISOR_MASKS.is_there or secrets <= set(supervisor.masked)

    def test_nothing_is_registered_if_it_could_not_be_stored(
        self, service, connect, supervisor, monkeypatch
    ):
        monkeypatch.setattr("time.sleep", lambda _: None)
        connect(service)
        store = MemoryStateStore()
        supervisor.refuse(comms.PutVariable)

        with pytest.raises(
            FsmNotSentError, match=r"could not be read or written \(.*\): nothing was sent"
        ):
            register(context_for(store))
        assert service.requests == []

        supervisor.before = lambda message: None
        assert ids(register(context_for(store))) == [1]

    @pytest.mark.parametrize("saved", ["a secret of somebody", "[]", '"text"', "7"])
    def test_a_variable_that_holds_something_else_is_not_overwritten(
        self, service, connect, variables, saved
    ):
        connect(service)
        register(run(1))
        (name,) = variables
        variables[name] = saved

        with pytest.raises(
            AirflowFailException, match=f"Variable {name}: does not hold a registration"
        ):
            register(run(2))
        assert variables == {name: saved}
        assert len(service.webhooks) == 1

    @VARIABLE_KEYS.needed  # before, the row in the database says that it is registered
    def test_one_that_cannot_be_read_for_a_while_is_not_overwritten(
        self, service, connect, supervisor
    ):
        connect(service)
        register(run(1))
        before = dict(supervisor.variables)

        def lost(message):
            # The Execution API reports "not found" when its database is away.
            if isinstance(message, comms.GetVariable) and message.key in before:
                raise RuntimeError("the response was lost")

        supervisor.before = lost

        with pytest.raises(
            (AirflowException, RuntimeError), match=r"could not be read|the response was lost"
        ):
            register(run(2))
        assert supervisor.variables == before
        assert len(service.webhooks) == 1

    @pytest.mark.parametrize("failures", [2, 99])
    def test_a_failed_write_is_repeated_and_what_was_not_stored_is_reported_and_not_repeated(
        self, service, connect, supervisor, monkeypatch, failures
    ):
        monkeypatch.setattr("time.sleep", lambda _: None)
        connect(service)
        writes, store = [], MemoryStateStore()

        def fails(message):
            if isinstance(message, comms.PutVariable) and '"registration"' in message.value:
                writes.append(message)
                if len(writes) <= failures:
                    raise AirflowRuntimeError(comms.ErrorResponse())

        supervisor.before = fails

        if failures == 2:
            register(context_for(store))
            assert (
                records(supervisor.variables)[0]["secret"] == service.webhooks[0]["signingSecret"]
            )
            return
        for cleared in (0, 0, 1):
            with pytest.raises(
                AirflowFailException, match="webhook 1 was registered, but Variable"
            ) as caught:
                register(context_for(store, cleared=cleared))
            chain = [caught.value, caught.value.__context__, caught.value.__context__.__context__]
            shown = repr([*chain, store.kept])
            assert service.webhooks[0]["signingSecret"] not in shown
        assert len(service.webhooks) == 1

    def test_two_connections_to_accounts_that_number_alike_have_each_their_own(
        self, service, connect, monkeypatch, variables
    ):
        with FakeFieldService() as other:
            connect(service)
            monkeypatch.setenv("AIRFLOW_CONN_FSM_OTHER", other.connection_json())
            for number, conn_id in enumerate(("fsm_default", "fsm_other")):
                register(run(number), fsm_conn_id=conn_id)

            stored = {
                value["for"]: value["secret"] for value in map(json.loads, variables.values())
            }
            assert stored == {
                "fsm_default/jobs": service.webhooks[0]["signingSecret"],
                "fsm_other/jobs": other.webhooks[0]["signingSecret"],
            }


MAX_MESSAGES = 24
"""Of an undisturbed registration, on any version of Airflow: to the supervisor, and writes to the
ledger.
"""


class TestOnce:
    @pytest.fixture(autouse=True)
    def connected(self, store, service, connect):
        connect(service)

    def test_a_retry_a_clear_another_run_and_another_dag_register_nothing(
        self, service, store, variables
    ):
        contexts = [context_for(store, cleared=cleared) for cleared in (0, 0, 1)] + [run(2), run(3)]
        contexts[-1]["ti"].dag_id = "another"

        results = [register_both(context) for context in contexts]

        assert results == [results[0]] * 5
        assert events_for(service) == [["jobs.created"], ["jobs.closed"]]
        assert len(service.requests) == len(records(variables)) == 2

    @IN_AIRFLOW
    def test_what_another_task_has_registered_meanwhile_is_returned(
        self, service, supervisor, variables
    ):
        first = register(run(1))
        stored, reads = dict(variables), []
        variables.clear()

        def store_before_the_second_read(message):
            if isinstance(message, comms.GetVariable) and message.key in stored:
                reads.append(message)
                variables.update(stored if len(reads) == 2 else {})

        supervisor.before = store_before_the_second_read
        assert register(run(2)) == first
        assert len(service.webhooks) == 1

    def test_other_event_types_and_targets_are_registered(self, service):
        register_both(run(1))

        register(run(2), event_types=["jobs.created", "jobs.updated"])
        register(run(3), target_url=TARGET + "/2")

        assert events_for(service)[2:] == [["jobs.updated"], ["jobs.created"]]

    @pytest.mark.parametrize("status", [403, 409])
    def test_a_refused_registration_is_sent_again_by_a_retry_and_the_other_is_not(
        self, service, store, status
    ):
        service.fail("POST", "/settings/webhooks", faults.Status(status), call=2)

        with pytest.raises(AirflowFailException, match=str(status)):
            register_both(context_for(store))
        assert ids(register_both(context_for(store))) == [1, 2]
        assert events_for(service) == [["jobs.created"], ["jobs.closed"]]

    @pytest.mark.usefixtures("short_lease")
    def test_an_uncertain_registration_is_sent_again_only_if_the_options_allow_it(
        self, service, store
    ):
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True), call=2)
        service.fail("POST", "/settings/webhooks", faults.Status(403), call=3)
        for cleared, options in enumerate([{}, {}, {"if_uncertain": "create"}, {}]):
            with pytest.raises(
                AirflowFailException, match=rf"{UNCERTAIN}(.|\n)*ledger settle .*{VARIABLE}"
            ):
                register_both(context_for(store, cleared=cleared), **options)
        assert events_for(service) == [["jobs.created"], ["jobs.closed"]]

        registered = register_both(context_for(store, cleared=4), if_uncertain="create")

        assert ids(registered) == [1, 3]

    def test_a_registration_for_other_event_types_is_uncertain(self, service, store, variables):
        other = faults.Rewrite(lambda webhook: {**webhook, "eventTypes": ["jobs.other"]})
        service.fail("POST", "/settings/webhooks", other)

        for cleared in (0, 1):
            with pytest.raises(AirflowFailException, match="webhook 1 was not registered for jobs"):
                register_both(context_for(store, cleared=cleared))
        assert events_for(service) == [["jobs.created"], ["jobs.closed"]]
        assert "secret" not in records(variables)[0]

    def test_a_registration_whose_variable_was_deleted_is_not_sent_again(
        self, service, store, variables, caplog
    ):
        first = register_both(context_for(store))
        variables.clear()

        again = register_both(context_for(store))

        assert ids(again) == ids(first)
        assert "with its signing secret, is not in this Airflow" in caplog.text
        assert len(service.webhooks) == 2

    @IN_AIRFLOW
    @pytest.mark.parametrize("after", range(MAX_MESSAGES))
    def test_a_task_killed_at_any_message_registers_nothing_twice(
        self, service, supervisor, store, after
    ):
        context = context_for(store)
        is_killed = True
        with suppress(Killed), killed_after(after, supervisor, store, "set"):
            register(context)
            is_killed = False
        assert is_killed == (after == 0) or after not in (
            0,
            MAX_MESSAGES - 1,
        )  # each message is covered

        for number in range(3):
            try:
                assert register(context)[0]["id"] == 1
            except AirflowFailException as error:
                assert UNCERTAIN in str(error)  # noqa: PT017
            if number == 1:
                supervisor.variables.clear()  # only the ledger is left
        assert len(service.webhooks) <= 1


class TestTheReceiversUrl:
    @pytest.fixture(autouse=True)
    def configured(self, service, connect, variables):
        variables["fsm_webhooks"] = json.dumps(RECEIVER)
        connect(service)

    def test_it_is_registered_with_a_token_that_is_never_shown(self, service, supervisor, caplog):
        caplog.set_level(logging.DEBUG)
        store, accepted = MemoryStateStore(), []
        before = faults.Before(lambda: accepted.extend(tokens(supervisor.variables)))
        service.fail("POST", "/settings/webhooks", before)

        (registered,) = register_for_receiver(context_for(store))

        (token,) = tokens(supervisor.variables)
        shown = "https://airflow.example.com/fsm/webhooks/fsm_default/jobs/"
        assert len(token) >= 43
        assert accepted == [token]  # by the receiver, before it was registered
        assert service.webhooks[0]["targetURL"] == shown + token
        assert registered["targetURL"] == shown + "***"
        (record,) = records(supervisor.variables)
        assert token not in json.dumps([registered, store.kept, record["registration"]])
        assert not SUPERVISOR_MASKS.is_there or token in supervisor.masked
        logged = [
            record.getMessage()
            for record in caplog.records
            if not record.name.startswith("uvicorn")
        ]
        assert logged
        assert not [message for message in logged if token in message]

    def test_each_registration_keeps_a_token_of_its_own(self, service, variables):
        for number in range(2):
            register_for_receiver(run(number), event_types=BOTH)

        assert len(service.webhooks) == 2
        assert len(set(tokens(variables))) == 2

    @pytest.mark.parametrize(
        ("configuration", "message"),
        [
            (None, "no Variable fsm_webhooks"),
            ({"endpoints": RECEIVER["endpoints"]}, "no Variable fsm_webhooks has a base_url"),
            ({**RECEIVER, "endpoints": {}}, "and an endpoint 'fsm_default/jobs'"),
            ({**RECEIVER, "endpoint": {}}, "Variable fsm_webhooks: endpoint: is not a setting"),
        ],
    )
    def test_without_a_configured_receiver_a_target_url_is_needed(
        self, service, variables, configuration, message
    ):
        del variables["fsm_webhooks"]
        if configuration is not None:
            variables["fsm_webhooks"] = json.dumps(configuration)

        with pytest.raises(AirflowFailException, match=message):
            register_for_receiver(run(1))
        assert service.requests == []
