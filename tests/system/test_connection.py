"""The connection type as Airflow's API sees it; its form is in tests/ui and tests/versions."""

import pytest

from fsm_provider.testing import FakeFieldService
from tests.system.conftest import REFUSED_TOKEN
from tests.system.local_airflow import LocalAirflow


@pytest.fixture
def payload(service: FakeFieldService) -> dict:
    return {
        "connection_id": "fsm_tried",
        "conn_type": "fsm",
        "host": service.base_url,
        "password": service.settings.token,
    }


@pytest.mark.parametrize(
    ("change", "is_good", "says"),
    [
        ({}, True, "token is accepted"),
        ({"password": REFUSED_TOKEN}, False, "the token is not accepted"),
        ({"extra": '{"cursorparam": "next"}'}, False, "cursorparam: is not a setting; these are: "),
    ],
)
def test_the_test_says_what_to_change(
    airflow: LocalAirflow, payload: dict, change: dict, is_good: bool, says: str
) -> None:
    response = airflow.test_connection({**payload, **change})

    assert response["status"] is is_good
    assert says in response["message"]


def test_the_token_is_masked_when_the_connection_is_read(airflow: LocalAirflow, payload: dict) -> None:
    airflow.api("POST", "/connections", json=payload)

    assert airflow.api("GET", "/connections/fsm_tried")["password"] == "***"
