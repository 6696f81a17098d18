"""Which values are signing secrets or path tokens, for which route."""

import base64
import json

import pytest

from fsm_provider.plugins.webhooks.settings import registrations_prefix
from tests.unit.plugins import signing
from tests.unit.plugins.receivers import TOKEN

BODY = b'{"type": "jobs.created"}'
SECRET = "a signing secret"
SCHEME = {"signature": "hmac", "header": "x-signature"}
SECRETS = "fsm_webhook_secrets_fsm_default_jobs"


def post(receiver, secret, route="fsm_default/jobs"):
    """Post a delivery that is signed with a secret; return the status of the response."""
    headers = signing.hexadecimal(secret, BODY)
    response = receiver.post(BODY, headers=headers, url=receiver.url(route=route))
    return response.status_code


def refusal_of_everything(caplog):
    """Return the one line of the log that says so."""
    lines = []
    for record in caplog.records:
        is_ours = record.name.startswith("fsm_provider")
        if is_ours and "every delivery is refused" in record.getMessage():
            lines.append(record.getMessage())
    [line] = lines
    return line


NO_SECRETS = [
    "",
    "null",
    "false",
    "0",
    "{}",
    "[]",
    "short",
    "fifteen letters",
    " None              ",
    "[" * 50_000,
    [None],
    ["null"],
    [False],
    [{}],
    ["short"],
    ["  None             "],
    [["nested in a list"]],
]


class TestVariable:
    @pytest.mark.parametrize("value", NO_SECRETS, ids=lambda value: repr(value)[:20])
    def test_an_invalid_secret_is_refused_and_logged(self, receiver, caplog, value):
        receiver.configure(**SCHEME, secrets=value)
        guesses = {
            str(value),
            str(value).strip(),
            json.dumps(value),
            "",
            "null",
            "None",
            "false",
            "False",
            "0",
            "short",
            "{}",
            "fifteen letters",
        }

        for guess in guesses:
            assert post(receiver, guess[:1000]) == 401

        line = refusal_of_everything(caplog)
        assert f"Variable {SECRETS}: holds no signing secret of fsm_default/jobs" in line
        assert "short" not in line
        assert "fifteen" not in line

    def test_a_valid_secret_among_invalid_ones_is_accepted(self, receiver, caplog):
        receiver.configure(**SCHEME, secrets=[None, SECRET, "None", "x"])

        assert post(receiver, SECRET) == 200
        assert post(receiver, "None") == 401
        assert f"Variable {SECRETS}: 3 values refused:" in caplog.text

    @pytest.mark.parametrize(("key_bytes", "status"), [(15, 401), (16, 200)])
    def test_the_length_of_the_decoded_key_counts_for_standard_webhooks(
        self, receiver, key_bytes, status
    ):
        key = b"0123456789abcdef"[:key_bytes]
        secret = "whsec_" + base64.b64encode(key).decode()
        receiver.configure(signature="standard-webhooks", secrets=secret)

        response = receiver.post(BODY, headers=signing.standard(secret, BODY))

        assert response.status_code == status

    @pytest.mark.parametrize("tokens", ["null", [], [None], [""], ["short"]])
    def test_without_a_valid_token_no_path_is_found(self, receiver, caplog, tokens):
        receiver.set("fsm_webhook_secret_tokens_fsm_default_jobs", tokens)
        receiver.clock.now += 100

        for token in ("", "null", "None", "0", "short", '""'):
            response = receiver.post(BODY, url=receiver.url(token))
            assert response.status_code == 404

        line = refusal_of_everything(caplog)
        assert "Variable fsm_webhook_secret_tokens_fsm_default_jobs: holds no path token" in line


class TestRegistrations:
    """Each is a Variable of its own, which the operator writes."""

    @pytest.fixture
    def register(self, receiver):
        """Write the operator's Variable of a registration."""

        def write(number, *, route="fsm_default/jobs", text=None, **fields):
            record = {"for": route, "at": f"2026-01-0{number}T00:00:00+00:00", **fields}
            conn_id, object_ = route.split("/")
            name = registrations_prefix(conn_id, object_) + str(number) * 16
            receiver.set(name, record if text is None else text)

        return write

    def post(self, receiver, number, route="fsm_default/jobs"):
        headers = signing.hexadecimal(f"{SECRET} {number}", BODY)
        url = receiver.url(f"{TOKEN}{number}", route)
        response = receiver.post(BODY, headers=headers, url=url)
        return response.status_code

    def test_each_has_a_token_and_a_secret(self, receiver, register):
        register(1, token=f"{TOKEN}1", secret=f"{SECRET} 1")
        register(2, token=f"{TOKEN}2", secret=f"{SECRET} 2")
        receiver.configure(**SCHEME)

        assert self.post(receiver, 1) == 200
        assert self.post(receiver, 2) == 200
        assert self.post(receiver, 3) == 404
        assert post(receiver, SECRET) == 401  # by hand: a token without a secret

        receiver.configure(**SCHEME, secrets=SECRET)
        assert post(receiver, SECRET) == 200
        assert self.post(receiver, 1) == 200

    @pytest.mark.parametrize(
        "record",
        [{"route": "fsm default/jobs"}, {"text": "[1"}, {"for": ["fsm_default/jobs"]}],
    )
    def test_what_is_of_another_connection_or_no_registration_is_not_read(
        self, receiver, register, caplog, record
    ):
        """Names of connections that differ only in signs begin alike."""
        register(1, token=f"{TOKEN}1", secret=f"{SECRET} 1", **record)
        receiver.configure(**SCHEME, base={"endpoints": {"fsm-default/jobs": SCHEME}})

        assert self.post(receiver, 1, "fsm-default/jobs") == 404
        receiver.configure(**SCHEME)
        assert self.post(receiver, 1) == 404
        assert SECRET not in caplog.text

    def test_a_new_one_is_accepted_within_a_second(self, receiver, register):
        receiver.configure(**SCHEME, secrets=SECRET)
        assert post(receiver, SECRET) == 200

        receiver.clock.now += 1
        register(1, token=f"{TOKEN}1", secret=f"{SECRET} 1")

        assert self.post(receiver, 1) == 200
