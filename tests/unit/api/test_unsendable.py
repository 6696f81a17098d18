"""What cannot be sent is refused by name, before a byte is sent."""

import datetime

import pytest

from fsm_provider.api import FsmClient, FsmInputError, Settings
from fsm_provider.api.payloads import check_job_requests

HALF = "\ud83d"
SELF: list = []
SELF.append(SELF)


@pytest.fixture
def client(service, make_client):
    yield make_client(service, max_retries=0)
    assert service.requests == []


UNSENDABLE = {
    "json": [
        *(
            {"notes": f"all well {HALF}"},
            {f"a{HALF}": 1},
            {"a": float("nan")},
            {"a": {1, 2}},
            {(1, 2): 3},
        ),
        *({"a": datetime.datetime.now(datetime.UTC)}, {"a": 10**5000}, SELF),
    ],
    "headers": [
        *({"X-Note": value} for value in ("a\r\nX-Other: b", "a\0b", "€", 5)),
        *({name: "a"} for name in ("X-Nöte", "X Note", "", b"X-Note")),
        *({"Content-Length": "3"}, {"transfer-encoding": "chunked"}, {"Authorization": "Bearer x"}),
        *({"Host": "other.example.com"}, {"connection": "close"}),
    ],
    "params": [{"a": HALF}, {HALF: "a"}, {"a": {"b": 1}}, 5, [1, 2]],
    "path": [f"/jobs/{HALF}", "/jobs/a b", "/jobs\n", "jobs", 7],
    "method": ["PO ST", "POST\r\n", "", "PÖST", None, 5],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in UNSENDABLE.items() for value in values],
    ids=lambda _: "",
)
def test_a_part_of_a_request_that_cannot_be_written(client, name, value):
    with pytest.raises(FsmInputError, match=f"^{name}: ") as raised:
        client.request(**{"method": "POST", "path": "/jobs", name: value})
    assert HALF not in str(raised.value)


HALVES_IN_JOBS = [
    {"notes": HALF},
    {"customerReference": f"a{HALF}"},
    {"skills": [{"a": {f"b{HALF}": [1]}}]},
    {"extra_fields": {"site": {HALF: 1}}},
]


@pytest.mark.parametrize("job", HALVES_IN_JOBS, ids=ascii)
def test_half_a_character_in_a_job(client, job):
    (field,) = job

    with pytest.raises(FsmInputError, match=rf"^job\.{field}: contains half a character"):
        client.create_job(7, job)


def test_half_a_character_in_many_jobs():
    jobs = [{"property_id": 7, "job": {}, "key": HALF}, {"property_id": 7, "job": {"notes": HALF}}]

    for number, name in enumerate(("key", r"job\.notes")):
        with pytest.raises(
            FsmInputError, match=rf"^jobs\[{number}\]\.{name}: contains half a character"
        ):
            check_job_requests([{"property_id": 7, "job": {}}] * number + jobs[number:])


def test_half_a_character_in_a_webhook(client):
    webhook = {
        "object": "jobs",
        "event_types": "jobs.created",
        "target_url": "https://hooks.example.com",
    }

    with pytest.raises(FsmInputError, match=r"^webhook\.description: contains half a character"):
        client.register_webhook({**webhook, "description": HALF})


def test_a_complete_character_is_sent(service, make_client):
    assert (
        make_client(service).create_job(7, {"notes": "\U0001f600 \\ud83d"}).notes
        == "\U0001f600 \\ud83d"
    )


def test_headers_that_can_be_written_are(service, make_client):
    make_client(service).request(
        "GET", "/forms", headers={"X-Note": "caf\xe9 \t!", "X-API-VERSION": "3"}
    )

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
    settings = Settings.checked(
        {"base_url": "https://api.example.test", "token": "t", "max_retries": 0}
    )

    with FsmClient(settings) as client, pytest.raises(FsmInputError, match="proxy") as raised:
        client.create_job(7, {})
    assert "€" not in str(raised.value)
