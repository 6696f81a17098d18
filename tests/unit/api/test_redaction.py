"""What errors quote of a response: never the token, nor a value whose key ends in ``secret``."""

import json
import time

import pytest

from fsm_provider.api import FsmApiError, FsmBadRequestError, FsmClient, FsmError, Settings
from fsm_provider.api.redaction import EXCERPT_LENGTH
from tests.unit.api.raw_server import RawServer, http
from tests.unit.conftest import TOKEN

SECRET = "whsec_Zz9YyXx8WwVv7UuTt6"
WEBHOOK = {"id": 1, "targetURL": "https://h.example/unguessable", "signingSecret": SECRET}
AS_JSON = json.dumps({**WEBHOOK, "error": "is taken"})


def refusal(status, body, send, *headers):
    """Return the error of a request that gets this response."""
    if isinstance(body, str):
        body = body.encode()
    response = http(status, body, *headers)
    with RawServer(lambda connection, *_: connection.sendall(response)) as server:
        settings = settings_for(server, max_retries=0)
        with FsmClient(settings) as client, pytest.raises(FsmError) as raised:
            send(client)
    return raised.value


def settings_for(server, *, max_retries):
    values = {"base_url": server.base_url, "token": TOKEN, "max_retries": max_retries}
    return Settings.parse(values)


def register(client):
    webhook = {
        "object": "jobs",
        "event_types": "jobs.created",
        "target_url": WEBHOOK["targetURL"],
    }
    client.register_webhook(webhook)


def request(client):
    client.request("POST", "/anything")


def create_job(client):
    client.create_job(7, {"customerReference": "PO-1"})


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize(
    "body",
    [
        AS_JSON,
        AS_JSON.replace("signingSecret", "SIGNING_SECRET"),
        json.dumps({"request": AS_JSON, "error": "is taken"}),
        json.dumps({"was": json.dumps({"request": AS_JSON}), "error": "is taken"}),
        json.dumps({"signingSecret": [SECRET, SECRET]}),
        json.dumps({"signingSecret": {"value": SECRET}}),
        json.dumps({"signingSecret": f'a"b{SECRET}', "error": "is taken"}),
        json.dumps(WEBHOOK)[:-4],
        str(WEBHOOK),
        f"id=1&signingSecret={SECRET}&error=is+taken",
        f"id=1&signingSecret[]={SECRET}&error=is+taken",
        f"<webhook><signingSecret>{SECRET}</signingSecret><error>is taken</error></webhook>",
        f"<signingSecret type='text'>\n<![CDATA[a<b {SECRET}]]></signingSecret>",
        f'<webhook signingSecret="{SECRET}" error="is taken"/>',
        "x" * (EXCERPT_LENGTH - 40) + json.dumps(WEBHOOK),
    ],
)
def test_the_value_of_a_key_that_ends_in_secret_is_not_quoted(status, body):
    for send in (register, request):
        error = refusal(status, body, send)

        shown = str(error) + repr(error) + str(vars(error))
        assert SECRET[:12] not in shown
        assert SECRET[-6:] not in shown
        assert ("is taken" in body) == ("is taken" in shown)


@pytest.mark.parametrize(
    "body",
    [
        f"<html>{SECRET}",
        f"your secret is {SECRET}",
        f"%22signingSecret%22%3A%22{SECRET}%22",
        f"&quot;signingSecret&quot;:&quot;{SECRET}&quot;",
    ],
)
def test_of_a_registration_nothing_is_quoted_that_may_still_hold_a_secret(body):
    error = refusal(400, body, register)

    assert isinstance(error, FsmBadRequestError)
    assert error.body_excerpt == ""


def test_a_secret_in_another_encoding_is_not_quoted():
    error = refusal(400, AS_JSON.encode("utf-16"), request)

    assert '"signingSecret": ***, "error": "is taken"}' in error.body_excerpt


def test_other_errors_may_speak_of_secrets():
    error = refusal(400, "the client secret has expired", request)

    assert error.body_excerpt == "the client secret has expired"


def test_the_excerpt_of_a_large_body_takes_no_time():
    parts = [
        "secret ",
        'secret="',
        "secret><![CDATA[",
        "secret" + "\\" * 40,
        "secret='\\'",
    ]
    for part in parts:
        started = time.process_time()
        refusal(400, part * (2**21 // len(part)), request)
        assert time.process_time() - started < 5


@pytest.mark.parametrize("send", [request, register])
def test_a_token_in_a_request_identifier_is_removed(send):
    error = refusal(400, "", send, f"X-Request-ID: for {TOKEN}")

    assert isinstance(error, FsmApiError)
    assert error.request_id == "for ***"


def test_what_steers_a_terminal_is_escaped(caplog):
    steering = "\x1b[2J\u202e\u2066 no \x07"
    error = refusal(400, f"{steering}\nroot: granted", request, "X-Request-ID: a\x1b[2Jb")

    assert error.body_excerpt == r"\x1b[2J\u202e\u2066 no \x07 root: granted"
    assert error.request_id == r"a\x1b[2Jb"


def job(**fields):
    return http(201, {"id": 5, "propertyID": 7, "customerReference": "PO-1", **fields})


def error_of(send, client):
    """Return the error of a request, None if it succeeds."""
    try:
        send(client)
    except FsmError as error:
        return error


CHUNKED = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OF_TWO_BYTES = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
ECHOES = {
    "no status line": f"Authorization: Bearer {TOKEN}\r\n\r\n".encode(),
    "a protocol": f"HTTP/{TOKEN} 200 OK\r\n\r\n".encode(),
    "a chunk's size": f"{CHUNKED}{TOKEN}\r\n".encode(),
    "a header without colon": f"{OF_TWO_BYTES}{TOKEN}\r\n\r\n{{}}".encode(),
    "propertyID": job(propertyID=TOKEN),
    "customerReference": job(customerReference=TOKEN),
    "eventTypes": http(200, {"id": 1, "eventTypes": [TOKEN]}),
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_a_token_that_the_service_sends_back_is_in_no_error_and_no_log(echo, caplog):
    caplog.set_level("DEBUG")

    def respond(connection, *_):
        connection.sendall(echo)
        connection.close()

    with RawServer(respond) as server:
        settings = settings_for(server, max_retries=1)
        for send in (register, create_job, request):
            with FsmClient(settings, sleep=lambda _: None) as client:
                error = error_of(send, client)
            assert TOKEN not in f"{error} {error!r}"
            assert TOKEN not in f"{client!r} {vars(client)} {settings!r}"

    assert len(server.requests) >= 3
    for received in server.requests:
        assert TOKEN not in received.line
    assert "urllib3" in caplog.text
    assert TOKEN not in caplog.text
    assert "unguessable" not in caplog.text
