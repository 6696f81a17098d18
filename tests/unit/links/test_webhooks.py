"""The link of a task that registers webhooks."""

from urllib.parse import parse_qs, urlsplit

import pytest

from fsm_provider.links.webhooks import deliveries_url
from fsm_provider.plugins.webhooks.settings import receiver_url
from fsm_provider.storage.lineage import uri_for_records


@pytest.mark.parametrize(
    ("registrations", "url"),
    [
        (None, ""),
        ([], ""),
        ([{"id": 1}], ""),
        ([{"targetURL": "javascript:alert(1)"}], ""),
        ([{"targetURL": "https://hooks.example.com/fsm"}], "https://hooks.example.com/fsm"),
        (
            [{"targetURL": "https://airflow.example.com/fsm/webhooks/fsm_default/jobs/***"}],
            "https://airflow.example.com/assets?name_pattern=fsm%3A%2F%2Ffsm_default%2Fjobs",
        ),
    ],
)
def test_it_leads_to_the_asset_of_the_receiver_or_to_the_target_url(monkeypatch, registrations, url):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com")

    assert deliveries_url(registrations) == url


@pytest.mark.parametrize("connection", ["fsm_default", "my conn/1"])
def test_it_finds_the_asset_of_any_connection(connection):
    registered = {"targetURL": receiver_url("https://airflow.example.com", connection, "jobs", "***")}

    query = parse_qs(urlsplit(deliveries_url([registered])).query)

    assert query["name_pattern"] == [uri_for_records(connection, "jobs")]
