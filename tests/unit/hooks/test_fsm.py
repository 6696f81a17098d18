"""The hook, with each form of an Airflow connection."""

import json
import sys
from types import ModuleType

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException, Connection

from fsm_provider.api import FsmApiError, FsmInputError
from fsm_provider.hooks.connection import settings_from
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.provider_info import get_provider_info
from fsm_provider.state.database import open_database
from fsm_provider.testing import faults
from tests.unit.conftest import TOKEN


def connection(*, extra=None, **fields):
    """Make a connection; an extra that is no text is written as JSON."""
    if isinstance(extra, dict):
        extra = json.dumps(extra)
    values = {"host": "https://api.example.com/v1", "password": "secret-token", **fields}
    return Connection(conn_id="fsm_default", conn_type="fsm", extra=extra, **values)


def test_the_uri_form_gives_the_same_as_the_json_form(monkeypatch):
    extra = {"page_size": "50", "page_size_param": "limit", "verify_ssl": "false"}
    uri = (
        "fsm://:secret-token@https%3A%2F%2Fapi.example.com%2Fv1/"
        "?page_size=50&page_size_param=limit&verify_ssl=false"
    )
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", uri)

    settings = settings_from(FsmHook.get_connection("fsm_default"))

    assert settings == settings_from(connection(extra=extra))
    assert settings.page_size == 50
    assert settings.verify_ssl is False
    assert settings.token.get_secret_value() == "secret-token"


def test_a_form_field_left_empty_has_its_default():
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    empty = dict.fromkeys(fields.keys() - {"api_version"})

    assert settings_from(connection(extra=empty)) == settings_from(connection())


@pytest.mark.parametrize("empty", [None, ""])
def test_an_emptied_api_version_sends_none(empty):
    emptied = settings_from(connection(extra={"api_version": empty}))
    default = settings_from(connection())

    assert emptied.api_version == ""
    assert default.api_version == "2.0"


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"host": None}, ["host"]),
        ({"host": "http://api.example.com"}, ["host", "allow_http"]),
        ({"password": None}, ["password"]),
        ({"password": "two words"}, ["password"]),
        ({"extra": "not json"}, ["extra"]),
        ({"extra": "[1]"}, ["extra"]),
        ({"extra": {"server_timezone": "\ud800"}}, ["extra"]),
        ({"extra": {"page_size": 0, "timeout": -1}}, ["page_size", "timeout"]),
        ({"extra": '{"timeout": NaN}'}, ["timeout"]),
        ({"host": "api.example.com", "port": 70_000}, ["host"]),
        ({"host": "api.example.com", "schema": "ftp"}, ["host"]),
    ],
)
def test_each_bad_field_is_named(fields, names):
    with pytest.raises(FsmInputError) as refused:
        settings_from(connection(**fields))

    message = str(refused.value)
    assert message.startswith("connection 'fsm_default': ")
    for name in names:
        assert name in message
    password = fields.get("password") or "secret-token"
    assert password not in message


def hook_for(monkeypatch, **fields):
    values = {"conn_type": "fsm", "password": "secret-token", **fields}
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps(values))
    return FsmHook()


@pytest.mark.parametrize(
    ("fields", "service"),
    [
        ({"host": "https://api.example.com/v1"}, "https://api.example.com/v1"),
        ({"host": "HTTPS://API.example.com:443/v1/"}, "https://api.example.com/v1"),
        ({"host": "api.example.com/v1", "port": 443}, "https://api.example.com/v1"),
        ({"host": "127.0.0.1", "schema": "http", "port": 80}, "http://127.0.0.1"),
        ({"host": "http://localhost:443"}, "http://localhost:443"),
        (
            {"host": "https://api.example.com", "login": " north "},
            "https://api.example.com (account north)",
        ),
        ({"host": "https://[::1]:443/v1"}, "https://[::1]/v1"),
        ({"host": "[::1]", "port": 8443}, "https://[::1]:8443"),
        (
            {"host": "https://api.example.com:8443/v1", "port": 8443},
            "https://api.example.com:8443/v1",
        ),
        ({"host": "https://[::1:8443]"}, "https://[::1:8443]"),
    ],
)
def test_a_service_is_the_same_for_each_way_to_write_its_url(monkeypatch, fields, service):
    hook = hook_for(monkeypatch, **fields)

    assert hook.settings.service == service


@pytest.mark.parametrize(
    "host",
    [
        "https://[::1/v1",
        "https://",
        "::1",
        "https://a:99999",
        "ftp://a",
    ],
)
def test_a_host_that_is_no_url_names_no_service(monkeypatch, host):
    hook = hook_for(monkeypatch, host=host)

    with pytest.raises(FsmInputError) as refused:
        _ = hook.settings.service

    assert str(refused.value) == (
        "connection 'fsm_default': host: should be a URL such as https://api.example.com/v1"
    )


def test_a_write_that_was_refused_for_the_old_token_is_made_once_with_the_new_one(service, connect):
    connect(service)
    hook = FsmHook()
    assert hook.client.settings.token.get_secret_value() == TOKEN
    service.settings.token = "rotated"
    connect(service)

    hook.create_job(7, {})

    first, second = service.requests
    assert first.status == 401
    assert second.status == 201
    assert len(service.jobs) == 1


@pytest.mark.parametrize(
    ("forms", "says"),
    [
        (1, "There is one page, of 1 form, so whether the cursor parameter 'cursor'"),
        (30, "the second page"),
    ],
)
def test_a_good_connection_passes(service, connect, forms, says):
    service.seed_forms(forms)
    connect(service)

    passed, message = FsmHook().test_connection()

    assert passed, message
    assert says in message
    assert len(service.requests) <= 2


def test_a_cursor_parameter_that_the_service_ignores_is_named(service, connect):
    service.seed_forms(30)
    service.settings.cursor_param = "after"
    connect(service, cursor_param="next")

    passed, message = FsmHook().test_connection()

    assert not passed
    assert "'next'" in message
    assert "cursor_param" in message


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (faults.Status(400, b"canary"), "400"),
        (faults.Status(401, b"canary"), "401"),
        (faults.Body("canary"), "JSON"),
    ],
    ids=["400", "401", "200"],
)
def test_what_another_host_answers_is_not_shown(service, connect, fault, says):
    service.fail("*", "*", fault, every=True)
    connect(service, max_retries=0)

    passed, message = FsmHook().test_connection()

    assert not passed
    assert says in message
    assert "canary" not in message


@pytest.mark.parametrize(("name", "place"), [("token", "password"), ("base_url", "host")])
def test_a_field_of_the_connection_is_no_setting_of_its_extra(service, connect, name, place):
    connect(service, **{name: "http://elsewhere"})
    message = f"extra: {name} is not one of its settings: it is .* {place}$"

    with pytest.raises(FsmInputError, match=message):
        _ = FsmHook().client


def test_airflow_before_3_2_gets_the_same_fields(monkeypatch):
    widgets = ModuleType("flask_appbuilder.fieldwidgets")
    widgets.BS3TextFieldWidget = object
    monkeypatch.setitem(sys.modules, "flask_appbuilder", ModuleType("flask_appbuilder"))
    monkeypatch.setitem(sys.modules, "flask_appbuilder.fieldwidgets", widgets)

    fields = FsmHook.get_connection_form_widgets()

    declared = get_provider_info()["connection-types"][0]["conn-fields"]
    kinds = {name: field.field_class.__name__ for name, field in fields.items()}
    assert fields.keys() == declared.keys()
    assert kinds["page_size"] == "IntegerField"
    assert kinds["verify_ssl"] == "BooleanField"
    assert kinds["cursor_param"] == "StringField"
    assert kinds["timeout"] == "StringField"
    assert fields["timeout"].kwargs["default"] == "30"
    behaviour = FsmHook.get_ui_field_behaviour()
    assert behaviour["relabeling"]["password"] == "API token"
    assert "login" not in behaviour["hidden_fields"]  # it is the account


def test_a_connection_of_another_type_is_refused_with_both_names(monkeypatch):
    connection_json = '{"conn_type": "http", "host": "https://api.example.com"}'
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", connection_json)
    message = "connection 'fsm_default': is of type 'http', not 'fsm'"

    with pytest.raises(FsmInputError, match=message):
        FsmHook().client  # noqa: B018


def test_a_host_without_a_scheme_is_https(service, monkeypatch):
    host = service.base_url.removeprefix("http://")
    values = {**service.connection(), "host": host, "extra": {"max_retries": 0}}
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps(values))

    passed, message = FsmHook().test_connection()

    assert not passed
    assert message.startswith(f"https://{host} was not reached: ")


def test_a_variable_that_airflow_cannot_read_is_named_without_its_text(service, monkeypatch):
    text = str(service.connection())  # as Python writes it, with single quotes
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", text)

    with pytest.raises(AirflowNotFoundException) as missing:
        FsmHook().client  # noqa: B018

    message = str(missing.value)
    assert message.startswith("connection 'fsm_default': AIRFLOW_CONN_FSM_DEFAULT is set, but")
    assert service.settings.token not in message
    assert missing.value.__suppress_context__


def test_a_connection_that_is_not_defined_is_airflows_error():
    message = (
        "connection 'no_such_connection': is not defined, or not readable, where "
        "this runs: add it in Airflow, or set AIRFLOW_CONN_NO_SUCH_CONNECTION"
    )

    with pytest.raises(AirflowNotFoundException, match=f"^{message}$"):
        FsmHook("no_such_connection").client  # noqa: B018
    assert FsmHook("no_such_connection").test_connection() == (
        False,
        message.removeprefix("connection 'no_such_connection': "),
    )


@pytest.mark.parametrize("name", ["form_name", "formName"])
def test_a_filter_that_does_not_exist_leads_to_its_name(service, connect, name):
    connect(service)

    with pytest.raises(FsmInputError, match=f"^{name}: .* list_forms: did you mean form_names"):
        FsmHook().list_forms(**{name: "Gas Safety Record"})


def test_the_test_of_a_connection_opens_its_ledger_and_creates_none(
    service, connect, monkeypatch, tmp_path
):
    service.add_form()
    path = tmp_path / "ledger.db"
    database = {"conn_type": "sqlite", "host": str(path)}
    connect(service, state_conn_id="ledger")

    passed, message = FsmHook().test_connection()
    assert not passed
    assert message.startswith("state_conn_id: connection 'ledger': is not defined")

    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps({**database, "host": "ledger.db"}))
    passed, message = FsmHook().test_connection()
    assert not passed
    assert message.startswith("state_conn_id: connection 'ledger': its host should be")

    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps(database))
    passed, message = FsmHook().test_connection()
    assert passed
    assert "there is no ledger yet at connection 'ledger'" in message
    assert not path.exists()

    open_database("ledger").dispose()
    passed, message = FsmHook().test_connection()
    assert passed
    assert message.endswith("The ledger of state_conn_id 'ledger' can be read.")


@pytest.mark.parametrize("status", [401, 403, 404, 400])
def test_an_error_that_the_connection_may_cause_names_it(service, connect, monkeypatch, status):
    connect(service, max_retries=0)
    service.fail("GET", "/jobs", faults.Status(status), every=True)

    with pytest.raises(FsmApiError) as refused:
        FsmHook().request("GET", "/jobs")

    is_named = "; connection 'fsm_default'" in str(refused.value)
    assert is_named == (status != 400)


def test_a_path_that_is_not_there_is_shown_with_the_base_path(service, connect, monkeypatch):
    wrong = {**service.connection(), "host": f"{service.base_url}/v9"}
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps(wrong))

    passed, message = FsmHook().test_connection()

    assert not passed
    assert f"there is nothing at {service.base_url}/v9/forms: check" in message
    assert "the base path in the connection's host" in message
    assert "fsm_default" not in message  # Airflow's UI gives it another name
