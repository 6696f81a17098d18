"""Which deliveries are authentic, and which are repeats; other code than ours signs them."""

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
    if secrets is None:
        secrets = [STANDARD if scheme is ALL else SECRET]
    if isinstance(headers, dict):
        headers = headers.items()
    lower = [(name.lower(), value) for name, value in headers]
    endpoint = WebhookEndpoint.model_validate(scheme)
    try:
        return verify(endpoint, secrets, lower, body, now=now)
    except DeliveryRefusedError as error:
        return error.reason


def is_accepted(*args, **kwargs):
    return check(*args, **kwargs) not in ("signature", "timestamp", "headers")


DIGEST = hmac.digest(SECRET.encode(), BODY, "sha256")


@pytest.mark.parametrize(
    ("encoding", "signature"),
    [
        ("hex", DIGEST.hex()),
        ("base64", base64.b64encode(DIGEST).decode()),
    ],
)
def test_encodings(encoding, signature):
    headers = {"X-Signature": signature}
    scheme = {**PLAIN, "encoding": encoding}

    assert check(scheme, headers) == hashlib.sha256(BODY).hexdigest()
    assert check(scheme, headers, BODY + b" ") == "signature"
    assert check(scheme, headers, secrets=["00" + SECRET]) == "signature"


def test_a_prefix_precedes_the_signature():
    name = "x-hub-signature-256"
    with_prefix = signing.hexadecimal(SECRET, BODY, header=name, prefix="sha256=")
    without_prefix = signing.hexadecimal(SECRET, BODY, header=name)

    assert is_accepted(PREFIXED, with_prefix)
    assert check(PREFIXED, without_prefix) == "signature"


SIGNED_TIMES = [
    (TIMED, signing.timed, SECRET),
    (ALL, signing.standard, STANDARD),
]


@pytest.mark.parametrize(("scheme", "sign", "secret"), SIGNED_TIMES)
@pytest.mark.parametrize("off", [-300, 0, 300])
def test_a_signed_time_may_be_a_little_off(scheme, sign, secret, off):
    headers = sign(secret, BODY, at=NOW + off)

    assert is_accepted(scheme, headers)


@pytest.mark.parametrize(("scheme", "sign", "secret"), SIGNED_TIMES)
@pytest.mark.parametrize("off", [-301, 301])
def test_a_signed_time_may_not_be_far_off(scheme, sign, secret, off):
    headers = sign(secret, BODY, at=NOW + off)

    assert check(scheme, headers) == "timestamp"


def test_an_old_signature_with_a_new_time_is_refused():
    [(name, value)] = signing.timed(SECRET, BODY, at=NOW - 1000).items()
    with_new_time = value.replace(f"t={NOW - 1000}", f"t={NOW}")
    with_both_times = f"{value},t={NOW}"

    assert check(TIMED, {name: with_new_time}) == "signature"
    assert check(TIMED, {name: with_both_times}) == "headers"


@pytest.mark.parametrize(
    "text",
    [
        "nan",
        "-1",
        "1e9",
        "9" * 17,
        f"0{NOW}",
        f"+{NOW}",
        f"{NOW}.5",
        "۱۷۹۰۰۰۰۰۰۰",
        "2026-09-21",
    ],
)
def test_an_invalid_signed_time_is_refused(text):
    signed = f"{text}.".encode() + BODY
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()

    assert check(TIMED, {"x-signature": f"t={text},v1={digest}"}) == "timestamp"
    assert check(ALL, standard(timestamp=text)) == "timestamp"


def test_a_delivery_that_another_was_cut_from_is_no_repeat():
    longer_body = f"{NOW}.".encode() + BODY
    whole = standard(identifier=f"msg.{NOW}")
    cut = standard(identifier="msg", body=longer_body)

    assert whole["webhook-signature"] == cut["webhook-signature"]
    assert check(ALL, whole) != check(ALL, cut, longer_body)


def test_any_of_several_secrets_and_signatures_fits_and_one_has_to():
    headers = signing.hexadecimal("old", BODY)
    assert is_accepted(PLAIN, headers, secrets=["new", "old"])
    assert check(PLAIN, headers, secrets=["new"]) == "signature"
    assert check(PLAIN, signing.hexadecimal("", BODY), secrets=[]) == "signature"
    assert check(ALL, standard(key=b""), secrets=[]) == "signature"
    assert check(TIMED, {"x-signature": f"t={NOW}"}) == "signature"
    assert check(TIMED, {"x-signature": "t=,v1=00"}) == "headers"
    assert check(TIMED, {"x-signature": "v1=00"}) == "headers"

    several_signatures = standard(listed="v1a,AAAA v2,-- v1,AAAA v1,{} v1,")
    several_secrets = ["not base64!", signing.standard_secret(), STANDARD]
    assert is_accepted(ALL, several_signatures, secrets=several_secrets)


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
    digest = hmac.digest(key, signed, hashlib.sha256)
    valid = base64.b64encode(digest).decode()
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
        standard(listed=""),
        standard(listed="v1"),
        standard(listed="v1,"),
        standard(listed="{}"),
        standard(listed="V1,{}"),
        standard(listed="v1a,{}"),
        standard(listed="v1,é"),
        standard(listed="v1,{}AAAA"),
    ],
)
def test_a_changed_delivery_of_standard_webhooks_is_refused(headers):
    assert not is_accepted(ALL, headers)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_of_standard_webhooks_that_is_missing_or_twice_is_refused(name):
    headers = standard()
    twice = [*headers.items(), (name, headers[name])]
    del headers[name]

    assert not is_accepted(ALL, headers)
    assert not is_accepted(ALL, twice)


class StoppedClock(datetime):
    """A ``datetime`` whose ``now`` is NOW."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


def test_what_was_signed_is_not_divided_elsewhere():
    """A captured delivery does not get the time that stands in its body."""
    hour_ago = NOW - 3_600
    body = f"ring before .{NOW}. please".encode()
    captured = standard(timestamp=hour_ago, body=body)
    assert not is_accepted(ALL, captured, body)
    begin, _, rest = body.decode().partition(f".{NOW}.")

    divided = {
        **captured,
        "webhook-id": f"{captured['webhook-id']}.{hour_ago}.{begin}",
        "webhook-timestamp": str(NOW),
    }

    assert not is_accepted(ALL, divided, rest.encode())


printable_latin_1 = st.characters(codec="latin-1", exclude_characters=".").filter(str.isprintable)


@settings(max_examples=30, deadline=None)
@given(
    key=st.binary(min_size=16, max_size=64),
    mark=st.sampled_from(["", "whsec_"]),
    has_padding=st.booleans(),
    identifier=st.text(printable_latin_1, min_size=1, max_size=255),
    body=st.text(max_size=40),
    off=st.integers(-300, 300),
)
def test_what_the_library_of_standard_webhooks_signs_is_accepted(
    key, mark, has_padding, identifier, body, off
):
    secret = mark + base64.b64encode(key).decode()
    if not has_padding:
        secret = secret.rstrip("=")
    time = datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=off)
    headers = {
        "webhook-id": identifier,
        "webhook-timestamp": str(NOW + off),
        "webhook-signature": Webhook(secret).sign(identifier, time, body),
    }

    assert is_accepted(ALL, headers, body.encode(), secrets=[secret])


near_times = st.integers(NOW - 310, NOW + 310).map(str)
changed_headers = st.fixed_dictionaries(
    {},
    optional={
        "webhook-id": st.text(max_size=8),
        "webhook-timestamp": near_times | st.text(max_size=12),
        "webhook-signature": st.text(st.sampled_from("v1a2,= \t\xa0A-_+/é"), max_size=60),
    },
)
other_bodies = st.text(max_size=20).map(str.encode)


@settings(max_examples=100, deadline=None)
@given(changed=changed_headers, body=st.just(BODY) | other_bodies)
def test_what_the_library_of_standard_webhooks_refuses_is_refused(changed, body):
    headers = {**standard(), **changed}

    if is_accepted(ALL, headers, body):
        assert is_accepted_by_library(headers, body)


def is_accepted_by_library(headers, body):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("standardwebhooks.webhooks.datetime", StoppedClock)
        try:
            Webhook(STANDARD).verify(body, headers, json_parse=False)
        except Exception:  # noqa: BLE001 - malformed input makes the library raise anything
            return False
    return True


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
    first = digest_of(name, "1", BODY, NOW)
    second = digest_of(name, identifier, body, NOW + later)

    assert (first == second) is (name in repeated)


def digest_of(name, identifier, body, at):
    """Return the digest of a delivery in one of the schemes."""
    headers = {
        "none": {},
        "body": signing.hexadecimal(SECRET, body),
        "timed": signing.timed(SECRET, body, at=at),
        "all": signing.standard(STANDARD, body, at=at, identifier=identifier),
    }
    return check(SCHEMES[name], headers[name], body)
