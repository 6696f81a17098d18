"""Which deliveries are authentic: each scheme, against deliveries signed by other code."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_provider.plugins.webhooks.settings import WebhookEndpoint
from fsm_provider.plugins.webhooks.signature import RefusedError, verify
from tests.unit.plugins import signing

NOW = 1_790_000_000.0
SECRET = "a signing secret"
STANDARD = signing.standard_secret()
BODY = b'{"type": "jobs.created", "data": {"id": 1001}}'

PLAIN = {"header": "x-signature"}
PREFIXED = {"header": "x-hub-signature-256", "prefix": "sha256="}
TIMED = {"header": "x-signature", "prefix": "v1=", "timestamp_prefix": "t="}


def check(scheme, headers, body=BODY, *, secrets=(SECRET,), now=NOW):
    endpoint = WebhookEndpoint.model_validate({"signature": scheme})
    items = headers.items() if isinstance(headers, dict) else headers
    return verify(endpoint, list(secrets), [(name.lower(), value) for name, value in items], body, now=now)


def refused(*args, **kwargs):
    with pytest.raises(RefusedError) as caught:
        check(*args, **kwargs)
    return caught.value.reason


class TestHmac:
    @pytest.mark.parametrize("encoding", ["hex", "base64"])
    def test_encodings(self, encoding):
        digest = hmac.new(SECRET.encode(), BODY, "sha256").digest()
        written = digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
        scheme = {"header": "x-sig", "encoding": encoding}

        assert check(scheme, {"X-Sig": written})
        assert refused(scheme, {"X-Sig": written}, BODY + b" ") == "signature"
        assert refused(scheme, {"X-Sig": written}, secrets=["00" + SECRET]) == "signature"

    def test_a_prefix_precedes_the_signature(self):
        headers = signing.hexadecimal(SECRET, BODY, header="x-hub-signature-256", prefix="sha256=")

        assert check(PREFIXED, headers)
        assert refused(PREFIXED, signing.hexadecimal(SECRET, BODY, header="x-hub-signature-256"))

    @pytest.mark.parametrize("off", [-300, 0, 300])
    def test_a_signed_time_may_be_a_little_off(self, off):
        assert check(TIMED, signing.timed(SECRET, BODY, at=NOW + off))

    @pytest.mark.parametrize("off", [-301, 301, -86400])
    def test_a_stale_signed_delivery_is_refused(self, off):
        assert refused(TIMED, signing.timed(SECRET, BODY, at=NOW + off)) == "timestamp"

    def test_an_old_signature_with_a_new_time_is_refused(self):
        (name, value) = signing.timed(SECRET, BODY, at=NOW - 1000).popitem()

        assert refused(TIMED, {name: value.replace(f"t={int(NOW - 1000)}", f"t={int(NOW)}")}) == "signature"
        assert refused(TIMED, {name: f"{value},t={int(NOW)}"}) == "headers"

    @pytest.mark.parametrize(
        "text", ["nan", "-1", "1e9", "9" * 17, f"0{int(NOW)}", "۱۷۹۰۰۰۰۰۰۰", "2026-09-21"]
    )
    def test_an_invalid_signed_time_is_refused(self, text):
        digest = hmac.new(SECRET.encode(), f"{text}.".encode() + BODY, hashlib.sha256).hexdigest()

        assert refused(TIMED, {"x-signature": f"t={text},v1={digest}"}) == "timestamp"

    @pytest.mark.parametrize("header", ["v1={}", "t=,v1={}", "{}", "t=1790000000,{}", "t=1790000000"])
    def test_time_and_signature_have_to_be_there(self, header):
        digest = hmac.new(SECRET.encode(), b"1790000000." + BODY, hashlib.sha256).hexdigest()

        assert refused(TIMED, {"x-signature": header.format(digest)}) in ("headers", "signature")

    def test_any_of_several_secrets_fits(self):
        headers = signing.hexadecimal("old", BODY)

        assert check(PLAIN, headers, secrets=["new", "old"])
        assert refused(PLAIN, headers, secrets=["new"])

    @pytest.mark.parametrize("secrets", [[], [""]])
    def test_without_a_secret_every_delivery_is_refused(self, secrets):
        assert refused(PLAIN, signing.hexadecimal("", BODY), secrets=secrets) == "signature"

    @pytest.mark.parametrize(
        "headers",
        [
            [],
            [("x-signature", "")],
            [("x-signature", "zz")],
            [("x-signature", "é" * 64)],
            [("x-signature", "0" * 64)],
            [("x-signature", " ".join(["0" * 64] * 1000))],
            [*signing.hexadecimal(SECRET, BODY).items(), ("x-signature", "0" * 64)],
        ],
    )
    def test_malformed_headers_are_refused(self, headers):
        assert refused(PLAIN, headers)

    def test_without_an_identifier_the_digest_is_the_key(self):
        identity = check(PLAIN, signing.hexadecimal(SECRET, BODY))

        assert identity.key == identity.digest == f"sha256:{hashlib.sha256(BODY).hexdigest()}"


def signed(body, off=0):
    return signing.standard(STANDARD, body, at=NOW + off)


class TestStandardWebhooks:
    def check(self, headers, body=BODY, *, secrets=(STANDARD,)):
        return check("standard-webhooks", headers, body, secrets=secrets)

    def test_a_valid_delivery_is_accepted(self):
        assert self.check(signed(BODY)).key.startswith("msg_1 ")

    def test_any_of_several_signatures_and_secrets_fits(self):
        headers = signed(BODY)
        headers["webhook-signature"] = f"v1,AAAA v2,AAAA {headers['webhook-signature']}"

        assert self.check(headers, secrets=["not base64!", signing.standard_secret(), STANDARD])

    @pytest.mark.parametrize("off", [-400, 400])
    def test_a_stale_delivery_is_refused(self, off):
        assert self.refused(signed(BODY, off))

    @pytest.mark.parametrize(
        "change",
        [
            {"webhook-id": "msg_2"},
            {"webhook-id": ""},
            {"webhook-timestamp": "soon"},
            {"webhook-timestamp": "nan"},
            {"webhook-signature": "v1"},
            {"webhook-signature": "v1,"},
            {"webhook-signature": "v1,é"},
            {"webhook-signature": "v2,AAAA"},
            {"webhook-signature": " ".join(["v1,AAAA"] * 1000)},
        ],
    )
    def test_a_changed_delivery_is_refused(self, change):
        assert self.refused({**signed(BODY), **change})

    def test_a_binary_body_is_refused(self):
        assert self.refused(signed(b"\xff\xfe"), b"\xff\xfe")

    def test_without_a_secret_every_delivery_is_refused(self):
        assert self.refused(signed(BODY), secrets=[])

    def refused(self, headers, body=BODY, **kwargs):
        with pytest.raises(RefusedError):
            self.check(headers, body, **kwargs)
        return True


@settings(max_examples=300, deadline=None)
@given(
    header=st.text(max_size=80),
    timestamp=st.text(max_size=30),
    identifier=st.text(max_size=30),
    body=st.binary(max_size=60),
    scheme=st.sampled_from([PLAIN, PREFIXED, TIMED, "standard-webhooks"]),
)
def test_arbitrary_input_is_refused_without_any_other_error(header, timestamp, identifier, body, scheme):
    headers = {
        **dict.fromkeys(["x-signature", "x-hub-signature-256", "webhook-signature"], header),
        "webhook-timestamp": timestamp,
        "webhook-id": identifier,
    }

    assert refused(scheme, headers, body, secrets=[SECRET, STANDARD])
