"""Where the link of a registering task leads."""

from urllib.parse import parse_qs, urlsplit

import pytest

from fsm_provider.lineage import records_of
from fsm_provider.links.webhooks import deliveries_of
from fsm_provider.plugins.webhooks.settings import address as address_of


@pytest.mark.parametrize(
    ("registrations", "address"),
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
def test_it_leads_to_the_asset_of_the_receiver_or_to_the_target(monkeypatch, registrations, address):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com")

    assert deliveries_of(registrations) == address


@pytest.mark.parametrize("connection", ["fsm_default", "my conn/1"])
def test_it_finds_the_asset_of_any_connection(connection):
    registered = {"targetURL": address_of("https://airflow.example.com", connection, "jobs", "***")}

    query = parse_qs(urlsplit(deliveries_of([registered])).query)

    assert query["name_pattern"] == [records_of(connection, "jobs")]
