"""What cannot be sent is refused by name, before a byte is sent."""

import datetime

import pytest

from fsm_provider.api import FsmClient, FsmInputError, Settings
from fsm_provider.api.payloads import parse_jobs

HALF = "\ud83d"
SELF: list = []
SELF.append(SELF)


@pytest.fixture
def client(service, make_client):
    yield make_client(service, max_retries=0)
    assert service.requests == []


UNSENDABLE = [
    ("json", {"notes": f"all well {HALF}"}),
    ("json", {f"a{HALF}": 1}),
    ("json", {"a": float("nan")}),
    ("json", {"a": {1, 2}}),
    ("json", {(1, 2): 3}),
    ("json", {"a": datetime.datetime.now(datetime.UTC)}),
    ("json", {"a": 10**5000}),
    ("json", SELF),
    ("headers", {"X-Note": "a\r\nX-Other: b"}),
    ("headers", {"X-Note": "a\0b"}),
    ("headers", {"X-Note": "€"}),
    ("headers", {"X-Note": 5}),
    ("headers", {"X-Nöte": "a"}),
    ("headers", {"X Note": "a"}),
    ("headers", {"": "a"}),
    ("headers", {b"X-Note": "a"}),
    ("headers", {"Content-Length": "3"}),
    ("headers", {"transfer-encoding": "chunked"}),
    ("headers", {"Authorization": "Bearer x"}),
    ("headers", {"Host": "other.example.com"}),
    ("headers", {"connection": "close"}),
    ("params", {"a": HALF}),
    ("params", {HALF: "a"}),
    ("params", {"a": {"b": 1}}),
    ("params", 5),
    ("params", [1, 2]),
    ("path", f"/jobs/{HALF}"),
    ("path", "/jobs/a b"),
    ("path", "/jobs\n"),
    ("path", "jobs"),
    ("path", 7),
    ("method", "PO ST"),
    ("method", "POST\r\n"),
    ("method", ""),
    ("method", "PÖST"),
    ("method", None),
    ("method", 5),
]


@pytest.mark.parametrize(("name", "value"), UNSENDABLE, ids=lambda _: "")
def test_a_part_of_a_request_that_cannot_be_written(client, name, value):
    request = {"method": "POST", "path": "/jobs", name: value}

    with pytest.raises(FsmInputError, match=f"^{name}: ") as raised:
        client.request(**request)
    assert HALF not in str(raised.value)


HALVES_IN_JOBS = [
    {"notes": HALF},
    {"customerReference": f"a{HALF}"},
    {"skills": [{"a": {f"b{HALF}": [1]}}]},
    {"extra_fields": {"site": {HALF: 1}}},
]


@pytest.mark.parametrize("job", HALVES_IN_JOBS, ids=ascii)
def test_half_a_character_in_a_job(client, job):
    [field] = job

    with pytest.raises(FsmInputError, match=rf"^job\.{field}: contains half a character"):
        client.create_job(7, job)


def test_half_a_character_in_many_jobs():
    good = {"property_id": 7, "job": {}}
    bad_key = {"property_id": 7, "job": {}, "key": HALF}
    bad_notes = {"property_id": 7, "job": {"notes": HALF}}

    with pytest.raises(FsmInputError, match=r"^jobs\[0\]\.key: contains half a character"):
        parse_jobs([bad_key, bad_notes])
    with pytest.raises(FsmInputError, match=r"^jobs\[1\]\.job\.notes: contains half a character"):
        parse_jobs([good, bad_notes])


def test_half_a_character_in_a_webhook(client):
    webhook = {
        "object": "jobs",
        "event_types": "jobs.created",
        "target_url": "https://hooks.example.com",
        "description": HALF,
    }

    with pytest.raises(FsmInputError, match=r"^webhook\.description: contains half a character"):
        client.register_webhook(webhook)


def test_a_complete_character_is_sent(service, make_client):
    notes = "\U0001f600 \\ud83d"

    job = make_client(service).create_job(7, {"notes": notes})

    assert job.notes == notes


def test_headers_that_can_be_written_are(service, make_client):
    headers = {"X-Note": "caf\xe9 \t!", "X-API-VERSION": "3"}

    make_client(service).request("GET", "/forms", headers=headers)

    assert dict(service.requests[-1].headers)["x-api-version"] == "3"


@pytest.mark.parametrize("params", ["a=b", [1, 2]], ids=ascii)
@pytest.mark.parametrize(
    "list_records",
    [
        FsmClient.list_forms,
        FsmClient.list_asset_dynamic_fields,
        lambda client, params: client.paginate("/forms", params),
    ],
    ids=["list_forms", "list_asset_dynamic_fields", "paginate"],
)
def test_parameters_of_a_listing_that_are_no_mapping(client, list_records, params):
    with pytest.raises(FsmInputError, match=r"^params: should map names to values, not "):
        list(list_records(client, params=params))


@pytest.mark.parametrize("proxy", ["http://u:p€@127.0.0.1:9", "http://u:%E2%82%AC@127.0.0.1:9"])
def test_a_proxy_password_that_cannot_be_written(monkeypatch, proxy):
    monkeypatch.setenv("https_proxy", proxy)
    values = {"base_url": "https://api.example.test", "token": "t", "max_retries": 0}
    settings = Settings.parse(values)

    with FsmClient(settings) as client, pytest.raises(FsmInputError, match="proxy") as raised:
        client.create_job(7, {})
    assert "€" not in str(raised.value)
