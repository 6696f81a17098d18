"""Registering webhooks: each is sent once, and its Variable holds the signing secret and the path token.

The tasks use Airflow's own SDK against the supervisor of ``tests.unit.supervisor``.
"""

import json
import logging
from contextlib import contextmanager, suppress

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from fsm_provider.api import FsmInputError
from fsm_provider.api.errors import FsmNotSentError
from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import SUPERVISOR_MASKS, VARIABLE_KEYS
from tests.unit.state_store import IN_AIRFLOW, MemoryStateStore, context_for
from tests.unit.supervisor import AirflowRuntimeError, comms

pytestmark = pytest.mark.usefixtures("supervisor")

TARGET = "https://hooks.example.com/fsm"
VARIABLE = "fsm_webhook_secret_fsm_default_jobs_"
"""How the names of registrations begin."""
UNCERTAIN = "may or may not have taken effect"
RECEIVER = {
    "base_url": "https://airflow.example.com",
    "endpoints": {"fsm_default/jobs": {"signature": "standard-webhooks"}},
}


def operator(**kwargs):
    given = {"object": "jobs", "event_types": ["jobs.created", "jobs.closed"], "target_url": TARGET}
    return FsmRegisterWebhookOperator(task_id="register", **{**given, **kwargs})


def register(context=None, **kwargs):
    return operator(**kwargs).execute(context or context_for(MemoryStateStore()))


def run(number):
    """The context of another run of the DAG."""
    return context_for(MemoryStateStore(), run_id=f"run-{number}")


def records(variables):
    """What is stored of each registration."""
    return [json.loads(text) for name, text in variables.items() if name.startswith(VARIABLE)]


def events_for(service):
    return [webhook["eventTypes"] for webhook in service.webhooks]


class TestRequests:
    def test_several_event_types_are_one_registration_each(self, service, connect):
        connect(service)

        registered = register(description="from Airflow")

        assert [webhook["eventTypes"] for webhook in registered] == [["jobs.created"], ["jobs.closed"]]
        assert [dict(request.query) for request in service.requests] == [
            {"description": "from Airflow", "object": "jobs", "eventTypes": event, "targetURL": TARGET}
            for event in ("jobs.created", "jobs.closed")
        ]

    @pytest.mark.parametrize(
        ("style", "reads"), [("repeat", "all"), ("brackets", "brackets"), ("comma", "comma")]
    )
    def test_a_style_that_the_service_supports_makes_one_registration(self, service, connect, style, reads):
        service.settings.event_types_style = reads
        connect(service, event_types_style=style)

        (webhook,) = register()

        assert webhook["eventTypes"] == ["jobs.created", "jobs.closed"]

    @pytest.mark.parametrize(
        ("argument", "message"),
        [
            ({"object": "forms"}, "webhook.object"),
            ({"event_types": []}, "webhook.event_types"),
            ({"event_types": ["assets.created"]}, "webhook.event_types"),
            ({"event_types": ["created"]}, "webhook.event_types"),
            ({"target_url": "/hooks"}, "webhook.target_url"),
            ({"object": "forms", "target_url": None}, "webhook.object"),
            ({"if_uncertain": "perhaps"}, "if_uncertain"),
        ],
    )
    def test_a_bad_registration_is_refused_when_the_dag_is_parsed(self, argument, message):
        with pytest.raises(FsmInputError, match=rf"^{message}"):
            operator(**argument)

    def test_templates_are_checked_when_the_task_runs(self, service, connect):
        connect(service)
        task = operator(object="{{ watched }}")
        task.render_template_fields({"watched": "forms"})

        with pytest.raises(AirflowFailException, match=r"webhook\.object"):
            task.execute(context_for(MemoryStateStore()))
        assert service.requests == []


class TestTheSecret:
    def test_it_goes_to_the_variable_of_its_registration_and_nowhere_else(self, service, connect, supervisor):
        connect(service)
        store = MemoryStateStore()

        registered = register(context_for(store))

        assert len(supervisor.variables) == 2
        for record, webhook, returned in zip(
            records(supervisor.variables), service.webhooks, registered, strict=True
        ):
            assert record["secret"] == webhook["signingSecret"]
            assert (record["registration"], record["for"]) == (returned, "fsm_default/jobs")
            assert returned["id"] == webhook["id"]
        secrets = {webhook["signingSecret"] for webhook in service.webhooks}
        elsewhere = json.dumps(
            [registered, store.kept, [one["registration"] for one in records(supervisor.variables)]]
        )
        assert not any(secret in elsewhere for secret in secrets)
        assert not SUPERVISOR_MASKS.is_there or secrets <= set(supervisor.masked)

    def test_nothing_is_registered_if_it_could_not_be_stored(self, service, connect, supervisor, monkeypatch):
        monkeypatch.setattr("time.sleep", lambda _: None)
        connect(service)
        store = MemoryStateStore()
        supervisor.refuse(comms.PutVariable)

        with pytest.raises(FsmNotSentError, match=r"could not be read or written \(.*\): nothing was sent"):
            register(context_for(store))
        assert service.requests == []

        supervisor.before = lambda message: None
        assert len(register(context_for(store))) == 2

    @pytest.mark.parametrize("saved", ["a secret of somebody", "[]", '"text"', "7"])
    def test_a_variable_that_holds_something_else_is_not_overwritten(
        self, service, connect, variables, saved
    ):
        connect(service)
        register(event_types="jobs.created")
        (name,) = variables
        variables[name] = saved

        with pytest.raises(AirflowFailException, match=f"Variable {name}: does not hold a registration"):
            register(run(2), event_types="jobs.created")
        assert variables == {name: saved}
        assert len(service.webhooks) == 1

    @VARIABLE_KEYS.needed  # before, the row in the database says that it is registered
    def test_one_that_cannot_be_read_for_a_while_is_not_overwritten(self, service, connect, supervisor):
        connect(service)
        register(run(1), event_types="jobs.created")
        before = dict(supervisor.variables)

        def lost(message):
            # The Execution API reports "not found" when its database is away.
            if isinstance(message, comms.GetVariable) and message.key in before:
                raise RuntimeError("the response was lost")

        supervisor.before = lost

        with pytest.raises(
            (AirflowException, RuntimeError), match=r"could not be read|the response was lost"
        ):
            register(run(2), event_types="jobs.created")
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
            register(context_for(store), event_types="jobs.created")
            assert records(supervisor.variables)[0]["secret"] == service.webhooks[0]["signingSecret"]
            return
        for cleared in (0, 0, 1):
            with pytest.raises(
                AirflowFailException, match="webhook 1 was registered, but Variable"
            ) as caught:
                register(context_for(store, cleared=cleared), event_types="jobs.created")
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
                register(run(number), fsm_conn_id=conn_id, event_types="jobs.created")

            stored = {one["for"]: one["secret"] for one in map(json.loads, variables.values())}
            assert stored == {
                "fsm_default/jobs": service.webhooks[0]["signingSecret"],
                "fsm_other/jobs": other.webhooks[0]["signingSecret"],
            }


MAX_MESSAGES = 24
"""Of an undisturbed registration, on any version of Airflow: to the supervisor, and writes to the ledger."""


class Killed(BaseException):
    """A kill: nobody catches it."""


@contextmanager
def killed_after(messages, supervisor, context):
    """Let ``messages`` messages of the task pass, then kill it; yield those that have passed."""
    store, passed = context["task_state_store"], []

    def pass_on(message):
        if len(passed) == messages:
            raise Killed
        passed.append(message)

    def pass_on_and_set(key, value, *, retention=None):
        pass_on(key)
        MemoryStateStore.set(store, key, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "before", pass_on)
        patch.setattr(store, "set", pass_on_and_set)
        yield passed


class TestOnce:
    @pytest.fixture(autouse=True)
    def connected(self, store, service, connect):
        connect(service)

    def test_a_retry_a_clear_another_run_and_another_dag_register_nothing(self, service, store, variables):
        contexts = [context_for(store, cleared=cleared) for cleared in (0, 0, 1)] + [run(2), run(3)]
        contexts[-1]["ti"].dag_id = "another"

        results = [register(context) for context in contexts]

        assert results == [results[0]] * 5
        assert events_for(service) == [["jobs.created"], ["jobs.closed"]]
        assert len(service.requests) == len(records(variables)) == 2

    def test_other_event_types_and_targets_are_registered(self, service):
        register(run(1))

        register(run(2), event_types=["jobs.created", "jobs.updated"])
        register(run(3), target_url=TARGET + "/2", event_types="jobs.created")

        assert events_for(service)[2:] == [["jobs.updated"], ["jobs.created"]]

    @pytest.mark.parametrize("status", [403, 409])
    def test_a_refused_registration_is_sent_again_by_a_retry_and_the_other_is_not(
        self, service, store, status
    ):
        service.fail("POST", "/settings/webhooks", faults.Status(status), call=2)

        with pytest.raises(AirflowFailException, match=str(status)):
            register(context_for(store))
        assert [one["id"] for one in register(context_for(store))] == [1, 2]
        assert events_for(service) == [["jobs.created"], ["jobs.closed"]]

    @pytest.mark.usefixtures("short_lease")
    def test_an_uncertain_registration_is_sent_again_only_if_the_options_allow_it(self, service, store):
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True), call=2)
        service.fail("POST", "/settings/webhooks", faults.Status(403), call=3)
        for cleared, options in enumerate([{}, {}, {"if_uncertain": "create"}, {}]):
            with pytest.raises(AirflowFailException, match=rf"{UNCERTAIN}(.|\n)*ledger settle .*{VARIABLE}"):
                register(context_for(store, cleared=cleared), **options)
        assert events_for(service) == [["jobs.created"], ["jobs.closed"]]

        registered = register(context_for(store, cleared=4), if_uncertain="create")

        assert [one["id"] for one in registered] == [1, 3]

    def test_a_registration_for_other_event_types_is_uncertain(self, service, connect, store, variables):
        connect(service, event_types_style="repeat")

        for cleared in (0, 1):
            with pytest.raises(AirflowFailException, match="webhook 1 was not registered for jobs"):
                register(context_for(store, cleared=cleared))
        assert len(service.webhooks) == 1
        assert "secret" not in records(variables)[0]

    def test_a_registration_whose_variable_was_deleted_is_not_sent_again(
        self, service, store, variables, caplog
    ):
        first = register(context_for(store))
        variables.clear()

        again = register(context_for(store))

        assert [one["id"] for one in again] == [one["id"] for one in first]
        assert "with its signing secret, is not in this Airflow" in caplog.text
        assert len(service.webhooks) == 2

    @IN_AIRFLOW
    @pytest.mark.parametrize("left", ["ledger and variables", "ledger"])
    @pytest.mark.parametrize("after", range(MAX_MESSAGES))
    def test_a_task_killed_at_any_message_registers_nothing_twice(
        self, service, supervisor, store, after, left
    ):
        context = context_for(store)
        with suppress(Killed), killed_after(after, supervisor, context):
            register(context, event_types="jobs.created")
        if left == "ledger":
            supervisor.variables.clear()

        for _ in range(2):
            try:
                assert register(context, event_types="jobs.created")[0]["id"] == 1
            except AirflowFailException as error:
                assert UNCERTAIN in str(error)  # noqa: PT017
        assert len(service.webhooks) <= 1

    @IN_AIRFLOW
    def test_the_kills_cover_every_message(self, supervisor, store):
        context = context_for(store)

        with killed_after(None, supervisor, context) as messages:
            register(context, event_types="jobs.created")

        assert MAX_MESSAGES - 16 < len(messages) <= MAX_MESSAGES


class TestTheReceiversUrl:
    @pytest.fixture(autouse=True)
    def configured(self, variables):
        variables["fsm_webhooks"] = json.dumps(RECEIVER)

    def tokens(self, variables):
        return [record["token"] for record in records(variables)]

    def test_it_is_registered_with_a_token_that_is_never_shown(self, service, connect, supervisor):
        connect(service)
        store = MemoryStateStore()

        (registered,) = register(context_for(store), target_url=None, event_types="jobs.created")

        (token,) = self.tokens(supervisor.variables)
        shown = "https://airflow.example.com/fsm/webhooks/fsm_default/jobs/"
        assert len(token) >= 43
        assert service.webhooks[0]["targetURL"] == shown + token
        assert registered["targetURL"] == shown + "***"
        (record,) = records(supervisor.variables)
        assert token not in json.dumps([registered, store.kept, record["registration"]])
        assert not SUPERVISOR_MASKS.is_there or token in supervisor.masked

    def test_each_registration_keeps_a_token_of_its_own(self, service, connect, variables):
        connect(service)

        for number in range(2):
            register(run(number), target_url=None)

        assert len(service.webhooks) == 2
        assert len(set(self.tokens(variables))) == 2

    def test_the_token_is_accepted_before_it_is_registered(self, service, connect, variables):
        connect(service)
        seen = []
        service.fail("POST", "/settings/webhooks", faults.Before(lambda: seen.append(self.tokens(variables))))

        register(target_url=None, event_types="jobs.created")

        assert seen == [self.tokens(variables)]

    def test_an_error_does_not_quote_the_token(self, service, connect, variables):
        connect(service)

        class Echo:
            async def play(self, exchange):
                token = exchange.request.query_params["targetURL"].rpartition("/")[2]
                await exchange.respond(faults.Response(409, f"no such host, at {token}".encode()))

        service.fail("POST", "/settings/webhooks", Echo())

        with pytest.raises(AirflowFailException, match="no such host, at ") as caught:
            register(target_url=None, event_types="jobs.created")
        assert self.tokens(variables)[0] not in str(caught.value)

    def test_no_log_holds_the_token_even_at_debug(self, service, connect, variables, caplog):
        caplog.set_level(logging.DEBUG)
        connect(service)

        register(target_url=None, event_types="jobs.created")

        (token,) = self.tokens(variables)
        logged = [record for record in caplog.records if not record.name.startswith("uvicorn")]
        assert not [record for record in logged if token in record.getMessage()]

    @pytest.mark.parametrize(
        ("configuration", "message"),
        [
            (None, "no Variable fsm_webhooks"),
            ({"endpoints": RECEIVER["endpoints"]}, "no Variable fsm_webhooks has a base_url"),
            ({**RECEIVER, "endpoints": {}}, "and an endpoint 'fsm_default/jobs'"),
            (
                {**RECEIVER, "endpoint": {}},
                "Variable fsm_webhooks: endpoint: is not a setting",
            ),
        ],
    )
    def test_without_a_configured_receiver_a_target_url_is_needed(
        self, service, connect, variables, configuration, message
    ):
        connect(service)
        del variables["fsm_webhooks"]
        if configuration is not None:
            variables["fsm_webhooks"] = json.dumps(configuration)

        with pytest.raises(AirflowFailException, match=message):
            register(target_url=None)
        assert service.requests == []
