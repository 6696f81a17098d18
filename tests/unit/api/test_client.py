"""The client with a misbehaving service, over a real socket."""

import json
import socket
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from fsm_provider.api import (
    FsmApiError,
    FsmClient,
    FsmConnectionError,
    FsmForbiddenError,
    FsmInputError,
    FsmRateLimitedError,
    FsmRegistrationError,
    FsmUncertainWriteError,
)
from fsm_provider.testing import FakeFieldService, faults
from tests.unit.conftest import TOKEN

JOBS = "/properties/7/jobs"


@pytest.fixture
def waits():
    return []


@pytest.fixture
def client(make_client, service, waits):
    return make_client(service, sleep=waits.append, timeout=1, max_retries=2)


def test_an_uncertain_write_says_what_was_sent_and_when(service, client):
    service.fail("POST", JOBS, faults.Reset())
    before = datetime.now(UTC).replace(microsecond=0)

    with pytest.raises(FsmUncertainWriteError) as raised:
        client.create_job(7, {"customerReference": "PO-1"})

    error = raised.value
    assert error.method == "POST"
    assert error.path == JOBS
    assert error.subject == {"propertyID": 7, "customerReference": "PO-1"}
    assert before <= datetime.fromisoformat(error.attempted_at) <= datetime.now(UTC)
    assert "propertyID 7, customerReference 'PO-1'" in str(error)


def test_a_host_that_does_not_exist_is_a_connection_error(service, make_client):
    client = make_client(service, base_url="https://no-such-host.invalid", max_retries=0)

    with pytest.raises(FsmConnectionError, match=r"https://no-such-host\.invalid was not reached"):
        client.create_job(7, {})


@pytest.mark.parametrize("base_url", ["https://*", "https://*.example.com", "https://."])
def test_an_invalid_url_is_an_input_error(service, make_client, base_url):
    with pytest.raises(FsmInputError, match=r"^host: "):
        make_client(service, base_url=base_url)


@pytest.mark.parametrize(
    "echo",
    [
        {"eventTypes": [{"type": "jobs.created"}]},
        {"eventTypes": 5},
        {"eventTypes": ["jobs.closed"]},
        {"object": "assets"},
    ],
    ids=str,
)
def test_a_registration_that_echoes_anything_else_is_a_permanent_error(service, client, echo):
    service.fail("POST", "/settings/webhooks", faults.Rewrite(lambda webhook: {**webhook, **echo}))
    webhook = {
        "object": "jobs",
        "event_types": "jobs.created",
        "target_url": "https://hooks.example.com",
    }

    with pytest.raises(FsmRegistrationError, match="webhook 1 was not registered for") as raised:
        client.register_webhook(webhook)
    assert raised.value.permanent


@pytest.mark.parametrize(
    "retry_after",
    [9**20, "9" * 400, datetime(9999, 1, 1, tzinfo=UTC)],
    ids=["seconds", "digits", "date"],
)
def test_a_retry_after_beyond_the_budget_is_an_error(service, client, waits, retry_after):
    service.fail("GET", "/forms", faults.Status(429, retry_after=retry_after))

    with pytest.raises(FsmRateLimitedError, match="the service asks to wait"):
        list(client.list_forms())
    assert waits == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"plain text",
        b"<p>HTML</p>",
        b'{"message": "no"}',
        b"\xff\xfe",
    ],
    ids=repr,
)
def test_a_refusal_is_raised_once_whatever_its_body(service, client, waits, body):
    service.fail("*", "*", faults.Status(410, body), every=True)

    with pytest.raises(FsmApiError) as refused_write:
        client.create_job(7, {})
    assert refused_write.value.status == 410
    assert len(service.requests) == 1

    with pytest.raises(FsmApiError) as refused_read:
        list(client.list_forms())
    assert refused_read.value.status == 410
    assert len(service.requests) == 2

    assert waits == []


@pytest.mark.parametrize(
    ("headers", "request_id"),
    [
        ({"x-amzn-RequestId": "r-2"}, "r-2"),
        ({"X-Correlation-ID": "r" * 400}, "r" * 300),
        ({"X-Request-ID": ""}, None),
        ({"X-Request": "r-4"}, None),
    ],
)
def test_an_error_carries_its_facts(service, client, headers, request_id):
    service.fail("GET", "/forms", faults.Status(403, "no  access\n to forms", headers=headers))

    with pytest.raises(FsmForbiddenError) as raised:
        list(client.list_forms())

    error = raised.value
    assert error.method == "GET"
    assert error.path == "/forms"
    assert error.request_id == request_id
    assert error.body_excerpt == "no access to forms"


ECHOES = [
    TOKEN,
    TOKEN.replace("/", "\\/"),
    TOKEN.replace("=", "\\u003d"),
    TOKEN.replace("=", "&#61;"),
    TOKEN.replace("+", "%2b"),
    "canary-token-7f3a%2F9%2Bb%3D",
]


@pytest.mark.parametrize("echo", ECHOES)
def test_a_token_that_the_service_echoes_is_removed(service, client, echo):
    service.fail("GET", "/forms", faults.Status(400, f"bad header: Bearer {echo}"))

    with pytest.raises(FsmApiError) as raised:
        list(client.list_forms())
    assert raised.value.body_excerpt == "bad header: Bearer ***"


def escaped(text):
    """Write each character as JSON may, also where it need not."""
    return "".join(f"\\u{ord(character):04x}" for character in text)


WRITTEN = {
    "as it is": TOKEN,
    "with slashes escaped": TOKEN.replace("/", "\\/"),
    "with signs escaped": TOKEN.replace("+", "\\u002b").replace("=", "\\u003D"),
    "with a letter escaped": TOKEN.replace("c", "\\u0063"),
    "all of it escaped": escaped(TOKEN),
    "in JSON in JSON": TOKEN.replace("/", "\\\\/"),
    "in a URL": quote(TOKEN, safe=""),
    "a letter as in a URL": TOKEN.replace("k", "%6B"),
    "all of it as in a URL": "".join(f"%{byte:02x}" for byte in TOKEN.encode()),
    "in HTML": TOKEN.replace("/", "&#47;").replace("+", "&plus;").replace("=", "&#x3D;"),
    "all of it as in HTML": "".join(f"&#{ord(character)};" for character in TOKEN),
    "all of it as in HTML, in hex": "".join(f"&#x0{ord(character):X};" for character in TOKEN),
}
READERS = {
    "list_forms": ("/forms", FsmClient.list_forms),
    "list_asset_dynamic_fields": (
        "/assetDynamicFieldValues",
        FsmClient.list_asset_dynamic_fields,
    ),
    "paginate": ("/forms", lambda client: client.paginate("/forms")),
    "pages": ("/forms", lambda client: next(client.pages("/forms")).data),
    "request": ("/forms", lambda client: client.request("GET", "/forms")["data"]),
}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize(("path", "read"), READERS.values(), ids=READERS)
def test_no_result_holds_a_token_that_the_service_repeats(service, client, path, read, written):
    record = {
        "id": 5,
        "dynamicFieldID": 5,
        "formName": "echo ECHO",
        "createdByUser": ["ECHO", 7],
        "jobDetails": {"jobDescription": "<ECHO>", "unspecified": {"as a name: ECHO": 1.5}},
        "dynamicFieldName": "ECHO",
    }
    page = {"meta": {}, "pagination": {"hasMore": False}, "data": [record]}
    body = json.dumps(page).replace("ECHO", written)
    service.fail("GET", path, faults.Status(200, body, content_type="application/json"))

    [result] = read(client)

    values = result if isinstance(result, dict) else result.as_json()
    assert values["id"] == 5
    assert values["dynamicFieldName"] == "***"
    assert values["createdByUser"] == ["***", 7]
    assert values["jobDetails"]["jobDescription"] == "<***>"
    assert values["jobDetails"]["unspecified"] == {"as a name: ***": 1.5}


def test_a_page_with_a_token_is_otherwise_as_it_was_sent(service, client):
    values = [10**30, -7, 0.1, 1e300, True, None, "", 'ä\U0001f600\n"\\', {"": []}]
    page = {"pagination": {"hasMore": False}, "data": [{"id": 1, "values": values, "key": TOKEN}]}
    service.fail("GET", "/things", faults.Status(200, json.dumps(page)))

    [record] = client.paginate("/things")

    assert record == {"id": 1, "values": values, "key": "***"}


@pytest.mark.parametrize(
    ("dialect", "cursor_param"),
    [
        ("specified", "cursor"),
        ("typed", "page[next]"),
        ("string", "a&b=c"),
    ],
)
def test_every_form_once_over_one_connection(make_client, dialect, cursor_param):
    with FakeFieldService(page_size=10, dialect=dialect, cursor_param=cursor_param) as service:
        service.seed_forms(45)
        client = make_client(service)

        ids = [form.id for form in client.list_forms()]

        assert ids == [form["id"] for form in service.forms]
        assert len(service.requests) == 5
        assert len({request.connection for request in service.requests}) == 1


def test_pages_are_read_when_they_are_needed(service, client):
    service.seed_forms(45)
    forms = client.list_forms()
    assert service.requests == []

    for _ in range(11):
        next(forms)

    assert len(service.requests) == 2


def test_forms_that_do_not_match_a_filter_that_the_service_ignores_are_left_out(
    service, client, caplog
):
    other = service.add_form(job_id=1)
    matching = service.add_form(job_id=2)
    add_other = faults.Rewrite(lambda page: {**page, "data": [*page["data"], other]})
    service.fail("GET", "/forms", add_other)

    [form] = client.list_forms(job_id=2)

    assert form.id == matching["id"]
    assert "1 form of the listing did not match the filter (job_id=2)" in caplog.text


def test_the_page_size_is_sent_where_it_is_named(service, make_client):
    service.settings.page_size_param = "limit"
    service.seed_forms(9)
    client = make_client(service, page_size_param="limit", page_size=4)

    list(client.list_forms())

    assert len(service.requests) == 3
    for request in service.requests:
        assert dict(request.query)["limit"] == "4"


@pytest.mark.usefixtures("clock")
def test_the_rate_limit_applies_across_clients(service, make_client):
    waits = []
    first = make_client(service, sleep=waits.append, max_requests_per_second=0.5)
    second = make_client(service, sleep=waits.append, max_requests_per_second=0.5)

    list(first.list_forms())
    list(second.list_forms())

    assert waits == [2]


@pytest.fixture
def silent_port():
    """A port whose listener never accepts: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for filler in fillers:
            filler.close()


def test_a_connect_timeout_is_a_connection_error(service, make_client, silent_port):
    base_url = f"http://127.0.0.1:{silent_port}"
    client = make_client(service, base_url=base_url, timeout=0.3, max_retries=1)

    with pytest.raises(FsmConnectionError, match="timed out"):
        client.create_job(7, {})
