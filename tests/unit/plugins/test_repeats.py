"""Deliveries are repeats if identifier and body, or the signed content, are the same."""

import hashlib
import hmac
import time
from itertools import product

import pytest

from fsm_provider.plugins.webhooks.settings import WebhookEndpoint
from fsm_provider.plugins.webhooks.signature import verify
from tests.unit.plugins import signing

NOW = int(time.time())
SECRET = "a signing secret"
STANDARD = signing.standard_secret()
ONE, OTHER = b'{"type": "jobs.created"}', b'{"type": "jobs.closed"}'

NONE = "none"
BODY = "{body}"
TIMED = "{timestamp}.{body}"
NAMED = "{id}.{body}"
ALL = "{id}.{timestamp}.{body}"


def identity(signed, identifier, body, sent_at):
    headers = {"x-time": str(sent_at), **({} if identifier is None else {"x-id": identifier})}
    endpoint = {"signature": "none", "id_header": "x-id"}
    if signed != NONE:
        filled = signed.format(id=identifier, timestamp=sent_at, body=body.decode())
        headers["x-signature"] = hmac.new(SECRET.encode(), filled.encode(), hashlib.sha256).hexdigest()
        scheme = {"header": "x-signature", "signed": signed, "id_header": "x-id"}
        timed = {"timestamp_header": "x-time"} if "{timestamp}" in signed else {}
        endpoint = {"signature": {**scheme, **timed}}
    return verify(WebhookEndpoint.model_validate(endpoint), [SECRET], list(headers.items()), body, now=NOW)


def is_repeat(first, second):
    """The condition for a repeat in :mod:`fsm_provider.plugins.webhooks.events`."""
    return first.key == second.key or first.digest == second.digest


# The first delivery has identifier "1", body ONE and time NOW. Which schemes see these as its repeats?
SCHEMES = (NONE, BODY, TIMED, NAMED, ALL)
TABLE = [
    # identifier, body, seconds later, schemes for which it is a repeat
    ("1", ONE, 0, {*SCHEMES}),
    ("1", ONE, 60, {*SCHEMES}),  # sent again, with a fresh signature
    ("1", OTHER, 0, set()),  # another registration, which also numbers from 1
    ("1", OTHER, 60, set()),
    ("2", ONE, 0, {BODY, TIMED}),  # a replay under another, unsigned identifier
    ("2", ONE, 60, {BODY}),
    ("2", OTHER, 0, set()),
    ("2", OTHER, 60, set()),
]


@pytest.mark.parametrize(("identifier", "body", "later", "repeated"), TABLE)
@pytest.mark.parametrize("signed", SCHEMES)
def test_repeats_of_a_delivery_with_an_identifier(signed, identifier, body, later, repeated):
    first, second = identity(signed, "1", ONE, NOW), identity(signed, identifier, body, NOW + later)

    assert is_repeat(first, second) is (signed in repeated)


@pytest.mark.parametrize(
    ("signed", "body", "later", "repeated"),
    [
        (signed, body, later, body == ONE and (later == 0 or signed != TIMED))
        for signed, body, later in product((NONE, BODY, TIMED), (ONE, OTHER), (0, 60))
    ],
)
def test_repeats_of_a_delivery_without_an_identifier(signed, body, later, repeated):
    assert is_repeat(identity(signed, None, ONE, NOW), identity(signed, None, body, NOW + later)) is repeated


def test_an_identifier_that_equals_a_digest_is_no_repeat():
    later = identity(BODY, None, OTHER, NOW)

    assert not is_repeat(identity(BODY, later.digest, ONE, NOW), later)


@pytest.mark.parametrize("scheme", ["standard-webhooks", "hmac", "none"])
def test_two_registrations_that_both_number_from_1_are_two_events(receiver, scheme):
    """One for each event type, as the style ``separate`` makes them, both on one endpoint."""
    first, second = STANDARD, signing.standard_secret()
    signature = {"header": "x-signature", "id_header": "x-id"} if scheme == "hmac" else scheme
    receiver.configure(
        signature=signature,
        secrets={"fsm_default/jobs/1": first, "fsm_default/jobs/2": second},
        **({"id_header": "x-id"} if scheme == "none" else {}),
    )

    def post(secret, body):
        sign = signing.standard if scheme == "standard-webhooks" else signing.hexadecimal
        return receiver.post(body, headers={"x-id": "1", **sign(secret, body)}).status_code

    assert [post(first, ONE), post(second, OTHER), post(first, ONE), post(second, OTHER)] == [200] * 4
    assert [event["type"] for event in receiver.events] == ["jobs.created", "jobs.closed"]
    # DAGs drop repeats by this key.
    assert len({event["delivery"] for event in receiver.events}) == 2
