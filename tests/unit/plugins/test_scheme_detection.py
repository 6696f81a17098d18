"""``verify`` finds the settings for a captured delivery and its secret, or reports that none fits."""

import base64
import hashlib
import hmac
import json
import subprocess
import sys

import pytest

from fsm_provider.plugins.webhooks.command import main
from fsm_provider.plugins.webhooks.settings import WebhookEndpoint
from fsm_provider.plugins.webhooks.signature import verify
from tests.unit.plugins import signing

SECRET = "a signing secret"
STANDARD = signing.standard_secret()
BODY = b'{"type": "jobs.created"}'
NOW = 1_790_000_000
OTHERS = {"Host": "airflow.example.com", "Content-Length": "24", "X-Request-ID": "7f00aa", "Date": "now"}


KEY = SECRET.encode()


def digest(text, key=KEY, algorithm="sha256"):
    return hmac.new(key, text, algorithm)


DELIVERIES = {
    "github": (SECRET, {"X-Hub-Signature-256": f"sha256={digest(BODY).hexdigest()}"}),
    "shopify": (SECRET, {"X-Hmac": base64.b64encode(digest(BODY).digest()).decode()}),
    "sha1": (SECRET, {"X-Signature": digest(BODY, algorithm="sha1").hexdigest()}),
    "sha512": (SECRET, {"X-Signature": digest(BODY, algorithm="sha512").hexdigest().upper()}),
    "stripe": (SECRET, signing.timed(SECRET, BODY, at=NOW)),
    "slack": (
        SECRET,
        {
            "X-Slack-Request-Timestamp": str(NOW),
            "X-Slack-Signature": f"v0={digest(b'v0:%d:' % NOW + BODY).hexdigest()}",
        },
    ),
    "milliseconds": (
        SECRET,
        {"X-Time": str(NOW * 1000), "X-Sign": digest(b"%d000." % NOW + BODY).hexdigest()},
    ),
    "iso": (
        SECRET,
        {"X-Time": "2026-09-21T14:13:20Z", "X-Sign": digest(b"2026-09-21T14:13:20Z" + BODY).hexdigest()},
    ),
    "base64 secret": (
        base64.b64encode(b"\x00\x01key").decode(),
        {"X-Signature": digest(BODY, b"\x00\x01key").hexdigest()},
    ),
    "base64url secret": (
        base64.urlsafe_b64encode(b"\x00\xff\xfekey").decode(),
        {"X-Signature": digest(BODY, b"\x00\xff\xfekey").hexdigest()},
    ),
    "hex secret": ("0001ff", {"X-Signature": digest(BODY, b"\x00\x01\xff").hexdigest()}),
    "identifier": (SECRET, {"X-Delivery-Id": "d1", "X-Sign": digest(b"d1." + BODY).hexdigest()}),
}


@pytest.fixture
def run(tmp_path, capsys):
    def run(headers, body, secret):
        files = {"headers": headers, "body": body, "secret-file": secret}
        arguments = ["verify"]
        for name, content in files.items():
            path = tmp_path / name
            path.write_bytes(content if isinstance(content, bytes) else content.encode("latin-1"))
            arguments += [f"--{name}", str(path)]
        code = main(arguments)
        return code, capsys.readouterr().out

    return run


def lines(headers):
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def settings_in(output):
    start, end = output.index("{\n"), output.index("\n}\n") + 2
    return json.loads(output[start:end])


@pytest.mark.parametrize("name", DELIVERIES)
def test_the_settings_found_verify_the_delivery(run, name):
    secret, headers = DELIVERIES[name]

    code, output = run("POST /hook HTTP/1.1\r\n" + lines({**OTHERS, **headers}), BODY, secret + "\n")

    assert code == 0
    endpoint = WebhookEndpoint.model_validate(settings_in(output))
    items = [(name.lower(), value) for name, value in headers.items()]
    assert verify(endpoint, [secret], items, BODY, now=NOW)
    assert secret not in output


def test_standard_webhooks_is_found_as_the_preset(run):
    code, output = run(json.dumps({**OTHERS, **signing.standard(STANDARD, BODY, at=NOW)}), BODY, STANDARD)

    assert code == 0
    assert settings_in(output) == {"signature": "standard-webhooks"}
    assert "can send it again" not in output


@pytest.mark.parametrize(("secret", "refused"), [("fifteen letters", True), ("sixteen letters!", False)])
def test_a_secret_that_the_receiver_refuses_is_reported(run, secret, refused):
    code, output = run(lines(signing.hexadecimal(secret, BODY)), BODY, secret)

    assert code == 0
    assert ("The receiver refuses this secret" in output) is refused


def test_a_line_break_that_the_capture_added_is_reported(run):
    secret, headers = DELIVERIES["github"]

    code, output = run(lines(headers), BODY + b"\n", secret)

    assert code == 0
    assert "without the line break" in output


def test_an_unsigned_time_is_reported(run):
    secret, headers = DELIVERIES["github"]

    assert "No time of sending is signed" in run(lines(headers), BODY, secret)[1]


@pytest.mark.parametrize(
    "twice",
    [
        lines(DELIVERIES["github"][1]) * 2,
        lines(signing.timed(SECRET, BODY, at=NOW)).replace("t=", f"t={NOW - 9},t="),
        lines(signing.timed(SECRET, BODY, at=NOW)).replace(f"t={NOW}", f"t={NOW},t={NOW + 9}"),
    ],
)
def test_no_settings_are_printed_with_which_the_receiver_refuses_the_delivery(run, twice):
    code, output = run(twice, BODY, SECRET)

    assert code == 1
    assert output.startswith("None of the known schemes fits.")


@pytest.mark.parametrize("identifiers", [["1", "2"], ["x" * 256]])
def test_an_identifier_that_the_receiver_refuses_is_not_part_of_the_settings(run, identifiers):
    headers = DELIVERIES["github"][1]

    code, output = run(
        "".join(f"X-Request-ID: {one}\n" for one in identifiers) + lines(headers), BODY, SECRET
    )

    assert code == 0
    assert "id_header" not in settings_in(output)["signature"]


@pytest.mark.parametrize(
    ("headers", "body", "secret"),
    [
        (lines(DELIVERIES["github"][1]), BODY, "another"),
        (lines(DELIVERIES["github"][1]), BODY + b" ", SECRET),
        (lines(OTHERS), BODY, SECRET),
        (lines({"X-Signature": hashlib.sha256(BODY).hexdigest()}), BODY, SECRET),
    ],
)
def test_no_fitting_scheme_is_reported(run, headers, body, secret):
    code, output = run(headers, body, secret)

    assert code == 1
    assert output.startswith("None of the known schemes fits.")


@pytest.mark.parametrize(("headers", "secret"), [("", SECRET), ("{", SECRET), (lines(OTHERS), " \n")])
def test_unreadable_input_exits_with_2(run, headers, secret):
    assert run(headers, BODY, secret)[0] == 2


def test_it_runs_as_a_command():
    command = [sys.executable, "-m", "fsm_provider", "webhook", "verify", "--help"]

    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "--secret-file" in output
