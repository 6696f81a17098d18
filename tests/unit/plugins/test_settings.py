"""One clear message for each bad field of the receiver's configuration."""

import json

import pytest

from fsm_provider.api import FsmInputError
from fsm_provider.plugins.webhooks.settings import ReceiverSettings, receiver_url


def endpoint(**fields):
    return {"endpoints": {"fsm_default/jobs": {"signature": "none", **fields}}}


def signed(**fields):
    return endpoint(**{"signature": "hmac", "header": "X-Signature", **fields})


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"endpoint": {}}, "endpoint: is not a setting"),
        ({"base_url": "airflow.example.com"}, "base_url: should be a URL such as https://airflow"),
        (
            {"base_url": "http://airflow.example.com"},
            "base_url: should be https: http sends path token",
        ),
        (
            {"endpoints": {"jobs": {"signature": "none"}}},
            "endpoints: 'jobs' is not <connection>/<object>",
        ),
        (
            {"endpoints": {"a/forms": {"signature": "none"}}},
            "endpoints: 'a/forms' is not <connection>",
        ),
        ({"endpoints": {"a/jobs": {}}}, "endpoints.a/jobs.signature: is missing"),
        (
            endpoint(signature="sha256"),
            "endpoints.fsm_default/jobs.signature: should be 'standard-",
        ),
        (endpoint(signature="hmac"), "header: is needed for the signature 'hmac'"),
        (
            {"endpoints": {"a/b/jobs": {"signature": "none"}}},
            "endpoints: 'a/b/jobs' is not <connection>",
        ),
        (endpoint(**{"x\ny": 1}), "'x\\ny': is not a setting"),
        (endpoint(header="x"), "header: is needed for the signature 'hmac', and for no other"),
        (signed(header="x y"), "header: holds a character"),
        (signed(prefix="v1, "), "prefix: holds a character"),
        (signed(timestamp_prefix="t=", prefix="t="), "prefix: should precede the signature"),
        (signed(timestamp_prefix="s", prefix="sig="), "prefix: should precede the signature"),
        (signed(tolerance=43201), "tolerance: should be less than or equal to 43200"),
    ],
)
def test_a_bad_field_is_named(configuration, message):
    with pytest.raises(FsmInputError) as caught:
        ReceiverSettings.parse(json.dumps(configuration))

    assert str(caught.value).startswith("Variable fsm_webhooks: ")
    assert message in str(caught.value)
    assert ";" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_bad_field_is_named_and_no_value_quoted():
    text = json.dumps({"base_url": "a-token", **endpoint(tolerance=0, keep_body="a-secret")})

    with pytest.raises(FsmInputError) as caught:
        ReceiverSettings.parse(text)

    for field in ("base_url", "tolerance", "keep_body"):
        assert field in str(caught.value)
    assert "a-token" not in str(caught.value)
    assert "a-secret" not in str(caught.value)


def test_a_loopback_may_be_http():
    settings = ReceiverSettings.parse('{"base_url": "http://127.0.0.1:8080/"}')

    assert settings.base_url == "http://127.0.0.1:8080"


def test_a_url_holds_connection_and_object():
    url = receiver_url("https://a.example", "my conn/1", "jobs", "t")

    assert url == "https://a.example/fsm/webhooks/my%20conn%2F1/jobs/t"
