"""Deliveries are repeats if identifier and body, or the signed content, are the same."""

import time

import pytest

from fsm_provider.plugins.webhooks.settings import WebhookEndpoint
from fsm_provider.plugins.webhooks.signature import verify
from tests.unit.plugins import signing

NOW = int(time.time())
SECRET = "a signing secret"
STANDARD = signing.standard_secret()
ONE, OTHER = b'{"type": "jobs.created"}', b'{"type": "jobs.closed"}'

NONE = {"signature": "none", "id_header": "x-id"}
BODY = {"signature": {"header": "x-signature"}}
TIMED = {"signature": {"header": "x-signature", "prefix": "v1=", "timestamp_prefix": "t="}}
ALL = {"signature": "standard-webhooks"}


def identity(scheme, identifier, body, sent_at):
    headers, secret = {} if identifier is None else {"x-id": identifier}, SECRET
    if scheme is BODY:
        headers |= signing.hexadecimal(SECRET, body)
    elif scheme is TIMED:
        headers |= signing.timed(SECRET, body, at=sent_at)
    elif scheme is ALL:
        headers, secret = signing.standard(STANDARD, body, at=sent_at, identifier=identifier), STANDARD
    return verify(WebhookEndpoint.model_validate(scheme), [secret], list(headers.items()), body, now=NOW)


def is_repeat(first, second):
    """The condition for a repeat in :mod:`fsm_provider.plugins.webhooks.events`."""
    return first.key == second.key or first.digest == second.digest


# The first delivery has identifier "1", body ONE and time NOW. Which schemes see these as its repeats?
SCHEMES = {"none": NONE, "body": BODY, "timed": TIMED, "all": ALL}
TABLE = [
    # identifier, body, seconds later, schemes for which it is a repeat
    ("1", ONE, 0, {*SCHEMES}),
    ("1", ONE, 60, {"none", "body", "all"}),  # sent again, with a fresh signature
    ("1", OTHER, 0, set()),  # another registration, which also numbers from 1
    ("1", OTHER, 60, set()),
    ("2", ONE, 0, {"body", "timed"}),  # a replay under another, unsigned identifier
    ("2", ONE, 60, {"body"}),
    ("2", OTHER, 0, set()),
    ("2", OTHER, 60, set()),
]


@pytest.mark.parametrize(("identifier", "body", "later", "repeated"), TABLE)
@pytest.mark.parametrize("name", SCHEMES)
def test_repeats_of_a_delivery_with_an_identifier(name, identifier, body, later, repeated):
    scheme = SCHEMES[name]
    first, second = identity(scheme, "1", ONE, NOW), identity(scheme, identifier, body, NOW + later)

    assert is_repeat(first, second) is (name in repeated)


@pytest.mark.parametrize("later", [0, 60])
@pytest.mark.parametrize("body", [ONE, OTHER])
@pytest.mark.parametrize("name", ["none", "body", "timed"])
def test_repeats_of_a_delivery_without_an_identifier(name, body, later):
    scheme = SCHEMES[name]
    first, second = identity(scheme, None, ONE, NOW), identity(scheme, None, body, NOW + later)

    assert is_repeat(first, second) is (body == ONE and (later == 0 or name != "timed"))


def test_an_identifier_that_equals_a_digest_is_no_repeat():
    later = identity(NONE, None, OTHER, NOW)

    assert not is_repeat(identity(NONE, later.digest, ONE, NOW), later)


@pytest.mark.parametrize("scheme", ["standard-webhooks", "hmac", "none"])
def test_two_registrations_that_both_number_from_1_are_two_events(receiver, scheme):
    """One for each event type, as the style ``separate`` makes them, both on one endpoint."""
    first, second = STANDARD, signing.standard_secret()
    signature = {"header": "x-signature"} if scheme == "hmac" else scheme
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
