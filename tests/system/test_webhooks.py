"""A webhook registered from a task: the secret is in its Variable, and shown to nobody.

That it is in no log, XCom or database file either is checked when the shared Airflow stops.
"""

import json

from fsm_provider.testing import FakeFieldService
from tests.system.local_airflow import LocalAirflow


def test_the_secret_goes_to_the_variable_alone(airflow: LocalAirflow, service: FakeFieldService) -> None:
    run_id = airflow.trigger("webhook_registration")

    assert airflow.wait_for_run("webhook_registration", run_id) == "success"
    registered = airflow.xcom("webhook_registration", run_id, "register")
    assert [webhook["id"] for webhook in registered] == [webhook["id"] for webhook in service.webhooks]
    assert all("signingSecret" not in webhook for webhook in registered)
    variable = airflow.api("GET", "/variables/fsm_webhook_secrets_fsm_default_jobs")
    assert json.loads(variable["value"]) == {str(webhook["id"]): "***" for webhook in registered}
    assert variable["is_encrypted"] is True
