"""The verdicts on Standard Webhooks, compared with those of the scheme's own library."""

import base64
import hashlib
import hmac
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks import Webhook
from standardwebhooks.webhooks import EmptyWebhookSecretError

from fsm_provider.plugins.webhooks.settings import WebhookEndpoint
from fsm_provider.plugins.webhooks.signature import RefusedError, verify

NOW = 1_790_000_000
BODY = b'{"type": "jobs.created"}'
KEY = b"\xfb\xff\xfe, a key of 22 bytes"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
ENDPOINT = WebhookEndpoint(signature="standard-webhooks")


class _Stopped(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


@pytest.fixture(autouse=True, scope="module")
def stopped_clock() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("standardwebhooks.webhooks.datetime", _Stopped)
        yield


def ours(secret, headers, body):
    try:
        verify(ENDPOINT, [secret], list(headers.items()), body, now=NOW)
    except RefusedError:
        return False
    return True


def of_library(secret, headers, body):
    try:
        Webhook(secret).verify(body, headers, json_parse=False)
    except Exception:  # noqa: BLE001 - malformed input makes the library raise anything
        return False
    return True


def signature(key, identifier, timestamp, body):
    signed = f"{identifier}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def delivery(
    *, identifier="msg_1", timestamp=NOW, header=None, signs=None, key=KEY, body=BODY, lists="v1,{}"
):
    """Return headers.

    :param header: the timestamp's header, if it is not what is signed.
    :param signs: the identifier that is signed, if it is not that in the header.
    :param lists: the list of signatures, where ``{}`` stands for the valid one.
    """
    valid = signature(key, identifier if signs is None else signs, timestamp, body)
    return {
        "webhook-id": identifier,
        "webhook-timestamp": str(timestamp) if header is None else header,
        "webhook-signature": lists.replace("{}", valid),
    }


def without(name):
    return {key: value for key, value in delivery().items() if key != name}


BOTH, NEITHER, LIBRARY = (True, True), (False, False), (True, False)

CASES = {
    "plain": (BOTH, delivery()),
    "no body": (BOTH, delivery(body=b""), b""),
    "text beyond ASCII": (BOTH, delivery(body="é€".encode()), "é€".encode()),
    "a body that is no text": (NEITHER, delivery(body=b"\xff\xfe"), b"\xff\xfe"),
    "another body": (NEITHER, delivery(), BODY + b" "),
    # The identifier.
    "a blank as identifier": (BOTH, delivery(identifier=" ")),
    "an identifier beyond ASCII": (BOTH, delivery(identifier="é")),
    "an identifier with dots": (BOTH, delivery(identifier=f"a.{NOW}.b")),
    "the longest identifier": (BOTH, delivery(identifier="x" * 255)),
    "an empty identifier": (NEITHER, delivery(identifier="")),
    "no identifier": (NEITHER, without("webhook-id")),
    "another identifier": (NEITHER, delivery(identifier="msg_2", signs="msg_1")),
    # What does not fit into the database, or makes lines in a log.
    "a longer identifier": (LIBRARY, delivery(identifier="x" * 256)),
    "a control character": (LIBRARY, delivery(identifier="a\x85b")),
    # The time.
    "the oldest": (BOTH, delivery(timestamp=NOW - 300)),
    "the newest": (BOTH, delivery(timestamp=NOW + 300)),
    "blanks around the time": (BOTH, delivery(header=f" {NOW} ")),
    "too old": (NEITHER, delivery(timestamp=NOW - 301)),
    "too new": (NEITHER, delivery(timestamp=NOW + 301)),
    "milliseconds": (NEITHER, delivery(timestamp=NOW * 1000)),
    "an empty time": (NEITHER, delivery(timestamp="")),
    "no time": (NEITHER, without("webhook-timestamp")),
    "a word as time": (NEITHER, delivery(timestamp="soon")),
    "not a number": (NEITHER, delivery(timestamp="nan")),
    "infinite": (NEITHER, delivery(timestamp="inf")),
    "before 1970": (NEITHER, delivery(timestamp="-1")),
    "two times": (NEITHER, delivery(timestamp=f"{NOW},{NOW}")),
    "signed leading zeros": (NEITHER, delivery(timestamp=f"00{NOW}")),
    "a signed plus": (NEITHER, delivery(timestamp=f"+{NOW}")),
    "a signed fraction": (NEITHER, delivery(timestamp=f"{NOW}.5")),
    # Other ways to write a number: the library signs them as the plain one, which the header does not hold.
    "leading zeros": (LIBRARY, delivery(header=f"00{NOW}")),
    "a plus": (LIBRARY, delivery(header=f"+{NOW}")),
    "a fraction": (LIBRARY, delivery(header=f"{NOW}.5")),
    "an exponent": (LIBRARY, delivery(header="1.79e9")),
    "underscores": (LIBRARY, delivery(header=f"{NOW:_}")),
    "other digits": (LIBRARY, delivery(header="۱۷۹۰۰۰۰۰۰۰")),
    # The list of signatures.
    "other versions": (BOTH, delivery(lists="v1a,AAAA v2,-- ,AAAA v1,{}")),
    "another signature first": (BOTH, delivery(lists="v1,AAAA v1,{}")),
    "an empty signature first": (BOTH, delivery(lists="v1, v1,{}")),
    "twice the same": (BOTH, delivery(lists="v1,{} v1,{}")),
    "sixteen": (BOTH, delivery(lists=" ".join(f"v1,AA{n:02}" for n in range(15)) + " v1,{}")),
    "no signature": (NEITHER, without("webhook-signature")),
    "an empty list": (NEITHER, delivery(lists="")),
    "a version alone": (NEITHER, delivery(lists="v1")),
    "a signature alone": (NEITHER, delivery(lists="{}")),
    "an asymmetric version": (NEITHER, delivery(lists="v1a,{}")),
    "a version in capitals": (NEITHER, delivery(lists="V1,{}")),
    "a comma more": (NEITHER, delivery(lists="v1,{},")),
    "commas between": (NEITHER, delivery(lists="v1,AAAA,v1,{}")),
    "a tab between": (NEITHER, delivery(lists="v1,AAAA\tv1,{}")),
    "another blank between": (NEITHER, delivery(lists="v1,AAAA\xa0v1,{}")),
    "two blanks between": (NEITHER, delivery(lists="v1,AAAA  v1,{}")),
    "a blank before": (NEITHER, delivery(lists=" v1,{}")),
    "a word before": (NEITHER, delivery(lists="v1 v1,{}")),
    "one that cannot be decoded before": (NEITHER, delivery(lists="v1,AAA v1,{}")),
    "one beyond ASCII before": (NEITHER, delivery(lists="v1,é v1,{}")),
    # The library looks at nothing after the signature that fits, and drops what is not base64.
    "a word after": (LIBRARY, delivery(lists="v1,{} v1")),
    "a blank after": (LIBRARY, delivery(lists="v1,{} ")),
    "one that cannot be decoded after": (LIBRARY, delivery(lists="v1,{} v1,AAA")),
    "a dash within": (LIBRARY, delivery(lists="v1,-{}")),
    "more after the padding": (LIBRARY, delivery(lists="v1,{}AAAA")),
    # Our limit.
    "seventeen": (LIBRARY, delivery(lists=" ".join(f"v1,AA{n:02}" for n in range(16)) + " v1,{}")),
    # The secret.
    "no mark": (BOTH, delivery(), BODY, SECRET.removeprefix("whsec_")),
    "no padding": (BOTH, delivery(), BODY, SECRET.rstrip("=")),
    "too much padding": (BOTH, delivery(), BODY, SECRET + "=="),
    "two marks": (NEITHER, delivery(), BODY, "whsec_" + SECRET),
    "a character less": (NEITHER, delivery(), BODY, SECRET.rstrip("=")[:-1]),
    "a secret beyond ASCII": (NEITHER, delivery(), BODY, SECRET + "é"),
    "an empty secret": (NEITHER, delivery(key=b""), BODY, ""),
    "a mark alone": (NEITHER, delivery(key=b""), BODY, "whsec_"),
    "the URL alphabet": (NEITHER, delivery(), BODY, base64.urlsafe_b64encode(KEY).decode()),
    # The library drops what is not base64: another key than the one that was meant, and a shorter one.
    "the rest of the URL alphabet": (LIBRARY, delivery(), BODY, f"-_-_{SECRET}".replace("whsec_", "")),
    "a line break in the secret": (LIBRARY, delivery(), BODY, SECRET[:20] + "\n" + SECRET[20:]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdicts_on(name):
    (library_accepts, we_accept), headers, *rest = CASES[name]
    body, secret = (*rest, *(BODY, SECRET)[len(rest) :])

    assert of_library(secret, headers, body) is library_accepts
    assert ours(secret, headers, body) is we_accept


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_repeated_header_is_refused(name):
    """The library gets a dict, which has lost one of the two."""
    headers = [*delivery().items(), (name, delivery()[name])]

    with pytest.raises(RefusedError, match="headers"):
        verify(ENDPOINT, [SECRET], headers, BODY, now=NOW)


keys = st.binary(min_size=16, max_size=64).filter(lambda key: len(set(key.rstrip(b"\0"))) >= 5)
bodies = st.one_of(st.just(BODY), st.text(max_size=40).map(str.encode))
# Header values arrive as Latin-1.
printable = st.characters(codec="latin-1").filter(str.isprintable)
marks = st.sampled_from(["", "whsec_"])
others = st.sampled_from(["v1a,AAAA", "v2,", ",", "v1,AAAA", "v1,"])


def shuffled(valid, before, after):
    return " ".join([*before, valid, *after])


@settings(max_examples=100, deadline=None)
@given(
    key=keys,
    mark=marks,
    padding=st.booleans(),
    identifier=st.text(printable, min_size=1, max_size=255),
    body=bodies,
    off=st.integers(-300, 300),
    before=st.lists(others, max_size=7),
    after=st.lists(others, max_size=7),
)
def test_what_the_library_signs_is_accepted(key, mark, padding, identifier, body, off, before, after):
    secret = mark + base64.b64encode(key).decode().rstrip("=" if not padding else "")
    at = datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=off)
    valid = Webhook(secret).sign(identifier, at, body.decode())
    headers = {
        "webhook-id": identifier,
        "webhook-timestamp": str(NOW + off),
        "webhook-signature": shuffled(valid, before, after),
    }

    assert of_library(secret, headers, body)
    assert ours(secret, headers, body)


times = st.one_of(
    st.integers(NOW - 310, NOW + 310).map(str),
    st.sampled_from(
        [f"{NOW}.5", f"+{NOW}", f"0{NOW}", f" {NOW}", f"{NOW}\xa0", f"{NOW:_}", "1.79e9", "", "nan"]
    ),
    st.text(st.characters(codec="latin-1"), max_size=12),
)
identifiers = st.one_of(
    st.sampled_from(["msg_1", "", " "]), st.text(st.characters(codec="latin-1"), max_size=12)
)
anything = st.text(st.sampled_from("v1a2,= \t\xa0A-_+/é"), max_size=8)
parts = st.one_of(others, anything)


def key_of_library(secret):
    with suppress(ValueError, EmptyWebhookSecretError):
        return Webhook(secret)._whsecret
    return b""


def mistaken(text, place, replacement):
    place = min(place, len(text))
    return text[:place] + replacement + text[place + 1 :]


MISTAKES = {
    "mark": anything,
    "alphabet": st.just(base64.urlsafe_b64encode),
    "secret": st.tuples(st.integers(0, 30), anything),
    "signature": st.tuples(st.integers(0, 50), anything),
    "identifier": identifiers,
    "time": times,
    "body": st.binary(max_size=20),
    "before": st.lists(parts, min_size=1, max_size=2),
    "after": st.lists(parts, min_size=1, max_size=2),
}


@settings(max_examples=500, deadline=None)
@given(
    mistakes=st.lists(
        st.one_of([st.tuples(st.just(name), how) for name, how in MISTAKES.items()]), max_size=2
    ),
    key=keys,
    reads_number=st.booleans(),
    signs_as_library=st.booleans(),
)
def test_what_the_library_refuses_is_refused(mistakes, key, reads_number, signs_as_library):
    """Deliveries with up to two mistakes, signed as one or the other might read them."""
    made = dict(mistakes)
    identifier, header, body = (
        made.get("identifier", "msg_1"),
        made.get("time", str(NOW)),
        made.get("body", BODY),
    )
    secret = made.get("mark", "whsec_") + made.get("alphabet", base64.b64encode)(key).decode()
    if "secret" in made:
        secret = mistaken(secret, *made["secret"])
    if signs_as_library:
        key = key_of_library(secret)
    timestamp = header.strip()
    if reads_number:
        with suppress(ValueError, OverflowError):
            timestamp = int(float(header))
    valid = f"v1,{signature(key, identifier, timestamp, body)}"
    if "signature" in made:
        valid = mistaken(valid, *made["signature"])
    headers = {
        "webhook-id": identifier,
        "webhook-timestamp": header,
        "webhook-signature": shuffled(valid, made.get("before", []), made.get("after", [])),
    }

    assert of_library(secret, headers, body) or not ours(secret, headers, body)
