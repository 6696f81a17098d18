"""Which deliveries are authentic, and which are repeats, against deliveries signed by other code."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks import Webhook

from fsm_provider.plugins.webhooks.settings import WebhookEndpoint
from fsm_provider.plugins.webhooks.signature import DeliveryRefusedError, verify
from tests.unit.plugins import signing

NOW = 1_790_000_000
SECRET = "a signing secret"
KEY = b"\xfb\xff\xfe, a key of 22 bytes"
STANDARD = "whsec_" + base64.b64encode(KEY).decode()
BODY = b'{"type": "jobs.created", "data": {"id": 1001}}'
OTHER = b'{"type": "jobs.closed"}'

NONE = {"signature": "none"}
PLAIN = {"signature": "hmac", "header": "X-Signature"}
PREFIXED = {"signature": "hmac", "header": "x-hub-signature-256", "prefix": "sha256="}
TIMED = {"signature": "hmac", "header": "x-signature", "prefix": "v1=", "timestamp_prefix": "t="}
ALL = {"signature": "standard-webhooks"}


def check(scheme, headers, body=BODY, *, secrets=None, now=NOW):
    """Return the delivery's digest, or why it is refused."""
    items = headers.items() if isinstance(headers, dict) else headers
    secrets = [STANDARD if scheme is ALL else SECRET] if secrets is None else secrets
    given = [(name.lower(), value) for name, value in items]
    try:
        return verify(WebhookEndpoint.model_validate(scheme), secrets, given, body, now=now)
    except DeliveryRefusedError as error:
        return error.reason


def is_accepted(*args, **kwargs):
    return check(*args, **kwargs) not in ("signature", "timestamp", "headers")


@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_encodings(encoding):
    digest = hmac.new(SECRET.encode(), BODY, "sha256").digest()
    headers = {
        "X-Signature": digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
    }
    scheme = {**PLAIN, "encoding": encoding}

    assert check(scheme, headers) == hashlib.sha256(BODY).hexdigest()
    assert check(scheme, headers, BODY + b" ") == "signature"
    assert check(scheme, headers, secrets=["00" + SECRET]) == "signature"


def test_a_prefix_precedes_the_signature():
    name = "x-hub-signature-256"

    assert is_accepted(PREFIXED, signing.hexadecimal(SECRET, BODY, header=name, prefix="sha256="))
    assert check(PREFIXED, signing.hexadecimal(SECRET, BODY, header=name)) == "signature"


@pytest.mark.parametrize("scheme", [TIMED, ALL])
@pytest.mark.parametrize(
    ("off", "accepted"), [(-301, False), (-300, True), (0, True), (300, True), (301, False)]
)
def test_a_signed_time_may_be_a_little_off(scheme, off, accepted):
    sign = signing.timed if scheme is TIMED else signing.standard
    headers = sign(SECRET if scheme is TIMED else STANDARD, BODY, at=NOW + off)

    assert check(scheme, headers) == "timestamp" if not accepted else is_accepted(scheme, headers)


def test_an_old_signature_with_a_new_time_is_refused():
    (name, value) = signing.timed(SECRET, BODY, at=NOW - 1000).popitem()

    assert check(TIMED, {name: value.replace(f"t={NOW - 1000}", f"t={NOW}")}) == "signature"
    assert check(TIMED, {name: f"{value},t={NOW}"}) == "headers"


@pytest.mark.parametrize(
    "text",
    ["nan", "-1", "1e9", "9" * 17, f"0{NOW}", f"+{NOW}", f"{NOW}.5", "۱۷۹۰۰۰۰۰۰۰", "2026-09-21"],
)
def test_an_invalid_signed_time_is_refused(text):
    digest = hmac.new(SECRET.encode(), f"{text}.".encode() + BODY, hashlib.sha256).hexdigest()

    assert check(TIMED, {"x-signature": f"t={text},v1={digest}"}) == "timestamp"
    assert check(ALL, standard(timestamp=text)) == "timestamp"


def test_a_delivery_that_another_was_cut_from_is_no_repeat():
    whole, cut = (
        standard(identifier=f"msg.{NOW}"),
        standard(identifier="msg", body=f"{NOW}.".encode() + BODY),
    )

    assert whole["webhook-signature"] == cut["webhook-signature"]
    assert check(ALL, whole) != check(ALL, cut, f"{NOW}.".encode() + BODY)


def test_any_of_several_secrets_and_signatures_fits_and_one_has_to():
    headers = signing.hexadecimal("old", BODY)
    assert is_accepted(PLAIN, headers, secrets=["new", "old"])
    assert check(PLAIN, headers, secrets=["new"]) == "signature"
    assert check(PLAIN, signing.hexadecimal("", BODY), secrets=[]) == "signature"
    assert check(ALL, standard(key=b""), secrets=[]) == "signature"
    assert check(TIMED, {"x-signature": f"t={NOW}"}) == "signature"
    assert (
        check(TIMED, {"x-signature": "t=,v1=00"})
        == check(TIMED, {"x-signature": "v1=00"})
        == "headers"
    )

    headers = standard(listed="v1a,AAAA v2,-- v1,AAAA v1,{} v1,")
    assert is_accepted(ALL, headers, secrets=["not base64!", signing.standard_secret(), STANDARD])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("x-signature", "")],
        [("x-signature", "é" * 64)],
        [("x-signature", "0" * 64)],
        [("x-signature", " ".join(["0" * 64] * 1000))],
        [*signing.hexadecimal(SECRET, BODY).items(), ("x-signature", "0" * 64)],
    ],
)
def test_malformed_headers_are_refused(headers):
    assert not is_accepted(PLAIN, headers)


def standard(*, identifier="msg_1", timestamp=NOW, listed="v1,{}", key=KEY, body=BODY):
    """Return headers; ``{}`` in the list of signatures stands for the valid one."""
    signed = f"{identifier}.{timestamp}.".encode() + body
    valid = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return {
        "webhook-id": identifier,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": listed.replace("{}", valid),
    }


@pytest.mark.parametrize(
    "headers",
    [
        {**standard(), "webhook-id": "msg_2"},
        {**standard(), "webhook-timestamp": f"{NOW + 1}"},
        {**standard(), "webhook-timestamp": "soon"},
        standard(identifier=""),
        standard(key=b"another key of 24 bytes."),
        *(
            standard(listed=text)
            for text in ("", "v1", "v1,", "{}", "V1,{}", "v1a,{}", "v1,é", "v1,{}AAAA")
        ),
        *({k: v for k, v in standard().items() if k != name} for name in standard()),
        *([*standard().items(), (name, value)] for name, value in standard().items()),
    ],
)
def test_a_changed_delivery_of_standard_webhooks_is_refused(headers):
    assert not is_accepted(ALL, headers)


class _Stopped(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


keys = st.binary(min_size=16, max_size=64)


@settings(max_examples=30, deadline=None)
@given(
    key=keys,
    mark=st.sampled_from(["", "whsec_"]),
    padding=st.booleans(),
    identifier=st.text(
        st.characters(codec="latin-1").filter(str.isprintable), min_size=1, max_size=255
    ),
    body=st.text(max_size=40),
    off=st.integers(-300, 300),
)
def test_what_the_library_of_standard_webhooks_signs_is_accepted(
    key, mark, padding, identifier, body, off
):
    secret = mark + base64.b64encode(key).decode().rstrip("=" if not padding else "")
    headers = {
        "webhook-id": identifier,
        "webhook-timestamp": str(NOW + off),
        "webhook-signature": Webhook(secret).sign(
            identifier, datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=off), body
        ),
    }

    assert is_accepted(ALL, headers, body.encode(), secrets=[secret])


@settings(max_examples=100, deadline=None)
@given(
    changed=st.fixed_dictionaries(
        {},
        optional={
            "webhook-id": st.text(max_size=8),
            "webhook-timestamp": st.integers(NOW - 310, NOW + 310).map(str) | st.text(max_size=12),
            "webhook-signature": st.text(st.sampled_from("v1a2,= \t\xa0A-_+/é"), max_size=60),
        },
    ),
    body=st.just(BODY) | st.text(max_size=20).map(str.encode),
)
def test_what_the_library_of_standard_webhooks_refuses_is_refused(changed, body):
    headers = {**standard(), **changed}

    def is_accepted_by_library():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("standardwebhooks.webhooks.datetime", _Stopped)
            try:
                Webhook(STANDARD).verify(body, headers, json_parse=False)
            except Exception:  # noqa: BLE001 - malformed input makes the library raise anything
                return False
            return True

    assert not is_accepted(ALL, headers, body) or is_accepted_by_library()


# The first delivery has identifier "1", body BODY and time NOW. Which schemes see these as its
# repeats?
SCHEMES = {"none": NONE, "body": PLAIN, "timed": TIMED, "all": ALL}
TABLE = [
    # identifier, body, seconds later, schemes for which it is a repeat
    ("1", BODY, 0, {*SCHEMES}),
    ("1", BODY, 60, {"none", "body", "all"}),  # sent again, with a fresh signature
    ("1", OTHER, 0, set()),  # another registration, which also numbers from 1
    ("1", OTHER, 60, set()),
    ("2", BODY, 0, {"none", "body", "timed"}),  # under another, unsigned identifier
    ("2", BODY, 60, {"none", "body"}),
    ("2", OTHER, 0, set()),
]


@pytest.mark.parametrize(("identifier", "body", "later", "repeated"), TABLE)
@pytest.mark.parametrize("name", SCHEMES)
def test_which_deliveries_are_repeats(name, identifier, body, later, repeated):
    def delivery(identifier, body, at):
        headers = {
            "body": signing.hexadecimal(SECRET, body),
            "timed": signing.timed(SECRET, body, at=at),
            "all": signing.standard(STANDARD, body, at=at, identifier=identifier),
        }
        return check(SCHEMES[name], headers.get(name, {}), body)

    first, second = delivery("1", BODY, NOW), delivery(identifier, body, NOW + later)

    assert (first == second) is (name in repeated)
