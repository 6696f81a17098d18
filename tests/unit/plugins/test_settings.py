"""One clear message for each bad field of the receiver's configuration."""

import json

import pytest

from fsm_provider.api import FsmInputError
from fsm_provider.plugins.webhooks.settings import ReceiverSettings, Scheme, address


def endpoint(**fields):
    return {"endpoints": {"fsm_default/jobs": {"signature": "none", **fields}}}


def signed(**fields):
    return endpoint(signature={"header": "X-Signature", **fields})


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"endpoint": {}}, "endpoint: Extra inputs are not permitted"),
        ({"base_url": "airflow.example.com"}, "base_url: is not an absolute http(s) address without a query"),
        ({"base_url": "http://airflow.example.com"}, "base_url: should be https: with http, path token"),
        ({"endpoints": {"jobs": {"signature": "none"}}}, "endpoints: 'jobs' is not <connection>/<object>"),
        ({"endpoints": {"a/forms": {"signature": "none"}}}, "endpoints: 'a/forms' is not <connection>"),
        ({"endpoints": {"a/jobs": {}}}, "endpoints.a/jobs.signature: Field required"),
        (endpoint(signature="hmac"), "endpoints.fsm_default/jobs.signature: Input should be 'none' or"),
        (endpoint(max_body=2**20 + 1), "max_body: Input should be less than or equal to 1048576"),
        (endpoint(secrets_from="f"), "endpoints.fsm_default/jobs.secrets_from: String should match"),
        (endpoint(secrets_from="a.f", secrets_variable="b"), "secrets_from: is given beside"),
        (endpoint(signature="standard-webhooks", id_header="x"), "id_header: belongs into signature"),
        (signed(algorithm="md5"), "signature.algorithm: Input should be 'sha1', 'sha256'"),
        (signed(header="x y"), "signature.header: String should match"),
        (signed(signed="{timestamp}.{body}"), "timestamp_header: goes with {timestamp} in signed"),
        (signed(timestamp_header="x-time"), "timestamp_header: goes with {timestamp} in signed"),
        (signed(signed="{timestamp}", timestamp_header="t"), "signed: should hold {body}"),
        (signed(signed="{body}{body}"), "signed: may hold"),
        (signed(signed="{body}{nonce}"), "signed: may hold"),
        (signed(signed="{id}{body}"), "id_header: is missing"),
        (signed(tolerance=43201), "signature.tolerance: Input should be less than or equal to 43200"),
    ],
)
def test_a_bad_field_is_named(configuration, message):
    with pytest.raises(FsmInputError) as caught:
        ReceiverSettings.parse(json.dumps(configuration))

    assert str(caught.value).startswith("Variable fsm_webhooks: ")
    assert message in str(caught.value)
    assert ";" not in str(caught.value)


def test_every_bad_field_is_named_and_none_is_quoted():
    text = json.dumps({"base_url": "a-token", **endpoint(max_body=0, keep_body="a-secret")})

    with pytest.raises(FsmInputError) as caught:
        ReceiverSettings.parse(text)

    for field in ("base_url", "max_body", "keep_body"):
        assert field in str(caught.value)
    assert "a-token" not in str(caught.value)
    assert "a-secret" not in str(caught.value)


def test_what_is_no_json_is_an_error():
    with pytest.raises(FsmInputError, match="Variable fsm_webhooks: Invalid JSON"):
        ReceiverSettings.parse("{")


def test_a_loopback_may_be_http():
    assert (
        ReceiverSettings.parse('{"base_url": "http://127.0.0.1:8080/"}').base_url == "http://127.0.0.1:8080"
    )


def test_header_names_are_read_in_lower_case():
    assert Scheme(header="X-Signature").header == "x-signature"


def test_addresses_are_by_connection_and_object():
    assert address("https://a.example", "my conn/1", "jobs", "t") == (
        "https://a.example/fsm/webhooks/my%20conn%2F1/jobs/t"
    )
