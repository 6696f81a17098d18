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
TIMED = {
    "header": "x-signature",
    "prefix": "v1=",
    "signed": "{timestamp}.{body}",
    "timestamp_header": "x-signature",
    "timestamp_prefix": "t=",
}
WITH_TIME = {**PLAIN, "signed": "{timestamp}{body}", "timestamp_header": "x-time"}


def check(scheme, headers, body=BODY, *, secrets=(SECRET,), now=NOW):
    endpoint = WebhookEndpoint.model_validate({"signature": scheme})
    items = headers.items() if isinstance(headers, dict) else headers
    return verify(endpoint, list(secrets), [(name.lower(), value) for name, value in items], body, now=now)


def refused(*args, **kwargs):
    with pytest.raises(RefusedError) as caught:
        check(*args, **kwargs)
    return caught.value.reason


class TestHmac:
    @pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha384", "sha512"])
    @pytest.mark.parametrize("encoding", ["hex", "base64"])
    @pytest.mark.parametrize("secret_encoding", ["text", "base64", "base64url", "hex"])
    def test_algorithms_and_encodings(self, algorithm, encoding, secret_encoding):
        key = b"\x03\xff\xfekey" * 4
        secret = {
            "text": "text",
            "base64": base64.b64encode(key).decode(),
            "base64url": base64.urlsafe_b64encode(key).decode(),
            "hex": key.hex(),
        }[secret_encoding]
        digest = hmac.new(key if secret_encoding != "text" else b"text", BODY, algorithm).digest()
        written = digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
        scheme = {
            "header": "x-sig",
            "algorithm": algorithm,
            "encoding": encoding,
            "secret_encoding": secret_encoding,
        }

        assert check(scheme, {"X-Sig": written}, secrets=[secret])
        assert refused(scheme, {"X-Sig": written}, BODY + b" ", secrets=[secret]) == "signature"
        assert refused(scheme, {"X-Sig": written}, secrets=["00" + secret]) == "signature"

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
        ("unit", "text"),
        [("ms", str(int(NOW * 1000))), ("iso", "2026-09-21T14:13:20Z"), ("iso", "2026-09-21T15:13:20+01:00")],
    )
    def test_the_units_of_time(self, unit, text):
        digest = hmac.new(SECRET.encode(), text.encode() + BODY, hashlib.sha256).hexdigest()
        scheme = {
            **PLAIN,
            "signed": "{timestamp}{body}",
            "timestamp_header": "x-time",
            "timestamp_unit": unit,
        }

        assert check(scheme, {"x-signature": digest, "x-time": text})

    @pytest.mark.parametrize(
        ("unit", "text"),
        [
            ("s", "nan"),
            ("s", "-1"),
            ("s", "1e9"),
            ("s", "9" * 17),
            ("s", f"0{int(NOW)}"),
            ("s", "۱۷۹۰۰۰۰۰۰۰"),
            ("iso", "2026-09-21T14:13:20"),
        ],
    )
    def test_an_invalid_signed_time_is_refused(self, unit, text):
        digest = hmac.new(SECRET.encode(), text.encode() + BODY, hashlib.sha256).hexdigest()
        scheme = {
            **PLAIN,
            "signed": "{timestamp}{body}",
            "timestamp_header": "x-time",
            "timestamp_unit": unit,
        }

        assert refused(scheme, {"x-signature": digest, "x-time": text}) == "timestamp"

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

    def test_a_signed_identifier_may_not_be_empty(self):
        scheme = {**PLAIN, "signed": "{id}.{body}", "id_header": "x-id"}

        assert refused(scheme, {**signing.hexadecimal(SECRET, b"." + BODY), "x-id": ""}) == "headers"

    @pytest.mark.parametrize("encoding", ["base64", "base64url"])
    @pytest.mark.parametrize("secret", ["c2Vj cmV0", "c2Vjc", "c2V=cmV0", "c2Vj!cmV0", "é", "===", ""])
    def test_a_secret_that_is_not_base64_signs_nothing(self, encoding, secret):
        key = base64.b64decode("c2VjcmV0")
        headers = {"x-signature": hmac.new(key, BODY, hashlib.sha256).hexdigest()}

        assert refused({**PLAIN, "secret_encoding": encoding}, headers, secrets=[secret]) == "signature"

    def test_another_unsigned_identifier_leaves_the_digest_the_same(self):
        scheme = {**PLAIN, "id_header": "x-id"}
        headers = signing.hexadecimal(SECRET, BODY)

        one, other = (check(scheme, {**headers, "x-id": identifier}) for identifier in ("1", "2"))

        body = hashlib.sha256(BODY).hexdigest()[:32]
        assert (one.key, other.key) == (f"1 {body}", f"2 {body}")
        assert one.digest == other.digest

    def test_without_an_identifier_the_digest_is_the_key(self):
        identity = check(PLAIN, signing.hexadecimal(SECRET, BODY))

        assert identity.key == identity.digest == f"sha256:{hashlib.sha256(BODY).hexdigest()}"

    @pytest.mark.parametrize("identifier", ["x" * 256, "a\nb"])
    def test_an_invalid_identifier_is_refused(self, identifier):
        headers = {**signing.hexadecimal(SECRET, BODY), "x-id": identifier}

        assert refused({**PLAIN, "id_header": "x-id"}, headers) == "headers"


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
