"""Registering webhooks: what is sent, and where the signing secret goes."""

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.api import FsmInputError
from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.testing import faults
from tests.unit.state_store import MemoryStateStore, context_of

TARGET = "https://hooks.example.com/fsm"


def register(**kwargs):
    given = {"object": "jobs", "event_types": ["jobs.created", "jobs.closed"], "target_url": TARGET}
    return FsmRegisterWebhookOperator(task_id="register", **{**given, **kwargs})


@pytest.fixture
def variables(monkeypatch):
    """Airflow's Variables, as a running task has them: its database is the system tests' affair."""
    stored = {}
    monkeypatch.setattr("fsm_provider.operators.webhooks.read_variable", stored.get)
    monkeypatch.setattr("fsm_provider.operators.webhooks.Variable.set", stored.__setitem__)
    return stored


def test_several_event_types_are_one_registration_each(service, connect, variables):
    connect(service)

    registered = register(description="from Airflow").execute({})

    assert [webhook["eventTypes"] for webhook in registered] == [["jobs.created"], ["jobs.closed"]]
    assert [dict(request.query) for request in service.requests] == [
        {"description": "from Airflow", "object": "jobs", "eventTypes": event, "targetURL": TARGET}
        for event in ("jobs.created", "jobs.closed")
    ]


def test_the_secrets_go_to_the_variable_and_not_into_the_result(service, connect, variables):
    connect(service)

    registered = register().execute({})

    secrets = {str(webhook["id"]): webhook["signingSecret"] for webhook in service.webhooks}
    assert json.loads(variables["fsm_webhook_secrets_fsm_default_jobs"]) == secrets
    assert len(set(secrets.values())) == 2
    assert not any(secret in json.dumps(registered) for secret in secrets.values())
    assert all("signingSecret" not in webhook for webhook in registered)


def test_secrets_of_earlier_registrations_are_kept(service, connect, variables):
    connect(service)
    variables["mine"] = json.dumps({"900": "earlier"})

    register(secret_variable="mine").execute({})

    assert json.loads(variables["mine"]).keys() == {"900", "1", "2"}


def test_nothing_is_registered_where_the_secret_could_not_be_kept(service, connect, monkeypatch, variables):
    connect(service)

    def refuse(key, value):
        raise PermissionError(key)

    monkeypatch.setattr("fsm_provider.operators.webhooks.Variable.set", refuse)

    with pytest.raises(PermissionError):
        register().execute({})
    assert service.requests == []


def test_a_registration_for_other_event_types_is_an_error_that_names_it(service, connect, variables):
    connect(service, event_types_style="repeat")

    with pytest.raises(AirflowFailException, match=r"webhook 1 was registered for \['jobs.closed'\] instead"):
        register().execute({})
    assert variables["fsm_webhook_secrets_fsm_default_jobs"] != "{}"


@pytest.mark.parametrize(
    ("style", "reads"), [("repeat", "all"), ("brackets", "brackets"), ("comma", "comma")]
)
def test_a_style_that_the_service_reads_makes_one_registration(service, connect, variables, style, reads):
    service.settings.event_types_style = reads
    connect(service, event_types_style=style)

    (webhook,) = register().execute({})

    assert webhook["eventTypes"] == ["jobs.created", "jobs.closed"]


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ({"object": "forms"}, "object"),
        ({"event_types": []}, "event_types"),
        ({"event_types": ["assets.created"]}, "event_types"),
        ({"event_types": ["created"]}, "event_types"),
        ({"target_url": "/hooks"}, "target_url"),
    ],
)
def test_a_bad_registration_is_refused_when_the_dag_is_parsed(argument, field):
    with pytest.raises(FsmInputError, match=rf"^webhook\.{field}"):
        register(**argument)


def test_templates_are_checked_when_the_task_runs(service, connect, variables):
    connect(service)
    operator = register(object="{{ watched }}")
    operator.render_template_fields({"watched": "forms"})

    with pytest.raises(AirflowFailException, match=r"webhook\.object"):
        operator.execute({})
    assert service.requests == []


def test_a_retry_and_a_cleared_task_register_nothing_again(service, connect, variables):
    connect(service)
    store = MemoryStateStore()

    results = [register().execute(context_of(store, cleared=cleared)) for cleared in (0, 0, 1)]

    assert results == [results[0]] * 3
    assert len(service.webhooks) == 2
    secrets = [webhook["signingSecret"] for webhook in service.webhooks]
    assert not any(secret in page for secret in secrets for page in store.kept.values())


def test_a_retry_registers_only_what_is_missing_and_reports_what_is_uncertain(service, connect, variables):
    connect(service)
    store = MemoryStateStore()
    service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True), call=2)

    for _ in range(2):
        with pytest.raises(AirflowFailException, match=r"object 'jobs', eventTypes \['jobs.closed'\]"):
            register().execute(context_of(store))
    assert [webhook["eventTypes"] for webhook in service.webhooks] == [["jobs.created"], ["jobs.closed"]]
