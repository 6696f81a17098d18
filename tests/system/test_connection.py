"""The connection type as Airflow's API and UI see it."""

import pytest

from fsm_provider.provider_info import get_provider_info
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


def test_the_form_shows_every_field(airflow: LocalAirflow) -> None:
    hooks = airflow.ui("/ui/connections/hook_meta").json()

    (fsm,) = [hook for hook in hooks if hook["connection_type"] == "fsm"]

    (declared,) = get_provider_info()["connection-types"]
    assert fsm["extra_fields"].keys() == declared["conn-fields"].keys()
    assert fsm["extra_fields"]["page_size"]["schema"]["title"] == "Page size"
    assert fsm["standard_fields"]["password"]["title"] == "API token"
    assert fsm["standard_fields"]["login"]["title"] == "Account"
    assert fsm["standard_fields"]["port"]["hidden"] is True


def test_a_good_connection_passes_the_test(airflow: LocalAirflow, payload: dict) -> None:
    response = airflow.test_connection(payload)

    assert response["status"] is True, response
    assert "token is accepted" in response["message"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"password": REFUSED_TOKEN}, "the token is not accepted"),
        ({"password": ""}, "password: is empty"),
        ({"host": "http://api.example.com"}, "host: http would send the token in the clear"),
        ({"extra": '{"page_size": "many"}'}, "page_size: "),
        ({"extra": '{"cursorparam": "next"}'}, "cursorparam: is not a setting; these are: "),
    ],
)
def test_a_bad_connection_says_what_to_change(
    airflow: LocalAirflow, payload: dict, change: dict, says: str
) -> None:
    response = airflow.test_connection({**payload, **change})

    assert response["status"] is False
    assert says in response["message"]


def test_the_token_is_masked_when_the_connection_is_read(airflow: LocalAirflow, payload: dict) -> None:
    airflow.api("POST", "/connections", json=payload)

    assert airflow.api("GET", "/connections/fsm_tried")["password"] == "***"
