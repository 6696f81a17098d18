"""Which values are signing secrets or path tokens, for which route; and no Variable names code."""

import base64
import json
import sys
import types
from pathlib import Path

import pytest

from fsm_provider.plugins.webhooks.names import DIGITS, registrations_prefix, tokens_variable
from fsm_provider.storage.lineage import uri_for_records
from tests.unit.plugins import signing
from tests.unit.plugins.conftest import TOKEN

BODY = b'{"type": "jobs.created"}'
SECRET = "a signing secret"
SCHEME = {"header": "x-signature"}
SECRETS = "fsm_webhook_secrets_fsm_default_jobs"
FUNCTION = {"signature": SCHEME, "secrets_from": "function"}


def post(receiver, secret, route="fsm_default/jobs"):
    headers = signing.hexadecimal(secret, BODY)
    return receiver.post(BODY, headers=headers, url=receiver.url(route=route)).status_code


def ours(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("fsm_provider")]


def test_no_variable_names_code(receiver, tmp_path, monkeypatch, caplog):
    """Tasks can write all three Variables; cProfile.run would execute the connection's name."""
    monkeypatch.chdir(tmp_path)
    code = "open('owned', 'w')"
    receiver.configure(
        base={
            "endpoints": {
                f"{code}/jobs": {"signature": SCHEME, "secrets_from": "cProfile.run"},
                "fsm_default/jobs": {"signature": "none"},
            }
        }
    )
    receiver.set(tokens_variable(code, "jobs"), [TOKEN])

    status = post(receiver, SECRET, route="open%28'owned',%20'w'%29/jobs")

    assert not Path("owned").exists()
    assert status == 404
    assert post(receiver, SECRET) == 404
    assert "webhook_secrets_function of [fsm]" in caplog.text


class TestFunction:
    @pytest.fixture
    def given(self, monkeypatch):
        module = types.ModuleType("user_secrets")
        module.secrets = lambda fsm_conn_id, watched: [f"the secret of {fsm_conn_id}-{watched}"]
        monkeypatch.setitem(sys.modules, "user_secrets", module)
        monkeypatch.setenv("AIRFLOW__FSM__WEBHOOK_SECRETS_FUNCTION", "user_secrets.secrets")
        return module

    def test_its_secrets_are_used(self, receiver, given):
        receiver.configure(**FUNCTION)

        assert post(receiver, "the secret of fsm_default-jobs") == 200

    def test_if_it_fails_senders_are_asked_to_retry(self, receiver, given, caplog):
        def fail(fsm_conn_id, watched):
            raise OSError("a secret")

        works, given.secrets = given.secrets, fail
        receiver.configure(**FUNCTION)

        for _ in range(3):
            assert post(receiver, "the secret of fsm_default-jobs") == 503
            receiver.clock.now += 1
        assert caplog.text.count("webhook_secrets_function raised OSError for fsm_default/jobs") == 1
        assert "a secret" not in caplog.text

        given.secrets = works
        receiver.clock.now += 1

        assert post(receiver, "the secret of fsm_default-jobs") == 200

    @pytest.mark.parametrize("path", [None, "user_secrets.absent", "nowhere.secrets", "sys.path"])
    def test_if_it_is_missing_senders_are_asked_to_retry(self, receiver, given, monkeypatch, caplog, path):
        if path is None:
            monkeypatch.delenv("AIRFLOW__FSM__WEBHOOK_SECRETS_FUNCTION")
        else:
            monkeypatch.setenv("AIRFLOW__FSM__WEBHOOK_SECRETS_FUNCTION", path)
        receiver.configure(**FUNCTION)

        assert post(receiver, SECRET) == 503
        (line,) = [line for line in ours(caplog) if "webhook_secrets_function" in line]
        assert "senders are asked to retry" in line

    @pytest.mark.parametrize("result", [None, "", "None", 0, [None], ["short"], {"1": False}])
    def test_an_invalid_secret_is_refused(self, receiver, given, caplog, result):
        given.secrets = lambda *_: result
        receiver.configure(**FUNCTION)

        for key in ("", "None", "short", "False", "0"):
            assert post(receiver, key) == 401
        assert len([line for line in ours(caplog) if "every delivery is refused" in line]) == 1


NO_SECRETS = [
    *("", "null", "None", "NONE", '""', "false", "0", "{}", "[]", "short", "fifteen letters", '"short"'),
    *(" " * 20, " None              ", json.dumps(" None              "), "[" * 50_000),
    *({"1": None}, {"1": "None"}, {"1": ""}, {"1": False}, {"1": 0}, {"1": {}}, {"1": "short"}),
    *("*" * 16, "\0" * 20, "abcd" + "\0" * 20, "\u200b" * 16),
    *([None], ["null"], [[["  None             "]]], 10**14),
]


class TestVariable:
    @pytest.mark.parametrize("value", NO_SECRETS, ids=lambda value: repr(value)[:20])
    def test_an_invalid_secret_is_refused_and_logged_once(self, receiver, caplog, value):
        receiver.configure(signature=SCHEME, secrets=value)
        guesses = {str(value), json.dumps(value), *("", "null", "None", "false", "False", "0", "short", "{}")}

        for guess in guesses | {str(value).strip(), "fifteen letters"}:
            assert post(receiver, guess[:1000]) == 401
            receiver.clock.now += 100
        (line,) = [line for line in ours(caplog) if "every delivery is refused" in line]
        assert f"Variable {SECRETS}: holds no signing secret of fsm_default/jobs" in line
        assert "short" not in line
        assert "fifteen" not in line

    def test_it_is_logged_again_after_the_variable_has_changed(self, receiver, caplog):
        for value, lines in (("null", 1), ("null", 1), ("None", 2), (SECRET, 2), ("None", 3)):
            receiver.configure(signature=SCHEME, secrets=value)
            post(receiver, "a guess")
            assert len([line for line in ours(caplog) if "every delivery is refused" in line]) == lines

    def test_a_valid_secret_among_invalid_ones_is_accepted(self, receiver, caplog):
        receiver.configure(signature=SCHEME, secrets={"1": None, "2": SECRET, "3": "None", "4": ["x"]})

        assert post(receiver, SECRET) == 200
        assert post(receiver, "None") == 401
        assert f"Variable {SECRETS}: 3 of 4 values cannot be a signing secret" in caplog.text

    @pytest.mark.parametrize(("key_bytes", "status"), [(15, 401), (16, 200)])
    @pytest.mark.parametrize("encoding", ["base64", "hex"])
    def test_the_length_of_the_decoded_key_counts(self, receiver, encoding, key_bytes, status):
        key = "0123456789abcdef"[:key_bytes]
        written = base64.b64encode(key.encode()).decode() if encoding == "base64" else key.encode().hex()
        receiver.configure(signature={**SCHEME, "secret_encoding": encoding}, secrets=written)

        assert post(receiver, key) == status

    @pytest.mark.parametrize(("key_bytes", "status"), [(15, 401), (16, 200)])
    def test_the_length_of_the_decoded_key_counts_for_standard_webhooks(self, receiver, key_bytes, status):
        secret = "whsec_" + base64.b64encode(b"0123456789abcdef"[:key_bytes]).decode()
        receiver.configure(signature="standard-webhooks", secrets={"1": secret})

        assert receiver.post(BODY, headers=signing.standard(secret, BODY)).status_code == status

    def test_a_json_string_is_unquoted(self, receiver):
        receiver.configure(signature=SCHEME, secrets=json.dumps(SECRET))

        assert post(receiver, SECRET) == 200

    @pytest.mark.parametrize("tokens", [[None, TOKEN], ["", TOKEN], [0, "short", TOKEN]])
    def test_a_valid_token_among_invalid_ones_is_accepted(self, receiver, caplog, tokens):
        receiver.configure(tokens=tokens)

        assert receiver.post(BODY).status_code == 200
        assert "cannot be a path token of fsm_default/jobs" in caplog.text

    @pytest.mark.parametrize("tokens", ["null", "None", '""', "0", {"by hand": None}, {"by hand": ["short"]}])
    def test_without_a_valid_token_no_path_is_found(self, receiver, caplog, tokens):
        receiver.set("fsm_webhook_secret_tokens_fsm_default_jobs", tokens)
        receiver.clock.now += 100

        for token in ("", "null", "None", "0", "short", '""'):
            assert receiver.post(BODY, url=receiver.url(token)).status_code == 404
        (line,) = [line for line in ours(caplog) if "every delivery is refused" in line]
        assert "Variable fsm_webhook_secret_tokens_fsm_default_jobs: holds no path token" in line


class TestShared:
    def test_an_account_cannot_sign_for_another(self, receiver, asset):
        asset(uri_for_records("fsm_other", "jobs"))
        secrets = {
            "fsm_default/jobs/1": "the secret of the first",
            "fsm_other/jobs/1": "the secret of the other",
            "fsm_default/jobs/x/1": "the secret of something else",
            "7": "the secret that a person wrote",
        }
        shared = {"signature": SCHEME, "secrets_variable": "shared"}
        receiver.configure(base={"endpoints": {"fsm_default/jobs": shared, "fsm_other/jobs": shared}})
        receiver.set("fsm_webhook_secret_tokens_fsm_other_jobs", [TOKEN])
        receiver.set("shared", secrets)

        first, other, neither, written = secrets.values()
        assert post(receiver, neither, "fsm_default/jobs") == 401
        assert post(receiver, other, "fsm_default/jobs") == 401
        assert post(receiver, first, "fsm_other/jobs") == 401
        assert post(receiver, first, "fsm_default/jobs") == 200
        assert post(receiver, other, "fsm_other/jobs") == 200
        assert post(receiver, written, "fsm_other/jobs") == 200


class TestRegistrations:
    """Each is a Variable of its own, which the operator writes."""

    @pytest.fixture
    def register(self, receiver):
        """Have the operator's Variable of a registration."""

        def write(number, *, route="fsm_default/jobs", digits=DIGITS, **record):
            conn_id, watched = route.split("/")
            given = {"for": route, "at": f"2026-01-0{number}T00:00:00+00:00", **record}
            name = registrations_prefix(conn_id, watched) + str(number).zfill(digits)
            receiver.set(name, record.get("text", given))

        return write

    def post(self, receiver, number, route="fsm_default/jobs"):
        headers = signing.hexadecimal(f"{SECRET} {number}", BODY)
        url = receiver.url(f"{TOKEN}{number}", route)
        return receiver.post(BODY, headers=headers, url=url).status_code

    def test_each_has_a_token_and_a_secret(self, receiver, register):
        for number in (1, 2):
            register(number, token=f"{TOKEN}{number}", secret=f"{SECRET} {number}")
        receiver.configure(signature=SCHEME)

        assert [self.post(receiver, number) for number in (1, 2, 3)] == [200, 200, 404]
        assert post(receiver, SECRET) == 401  # by hand: a token without a secret
        receiver.configure(signature=SCHEME, secrets=SECRET)
        assert [post(receiver, SECRET), self.post(receiver, 1)] == [200, 200]

    @pytest.mark.parametrize("record", [{"digits": 20}, {"route": "fsm default/jobs"}, {"text": "[1"}])
    def test_what_is_of_another_connection_or_no_registration_is_not_read(
        self, receiver, register, caplog, record
    ):
        """Names of connections that differ only in signs begin alike."""
        given = {"token": f"{TOKEN}1", "secret": f"{SECRET} 1", **record}
        register(1, **given)
        receiver.configure(signature=SCHEME, base={"endpoints": {"fsm-default/jobs": {"signature": SCHEME}}})

        assert self.post(receiver, 1, "fsm-default/jobs") == 404
        receiver.configure(signature=SCHEME)
        assert self.post(receiver, 1) == 404
        assert SECRET not in caplog.text

    def test_a_new_one_is_read_before_its_first_delivery_is_refused(self, receiver, register):
        """However old what is known of registrations is, where tokens by hand have just been read."""
        receiver.configure(signature=SCHEME, secrets=SECRET)
        assert post(receiver, SECRET) == 200
        receiver.clock.now += 5
        assert post(receiver, "a wrong secret") == 401
        receiver.clock.now += 5.5
        assert post(receiver, SECRET) == 200

        register(1, token=f"{TOKEN}1", secret=f"{SECRET} 1")

        assert self.post(receiver, 1) == 200
