"""Registering webhooks: each is sent once, and where the signing secret and the path token go.

The tasks use Airflow's own SDK against the supervisor of ``tests.unit.supervisor``.
"""

import json
import logging
import threading
import types
from contextlib import contextmanager, suppress

import pytest
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    BaseOperator,
)

from fsm_provider.api import FsmInputError, FsmUncertainWriteError
from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.state.task import Task
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.writes.ledger import NothingSentError
from fsm_provider.writes.registrations import Registrations, variable_name
from tests.capabilities import SUPERVISOR_MASKS, VARIABLE_KEYS
from tests.unit.state_store import MemoryStateStore, context_for
from tests.unit.supervisor import AirflowRuntimeError, comms

pytestmark = pytest.mark.usefixtures("supervisor")

TARGET = "https://hooks.example.com/fsm"
SECRETS = "fsm_webhook_secrets_fsm_default_jobs"
TOKENS = "fsm_webhook_secret_tokens_fsm_default_jobs"
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


def secrets_for(service):
    return [webhook["signingSecret"] for webhook in service.webhooks]


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
            ({"force": "perhaps"}, "force"),
            ({"if_uncertain": "perhaps"}, "if_uncertain"),
            ({"secret_store": print, "secret_variable": "c"}, "secret_store: cannot be combined"),
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
    def test_it_goes_to_the_variable_and_nowhere_else(self, service, connect, supervisor):
        connect(service)
        store = MemoryStateStore()

        registered = register(context_for(store))

        secrets = {f"fsm_default/jobs/{one['id']}": one["signingSecret"] for one in service.webhooks}
        assert json.loads(supervisor.variables.pop(SECRETS)) == secrets
        assert len(set(secrets.values())) == 2
        elsewhere = json.dumps([registered, supervisor.variables, store.kept])
        assert not any(secret in elsewhere for secret in secrets.values())
        assert not SUPERVISOR_MASKS.is_there or set(secrets.values()) <= set(supervisor.masked)

    def test_the_secrets_of_earlier_registrations_stay(self, service, connect, variables):
        connect(service)
        variables["mine"] = json.dumps({"900": "earlier"})

        register(secret_variable="mine")

        assert json.loads(variables["mine"]).keys() == {"900", "fsm_default/jobs/1", "fsm_default/jobs/2"}

    def test_nothing_is_registered_if_it_could_not_be_stored(self, service, connect, supervisor):
        connect(service)
        supervisor.refuse(comms.PutVariable)

        with pytest.raises(AirflowRuntimeError):
            register()
        assert service.requests == []

    def test_a_variable_that_holds_something_else_is_not_overwritten(self, service, connect, variables):
        connect(service)
        variables[SECRETS] = "a secret of somebody"

        with pytest.raises(AirflowFailException, match="does not hold a JSON object"):
            register()
        assert service.requests == []
        assert variables[SECRETS] == "a secret of somebody"

    def test_secrets_that_cannot_be_read_for_a_while_are_not_overwritten(self, service, connect, supervisor):
        connect(service)
        supervisor.variables[SECRETS] = json.dumps({"900": "earlier"})

        def lost(message):
            # The Execution API reports "not found" when its database is away.
            if isinstance(message, comms.GetVariable) and message.key == SECRETS:
                raise RuntimeError("the response was lost")

        supervisor.before = lost

        unreadable = f"Variable {SECRETS} exists, but could not be read|the response was lost"
        with pytest.raises((AirflowException, RuntimeError), match=unreadable):
            register()
        assert service.requests == []
        assert json.loads(supervisor.variables[SECRETS]) == {"900": "earlier"}

    def test_a_function_stores_it(self, service, connect, variables, stores):
        connect(service)

        register(secret_store=stores.put)

        assert stores.stored == {
            "fsm_default/jobs/probe": "",
            **{f"fsm_default/jobs/{one['id']}": one["signingSecret"] for one in service.webhooks},
        }
        assert SECRETS not in variables

    def test_nothing_is_registered_if_the_function_fails_the_check(self, service, connect, stores):
        connect(service)

        with pytest.raises(Exception, match=r"secret_store \S*fail raised OSError"):
            register(secret_store=stores.fail)
        assert service.requests == []

    @pytest.mark.parametrize("given", ["os.system", "{{ var.value.store }}", "put", ["os.system"], 7])
    def test_no_text_names_code(self, given):
        with pytest.raises(FsmInputError, match=r"^secret_store: should be the function itself"):
            operator(secret_store=given)

    def test_an_xcom_of_a_mapped_task_names_no_code(self):
        """As in a worker, with ``expand(secret_store=<XCom>)``."""
        with DAG("dag", schedule=None):
            upstream = BaseOperator(task_id="upstream")
            mapped = FsmRegisterWebhookOperator.partial(
                task_id="register", object="jobs", event_types="jobs.created"
            ).expand(secret_store=upstream.output)

        with pytest.raises(FsmInputError, match=r"^secret_store: should be the function itself"):
            mapped.unmap({"secret_store": "os.system"})

    def test_no_template_names_code(self):
        assert "secret_store" not in FsmRegisterWebhookOperator.template_fields

    def test_a_registration_whose_secret_was_not_stored_is_reported_and_not_repeated(
        self, service, connect, stores
    ):
        connect(service)

        for number in range(2):
            with pytest.raises(AirflowFailException, match="webhook 1 was registered, but its") as caught:
                register(run(number), secret_store=stores.fail_on_secret)
            chain = [caught.value, caught.value.__context__, caught.value.__context__.__context__]
            assert not any(secret in repr(error) for secret in secrets_for(service) for error in chain)
        assert len(service.webhooks) == 1

    def test_a_failed_write_of_the_variable_is_repeated(self, service, connect, supervisor, monkeypatch):
        monkeypatch.setattr("time.sleep", lambda _: None)
        connect(service)
        writes = []

        def fails_twice(message):
            if isinstance(message, comms.PutVariable) and message.key == SECRETS:
                writes.append(message)
                if len(writes) in (2, 3):
                    raise AirflowRuntimeError(comms.ErrorResponse())

        supervisor.before = fails_twice

        register(event_types="jobs.created")

        assert json.loads(supervisor.variables[SECRETS]) == {"fsm_default/jobs/1": secrets_for(service)[0]}


class TestOneVariableForTwoAccounts:
    @pytest.fixture
    def accounts(self, service, connect, monkeypatch):
        """Two services, each of which numbers its webhooks from 1, and a connection to each."""
        with FakeFieldService() as other:
            connect(service)
            monkeypatch.setenv("AIRFLOW_CONN_FSM_OTHER", other.connection_json())
            yield {"fsm_default": service, "fsm_other": other}

    def test_the_secrets_of_both_are_stored(self, accounts, variables):
        for number, fsm_conn_id in enumerate(accounts):
            register(
                run(number), fsm_conn_id=fsm_conn_id, secret_variable="shared", event_types="jobs.created"
            )

        assert json.loads(variables["shared"]) == {
            f"{fsm_conn_id}/jobs/1": secrets_for(account)[0] for fsm_conn_id, account in accounts.items()
        }

    @VARIABLE_KEYS.needed
    def test_the_secrets_of_two_concurrent_tasks_are_stored(self, accounts, supervisor):
        """The second task starts after the first has read the Variable and before it writes it."""
        shared = {"secret_variable": "shared", "event_types": "jobs.created"}
        writes, listings, it_waits = [], [], threading.Event()

        def other():
            register(run(2), fsm_conn_id="fsm_other", **shared)
            it_waits.set()

        thread = threading.Thread(target=other)

        def before(message):
            if threading.current_thread() is thread:
                if isinstance(message, comms.GetVariableKeys) and "claim" in message.prefix:
                    listings.append(message)
                    if len(listings) > 3:
                        it_waits.set()
            elif isinstance(message, comms.PutVariable) and message.key == "shared":
                writes.append(message)
                if len(writes) == 2:
                    thread.start()
                    assert it_waits.wait(20)

        supervisor.before = before
        register(run(1), **shared)
        thread.join()

        assert json.loads(supervisor.variables["shared"]).keys() == {"fsm_default/jobs/1", "fsm_other/jobs/1"}

    def test_a_secret_that_is_missing_when_it_is_read_back_is_written_again(
        self, service, connect, supervisor, monkeypatch
    ):
        monkeypatch.setattr("time.sleep", lambda _: None)
        connect(service)
        overwritten = []

        def overwritten_once(message):
            """A person saves the Variable in Airflow's UI, as it was."""
            if supervisor.variables.get(SECRETS, "{}") != "{}" and not overwritten:
                overwritten.append(message)
                supervisor.variables[SECRETS] = "{}"

        supervisor.before = overwritten_once

        register(event_types="jobs.created")

        assert json.loads(supervisor.variables[SECRETS]) == {"fsm_default/jobs/1": secrets_for(service)[0]}


@pytest.fixture
def stores():
    module = types.SimpleNamespace(stored={})

    def fail(key, secret):
        raise OSError(f"cannot write {secret}")

    def fail_on_secret(key, secret):
        if secret:
            raise OSError(f"cannot write {secret}")

    module.put, module.fail, module.fail_on_secret = module.stored.__setitem__, fail, fail_on_secret
    return module


MAX_MESSAGES = 29
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
    def test_another_run_or_dag_registers_nothing(self, service, connect, variables):
        connect(service)

        results = [register(run(number)) for number in range(3)]

        assert results == [results[0]] * 3
        assert events_for(service) == [["jobs.created"], ["jobs.closed"]]
        assert not [name for name in variables if "claim" in name]

    def test_other_event_types_and_targets_are_registered(self, service, connect):
        connect(service)
        register(run(1))

        register(run(2), event_types=["jobs.created", "jobs.updated"])
        register(run(3), target_url=TARGET + "/2", event_types="jobs.created")

        assert events_for(service)[2:] == [["jobs.updated"], ["jobs.created"]]

    def test_a_retry_and_a_cleared_task_register_nothing_again(self, service, connect):
        connect(service)
        store = MemoryStateStore()

        results = [register(context_for(store, cleared=cleared)) for cleared in (0, 0, 1)]

        assert results == [results[0]] * 3
        assert len(service.webhooks) == 2

    @pytest.mark.parametrize("left", ["ledger and variables", "ledger", "variables"])
    @pytest.mark.parametrize("after", range(MAX_MESSAGES))
    def test_a_task_killed_at_any_message_registers_nothing_twice(
        self, service, connect, supervisor, after, left
    ):
        connect(service)
        context = context_for(MemoryStateStore())
        with suppress(Killed), killed_after(after, supervisor, context):
            register(context, event_types="jobs.created")
        if left == "ledger":
            for name in [name for name in supervisor.variables if name.startswith("fsm_webhook_fsm")]:
                del supervisor.variables[name]
        if left == "variables":
            context = run(2)  # another run, which does not see the ledger
            for name in [name for name in supervisor.variables if "claim" in name]:
                del supervisor.variables[name]  # as the error asks people to do

        for _ in range(2):
            try:
                assert register(context, event_types="jobs.created")[0]["id"] == 1
            except AirflowFailException as error:
                assert "may or may not have taken effect" in str(error)  # noqa: PT017
        assert len(service.webhooks) <= 1

    def test_the_kills_cover_every_message(self, service, connect, supervisor):
        connect(service)
        context = context_for(MemoryStateStore())

        with killed_after(None, supervisor, context) as messages:
            register(context, event_types="jobs.created")

        assert MAX_MESSAGES - 10 < len(messages) <= MAX_MESSAGES

    def test_force_registers_again_and_replaces_the_saved_registration(self, service, connect):
        connect(service)
        register(run(1), event_types="jobs.created")

        (forced,) = register(run(2), event_types="jobs.created", force=True)
        (later,) = register(run(3), event_types="jobs.created")

        assert forced["id"] == later["id"] == 2

    def test_force_registers_again_after_a_clear_but_not_in_a_retry(self, service, connect):
        connect(service)
        store = MemoryStateStore()

        ids = [
            register(context_for(store, cleared=cleared), event_types="jobs.created", force="true")[0]["id"]
            for cleared in (0, 0, 1, 1)
        ]

        assert ids == [1, 1, 2, 2]

    def test_a_refused_registration_is_sent_again_by_a_retry(self, service, connect):
        connect(service)
        store = MemoryStateStore()
        service.fail("POST", "/settings/webhooks", faults.Status(409))

        with pytest.raises(AirflowFailException, match="409"):
            register(context_for(store))
        assert len(register(context_for(store))) == 2

    def test_a_refused_force_leaves_the_saved_registration(self, service, connect):
        connect(service)
        register(run(1), event_types="jobs.created")
        service.fail("POST", "/settings/webhooks", faults.Status(403))

        with pytest.raises(AirflowFailException, match="403"):
            register(run(2), event_types="jobs.created", force=True)

        assert register(run(3), event_types="jobs.created")[0]["id"] == 1

    def test_an_uncertain_registration_is_uncertain_for_every_run(self, service, connect):
        connect(service)
        store = MemoryStateStore()
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True), call=2)

        for context in (context_for(store), context_for(store), run(2)):
            with pytest.raises(AirflowFailException, match=r"object 'jobs', eventTypes \['jobs.closed'\]"):
                register(context)
        assert events_for(service) == [["jobs.created"], ["jobs.closed"]]

    @pytest.mark.parametrize("force", [False, True])
    def test_a_refusal_leaves_an_uncertain_registration_uncertain(self, service, connect, force):
        connect(service)
        decision = {"if_uncertain": "create", "force": force}
        store = MemoryStateStore()
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True))
        service.fail("POST", "/settings/webhooks", faults.Status(403), call=2)

        attempts = [({}, context_for(store)), (decision, context_for(store, cleared=1))]
        attempts += [({}, context_for(store, cleared=2)), ({}, run(2))]
        for options, context in attempts:
            with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
                register(context, event_types="jobs.created", **options)
        assert len(service.webhooks) == 1

    def test_an_uncertain_registration_outlives_its_run(self, service, connect):
        connect(service)
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True))
        with pytest.raises(AirflowFailException):
            register(run(1), event_types="jobs.created")

        # The run is deleted, with its state, and triggered again under the same ID.
        with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
            register(run(1), event_types="jobs.created")
        assert len(service.webhooks) == 1

    def test_another_run_fails_with_the_same_error(self, service, connect):
        connect(service)
        service.fail("POST", "/settings/webhooks", faults.Status(503))
        with pytest.raises(AirflowFailException) as first:
            register(run(1), event_types="jobs.created")

        with pytest.raises(AirflowFailException) as second:
            register(run(2), event_types="jobs.created")

        assert isinstance(second.value.__context__, FsmUncertainWriteError)
        assert str(second.value) == str(first.value)

    @pytest.mark.parametrize("decision", [{"if_uncertain": "create"}, {"force": True}])
    def test_an_uncertain_registration_is_sent_again_if_the_options_allow_it(
        self, service, connect, decision
    ):
        connect(service)
        service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True))
        with pytest.raises(AirflowFailException):
            register(run(1), event_types="jobs.created")

        (registered,) = register(run(2), event_types="jobs.created", **decision)

        assert registered["id"] == 2

    def test_a_registration_for_other_event_types_is_reported(self, service, connect, variables):
        connect(service, event_types_style="repeat")

        for number in range(2):
            with pytest.raises(AirflowFailException, match=r"webhook 1 was registered for \['jobs.closed'\]"):
                register(run(number))
        assert len(service.webhooks) == 1
        assert json.loads(variables[SECRETS]) == {"fsm_default/jobs/1": secrets_for(service)[0]}

    def test_nothing_is_registered_if_the_saved_registration_cannot_be_read(
        self, service, connect, supervisor
    ):
        connect(service)
        register(run(1), event_types="jobs.created")
        name = variable_name("fsm_default", "jobs", ["jobs.created"], TARGET)

        def lost(message):
            if isinstance(message, comms.GetVariable) and message.key == name:
                raise RuntimeError("the response was lost")

        supervisor.before = lost

        unreadable = r"could not be read|the response was lost"
        with pytest.raises((AirflowException, RuntimeError), match=unreadable):
            register(run(2), event_types="jobs.created")
        assert len(service.webhooks) == 1

    @pytest.mark.parametrize(
        "saved",
        [
            *("no JSON", "[]", "{}", '{"at": "2026-01-01T00:00:00+00:00", "by": {}}'),
            *({"result": None, "error": None}, {"error": {}}, {"error": {"type": "Nonsense"}}),
            {"error": {"type": "FsmUncertainWriteError"}},
        ],
        ids=str,
    )
    def test_nothing_is_registered_if_something_else_is_saved(self, service, connect, variables, saved):
        connect(service)
        name = variable_name("fsm_default", "jobs", ["jobs.created"], TARGET)
        by = {"dag_id": "dag", "run_id": "1", "task_id": "task", "map_index": -1}
        if isinstance(saved, dict):
            saved = json.dumps({"at": "2026-01-01T00:00:00+00:00", "by": by, **saved})
        variables[name] = saved

        with pytest.raises(AirflowFailException, match="does not hold a registration saved by this operator"):
            register(run(2), event_types="jobs.created")
        assert (service.webhooks, variables[name]) == ([], saved)

    def test_nothing_is_registered_if_the_registration_cannot_be_saved(self, service, connect, supervisor):
        connect(service)
        name = variable_name("fsm_default", "jobs", ["jobs.created"], TARGET)
        store = MemoryStateStore()

        def full(message):
            if isinstance(message, comms.PutVariable) and message.key == name:
                raise AirflowRuntimeError(comms.ErrorResponse())

        supervisor.before = full
        with pytest.raises(NothingSentError):
            register(context_for(store), event_types="jobs.created")
        supervisor.before = lambda _: None
        assert service.requests == []

        assert register(context_for(store), event_types="jobs.created")[0]["id"] == 1


class TestConcurrentTasks:
    @VARIABLE_KEYS.needed
    def test_many_tasks_register_once(self, service, connect, supervisor):
        connect(service)
        start, results, errors = threading.Barrier(8), [], []

        def one(number):
            start.wait()
            try:
                results.append(register(run(number), event_types="jobs.created"))
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=one, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert errors == []
        assert len(results) == 8
        assert len(service.webhooks) == 1
        assert not [name for name in supervisor.variables if "claim" in name]

    def test_a_retry_replaces_its_own_claim(self, service, connect, variables):
        connect(service)
        killed = Registrations("fsm_default", Task("dag", "run", "task", -1)).exclusive()
        killed.__enter__()

        assert len(register()) == 2
        assert not [name for name in variables if "claim" in name]


class TestTheReceiversUrl:
    @pytest.fixture(autouse=True)
    def configured(self, variables):
        variables["fsm_webhooks"] = json.dumps(RECEIVER)

    def tokens(self, variables):
        return [token for tokens in json.loads(variables[TOKENS]).values() for token in tokens]

    def test_it_is_registered_with_a_token_that_is_never_shown(self, service, connect, supervisor):
        connect(service)
        store = MemoryStateStore()

        (registered,) = register(context_for(store), target_url=None, event_types="jobs.created")

        (token,) = self.tokens(supervisor.variables)
        shown = "https://airflow.example.com/fsm/webhooks/fsm_default/jobs/"
        assert len(token) >= 43
        assert service.webhooks[0]["targetURL"] == shown + token
        assert registered["targetURL"] == shown + "***"
        elsewhere = {name: value for name, value in supervisor.variables.items() if name != TOKENS}
        assert token not in json.dumps([registered, store.kept, elsewhere])
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

    def test_force_replaces_the_token_once_the_new_one_is_registered(self, service, connect, variables):
        connect(service)
        register(run(1), target_url=None, event_types="jobs.created")
        (old,) = self.tokens(variables)
        service.fail("POST", "/settings/webhooks", faults.Status(409))
        with pytest.raises(AirflowFailException, match="409"):
            register(run(2), target_url=None, event_types="jobs.created", force=True)
        assert self.tokens(variables)[0] == old

        register(run(3), target_url=None, event_types="jobs.created", force=True)

        (new,) = self.tokens(variables)
        assert new != old
        assert service.webhooks[1]["targetURL"].endswith(new)

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
            ({"endpoints": RECEIVER["endpoints"]}, "has no base_url"),
            ({**RECEIVER, "endpoints": {}}, "has no endpoint 'fsm_default/jobs'"),
            (
                {**RECEIVER, "endpoint": {}},
                "Variable fsm_webhooks: endpoint: is not known: did you mean endpoints?",
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
