"""The exceptions behind an error, which error reporters send along, hold no secret either."""

import json
import socket

import pytest

from fsm_provider.api import Form, FsmClient, FsmError, Settings
from fsm_provider.api.payloads import WebhookCreate, parse_payload
from fsm_provider.plugins.webhooks.settings import ReceiverSettings
from tests.unit.api.raw_server import RawServer, http, reset
from tests.unit.api.secret_checks import SECRET, assert_holds_no_secret
from tests.unit.conftest import TOKEN

URL = f"https://files.example.com/1.pdf?signature={SECRET}"
WEBHOOK = {
    "object": "jobs",
    "event_types": "jobs.created",
    "target_url": f"https://h.example.com/{SECRET}",
}
CREATED = json.dumps({"id": 1, "eventTypes": ["jobs.created"], "signingSecret": SECRET})


def requests(client):
    """Yield functions that each send a request of another kind."""
    url = f"{client.settings.base_url}/?{SECRET}"
    no_url = f"https://exa mple.[com/?{SECRET}"
    yield lambda: client.request("GET", "/x")
    yield lambda: client.create_job(7, {})
    yield lambda: client.register_webhook(WEBHOOK)
    yield lambda: list(client.list_forms())
    yield lambda: client.download_pdf(Form(id=1, form_pdf_url=url), list)
    yield lambda: client.download_pdf(Form(id=1, form_pdf_url=no_url), list)


def listing(**form):
    return http(200, {"pagination": {"hasMore": False}, "data": [{"formPDFURL": URL, **form}]})


RESPONSES = {
    "silent": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
    "cut": http(200, CREATED[:-2].encode()),
    "no id": http(200, CREATED.replace("id", "ID").encode()),
    "bad form id": listing(id=[]),
    "bad listing": listing(id=1)[:-1] + b" ",
}


@pytest.mark.parametrize("response", RESPONSES.values(), ids=RESPONSES)
def test_of_a_failed_request(response):
    assert_errors_hold_no_secret(lambda connection, *_: connection.sendall(response))


def test_of_a_request_that_was_reset():
    assert_errors_hold_no_secret(lambda connection, *_: reset(connection))


def assert_errors_hold_no_secret(respond):
    errors = []
    with RawServer(respond) as server:
        settings = {"base_url": server.base_url, "token": TOKEN, "max_retries": 0, "timeout": 0.3}
        with FsmClient(Settings.parse(settings)) as client:
            for send in requests(client):
                try:
                    send()
                except FsmError as error:
                    errors.append(error)

    assert len(errors) > 2
    for error in errors:
        assert_holds_no_secret(error)


def test_of_a_host_that_is_not_reached():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    assert_is_not_reached(f"http://127.0.0.1:{port}")


def test_of_a_proxy_that_is_not_reached(monkeypatch):
    monkeypatch.setenv("https_proxy", f"http://user:{SECRET}#@127.0.0.1:3128")

    assert_is_not_reached("https://api.example.test")


def assert_is_not_reached(base_url):
    settings = {"base_url": base_url, "token": TOKEN, "max_retries": 0}
    with FsmClient(Settings.parse(settings)) as client:
        for send in requests(client):
            with pytest.raises(FsmError) as raised:
                send()
            assert_holds_no_secret(raised.value)


def test_of_bad_settings():
    with pytest.raises(FsmError) as raised:
        Settings.parse({"token": TOKEN})

    assert_holds_no_secret(raised.value)


def test_of_a_bad_webhook():
    webhook = {"target_url": WEBHOOK["target_url"]}

    with pytest.raises(FsmError) as raised:
        parse_payload(WebhookCreate, webhook, "webhook")

    assert_holds_no_secret(raised.value)


def test_of_bad_settings_of_the_receiver():
    text = json.dumps({"endpoints": {"x/jobs": {"path_token": SECRET}}})

    with pytest.raises(FsmError) as raised:
        ReceiverSettings.parse(text)

    assert_holds_no_secret(raised.value)
