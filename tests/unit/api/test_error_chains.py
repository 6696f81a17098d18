"""The exceptions behind an error, which tools that report errors send along, hold no secret either."""

import json
import pickle
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fsm_provider.api import Form, FsmClient, FsmError, Settings
from fsm_provider.api.payloads import WebhookCreate, check
from fsm_provider.plugins.webhooks.settings import ReceiverSettings
from tests.unit.api.raw_server import RawServer, http, reset
from tests.unit.conftest import TOKEN

SECRET = "hush-hush-7f3a"
URL = f"https://files.example.com/1.pdf?signature={SECRET}"
WEBHOOK = {
    "object": "jobs",
    "event_types": "jobs.created",
    "target_url": f"https://h.example.com/{SECRET}",
}
CREATED = json.dumps({"id": 1, "eventTypes": ["jobs.created"], "signingSecret": SECRET})


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, suppressed ones too."""
    if error is not None:
        yield error
        yield from chain(error.__cause__)
        yield from chain(error.__context__)


def assert_holds_no_secret(error: BaseException) -> None:
    for one in chain(error):
        held = f"{one} {one!r} {one.args} {vars(one)}"
        with suppress(TypeError, AttributeError, pickle.PicklingError):
            held += pickle.dumps(one).decode("latin-1")
        with suppress(AttributeError):
            held += str(one.errors())
        with suppress(AttributeError):
            held += f"{one.request.headers} {one.request.url}"
        assert TOKEN not in held
        assert SECRET not in held


def requests(client):
    yield lambda: client.request("GET", "/x")
    yield lambda: client.create_job(7, {})
    yield lambda: client.register_webhook(WEBHOOK)
    yield lambda: list(client.list_forms())
    yield lambda: client.download_pdf(
        Form(id=1, form_pdf_url=f"{client.settings.base_url}/?{SECRET}"), list
    )
    yield lambda: client.download_pdf(
        Form(id=1, form_pdf_url=f"https://exa mple.[com/?{SECRET}"), list
    )


def listing(**form):
    return http(200, {"pagination": {"hasMore": False}, "data": [{"formPDFURL": URL, **form}]})


@pytest.mark.parametrize(
    "respond",
    [
        lambda connection, *_: reset(connection),
        lambda connection, *_: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"),
        lambda connection, *_: connection.sendall(http(200, CREATED[:-2].encode())),
        lambda connection, *_: connection.sendall(http(200, CREATED.replace("id", "ID").encode())),
        lambda connection, *_: connection.sendall(listing(id=[])),
        lambda connection, *_: connection.sendall(listing(id=1)[:-1] + b" "),
    ],
    ids=["reset", "silent", "cut", "no id", "bad form id", "bad listing"],
)
def test_of_a_failed_request(respond):
    with RawServer(respond) as server:
        settings = {"base_url": server.base_url, "token": TOKEN, "max_retries": 0, "timeout": 0.3}
        with FsmClient(Settings.checked(settings)) as client:
            failed = []
            for send in requests(client):
                try:
                    send()
                except FsmError as error:
                    failed.append(error)
    assert len(failed) > 2
    for error in failed:
        assert_holds_no_secret(error)


@pytest.mark.parametrize("failure", ["no host", "no proxy"])
def test_of_what_is_not_reached(monkeypatch, failure):
    if failure == "no proxy":
        monkeypatch.setenv("https_proxy", f"http://user:{SECRET}#@127.0.0.1:3128")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    base_url = "https://api.example.test" if failure == "no proxy" else f"http://127.0.0.1:{port}"
    settings = {"base_url": base_url, "token": TOKEN, "max_retries": 0}
    with FsmClient(Settings.checked(settings)) as client:
        for send in requests(client):
            with pytest.raises(FsmError) as raised:
                send()
            assert_holds_no_secret(raised.value)


def test_of_bad_input():
    for make in (
        lambda: Settings.checked({"token": TOKEN}),
        lambda: check(WebhookCreate, {"target_url": WEBHOOK["target_url"]}, "webhook"),
        lambda: ReceiverSettings.parse(
            json.dumps({"endpoints": {"x/jobs": {"path_token": SECRET}}})
        ),
    ):
        with pytest.raises(FsmError) as raised:
            make()
        assert_holds_no_secret(raised.value)
