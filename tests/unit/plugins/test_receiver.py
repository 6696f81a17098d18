"""The receiver over a real socket, on a real metadata database."""

import json
import logging
import random
import re
import string
import time
from datetime import UTC, datetime

import pytest

from fsm_provider.metrics import AirflowMetrics
from tests.unit.plugins import signing
from tests.unit.plugins.receivers import TOKEN, post_raw

SECRET = "a signing secret"
STANDARD = signing.standard_secret()
PAYLOAD = {"type": "jobs.created", "data": {"id": 1001, "customerReference": "PO-1"}}
BODY = json.dumps(PAYLOAD).encode()
DIGITS = string.ascii_letters + string.digits
HMAC = {"signature": "hmac", "header": "x-signature"}


def assert_is_refused(response, status):
    assert response.status_code == status
    assert response.json() == {"accepted": False}


def post_signed(receiver, headers, token=TOKEN):
    """Post a delivery with these headers; return the status of the response."""
    response = receiver.post(BODY, headers=headers, url=receiver.url(token))
    return response.status_code


class TestAccepted:
    def test_a_delivery_becomes_one_small_event(self, receiver):
        response = receiver.post(BODY)

        assert response.status_code == 200
        assert response.json() == {"accepted": True}
        [event] = receiver.events
        assert event["type"] == "jobs.created"
        assert event["id"] == 1001
        assert event.keys() == {"delivery", "type", "id", "received_at"}

    def test_the_body_is_stored_if_configured(self, receiver):
        receiver.configure(keep_body=True)

        receiver.post(BODY)
        receiver.post(b"no \xff JSON \x00")
        receiver.post(b'{"x": NaN}')
        receiver.post(b'{"x": "\\udc00"}')
        receiver.post(b'{"x": "\\u0000"}')
        receiver.post('{"x": "\U0001f525"}'.encode())

        assert [event["body"] for event in receiver.events] == [
            BODY.decode(),
            "no \ufffd JSON ",
            '{"x": NaN}',
            '{"x": "\\udc00"}',
            '{"x": "\\u0000"}',
            '{"x": "\U0001f525"}',
        ]

    @pytest.mark.parametrize(
        "body",
        [
            "[" * 255 + "]" * 255,
            '{"id": 18446744073709551616}',
            "[" * 5000,
            '"text"',
            '{"id": 1e999}',
        ],
    )
    def test_airflow_shows_an_event_whatever_its_body(self, receiver, body):
        from airflow.api_fastapi.core_api.datamodels.assets import AssetEventResponse

        receiver.configure(keep_body=True)

        response = receiver.post(body.encode())

        assert response.status_code == 200
        [event] = receiver.events
        assert event["body"] == body
        shown = AssetEventResponse(
            id=1,
            asset_id=1,
            extra=event,
            timestamp=datetime.now(UTC),
            created_dagruns=[],
            source_map_index=-1,
        )
        assert json.loads(shown.model_dump_json())["extra"] == event

    @pytest.mark.parametrize(
        ("payload", "stored"),
        [
            ({"type": "jobs.closed", "id": 7}, {"type": "jobs.closed", "id": 7}),
            ({"type": "x", "data": {"id": "a"}, "id": "b"}, {"type": "x", "id": "a"}),
            ({"type": "x" * 201, "id": True, "data": []}, {}),
            ({"type": {"a": 1}, "id": 2**80}, {}),
        ],
    )
    def test_type_and_identifier_are_stored_if_found(self, receiver, payload, stored):
        receiver.post(json.dumps(payload).encode())

        [event] = receiver.events
        del event["delivery"]
        del event["received_at"]
        assert event == stored

    def test_a_body_may_be_as_large_as_the_limit(self, receiver):
        from fsm_provider.plugins.webhooks.receiver import MAX_BODY

        body = b"x" * MAX_BODY

        assert receiver.post(body).status_code == 200

    def test_a_chunked_body_may_be_as_large_as_the_limit(self, receiver):
        from fsm_provider.plugins.webhooks.receiver import MAX_BODY

        body = b"x" * MAX_BODY

        assert receiver.post(iter([body])).status_code == 200


class TestRepeated:
    def test_a_resent_delivery_with_a_new_signature_is_a_repeat(self, receiver):
        receiver.configure(signature="standard-webhooks", secrets=STANDARD)

        a_minute_ago = time.time() - 60
        first = signing.standard(STANDARD, BODY, at=a_minute_ago, identifier="1")
        assert post_signed(receiver, first) == 200
        resent = signing.standard(STANDARD, BODY, identifier="1")
        assert post_signed(receiver, resent) == 200
        other = signing.standard(STANDARD, BODY, identifier="2")
        assert post_signed(receiver, other) == 200

        assert len(receiver.events) == 2

    @pytest.mark.parametrize(("minutes", "count"), [(1439, 1), (1441, 2)])
    def test_a_delivery_is_forgotten_after_a_day(self, receiver, minutes, count):
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session
        from sqlalchemy import func, update

        receiver.post(BODY)
        with create_session() as session:
            day_before = func.datetime(AssetEvent.timestamp, f"-{minutes} minutes")
            session.execute(update(AssetEvent).values(timestamp=day_before))

        receiver.post(BODY)

        assert len(receiver.events) == count


class TestRefused:
    def test_nothing_is_accepted_before_configuration(self, unknown_receiver, asset):
        asset()

        response = unknown_receiver.post(BODY)

        assert_is_refused(response, 404)

    @pytest.mark.parametrize(
        ("route", "token"),
        [
            ("fsm_default/jobs", TOKEN[:-1]),
            ("fsm_default/jobs", ""),
            ("fsm_default/jobs", "%FF%00"),
            ("fsm_default/assets", TOKEN),
            ("fsm_default", TOKEN),
            ("other/jobs", TOKEN),
            ("other/jobs", ""),
            ("fsm_default/jobs/x", TOKEN),
        ],
    )
    def test_another_path_is_not_found(self, receiver, route, token):
        response = receiver.post(BODY, url=receiver.url(token, route))

        assert_is_refused(response, 404)

    @pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
    def test_another_method_is_not_allowed(self, receiver, method):
        response = receiver.session.request(method, receiver.url(), data=BODY, timeout=10)

        assert response.status_code == 405
        assert response.headers["Allow"] == "POST"

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({}, 401),
            (signing.hexadecimal(SECRET, BODY + b" "), 401),
            ({**signing.hexadecimal(SECRET, BODY), "Content-Encoding": "gzip"}, 415),
        ],
    )
    def test_a_delivery_that_is_not_authentic_is_refused(self, receiver, headers, status):
        receiver.configure(**HMAC, secrets=SECRET)

        response = receiver.post(BODY, headers=headers)

        assert_is_refused(response, status)
        assert receiver.events == []

    @pytest.mark.parametrize(
        ("headers", "body"),
        [
            (b"Transfer-Encoding: chunked", (b"10000\r\n" + b"x" * 0x10000 + b"\r\n") * 17),
            (b"Content-Length: 10000000000", b"x" * (2**20 + 1)),
        ],
    )
    def test_a_body_over_the_limit_is_refused_before_its_end(self, receiver, headers, body):
        response = post_raw(receiver, headers + b"\r\n\r\n" + body)

        assert response.startswith(b"HTTP/1.1 413")

    def test_a_body_that_never_arrives_times_out(self, receiver, monkeypatch):
        monkeypatch.setattr("fsm_provider.plugins.webhooks.receiver.BODY_SECONDS", 0.1)

        response = post_raw(receiver, b"Content-Length: 10\r\n\r\nhalf")

        assert response.startswith(b"HTTP/1.1 408")

    def test_a_body_that_is_cut_off_is_no_delivery(self, receiver, caplog):
        caplog.set_level(logging.INFO)

        post_raw(receiver, b"Content-Length: 10\r\n\r\nhalf", is_cut_off=True)

        assert receiver.post(b"").status_code == 200  # the other one is over
        assert "Delivery for fsm_default/jobs refused: disconnected" in caplog.text
        assert len(receiver.events) == 1

    def test_of_a_thousand_forged_deliveries_none_is_accepted(self, receiver):
        receiver.configure(signature="standard-webhooks", secrets=[STANDARD])
        chance = random.Random(20_261_121)
        statuses = set()

        for number in range(1000):
            response = post_forged(receiver, chance, number)
            assert response.json() == {"accepted": False}
            statuses.add(response.status_code)

        assert statuses == {401, 404}
        assert receiver.events == []
        assert post_signed(receiver, signing.standard(STANDARD, BODY)) == 200

    def test_without_a_dag_that_uses_the_asset_senders_are_asked_to_retry(self, unknown_receiver):
        unknown_receiver.configure()

        response = unknown_receiver.post(BODY)

        assert_is_refused(response, 503)
        assert response.headers["Retry-After"] == "1"

    def test_an_invalid_configuration_refuses_everything(self, receiver, caplog):
        receiver.configure(endpoint="x")

        response = receiver.post(BODY)

        assert response.status_code == 404
        message = "Variable fsm_webhooks: endpoints.fsm_default/jobs.endpoint: is not a setting"
        assert message in caplog.text

    @pytest.mark.parametrize(
        ("method", "route", "status", "reason"),
        [
            ("POST", "a%1b[31m%E2%80%A8FAKE%85%0bLINE/jobs", 404, "path"),
            ("GET", "FAKE/jobs", 405, "method"),
        ],
    )
    def test_the_log_of_a_refusal_holds_nothing_of_an_unknown_path(
        self, receiver, caplog, method, route, status, reason
    ):
        caplog.set_level(logging.INFO)
        url = receiver.url("guess", route)

        response = receiver.session.request(method, url, timeout=10)

        assert response.status_code == status
        messages = messages_of_the_receiver(caplog)
        [refusal] = [message for message in messages if "refused" in message]
        assert refusal == f"Delivery for -/- refused: {reason}"
        assert not re.search(r"FAKE|guess|\x1b|\u2028", "".join(messages))

    def test_an_error_is_logged_without_the_delivery(self, receiver, caplog, monkeypatch):
        receiver.configure(keep_body=True)

        def fail(**event):
            raise ValueError(f"cannot store {event}")

        monkeypatch.setattr("airflow.assets.manager.asset_manager.register_asset_change", fail)

        assert receiver.post(BODY).status_code == 503
        assert "failed with ValueError" in caplog.text
        assert "PO-1" not in caplog.text


def alter(text, chance):
    """Replace one character of a text by another."""
    # Of a signature's last digits some bits mean nothing.
    position = chance.randrange(len(text) - 2)
    other = chance.choice(DIGITS.replace(text[position], ""))
    return text[:position] + other + text[position + 1 :]


def post_forged(receiver, chance, number):
    """Post a delivery of which one part is wrong."""
    body = BODY
    token = TOKEN
    secret = STANDARD
    at = time.time() + chance.choice([0, 0, 0, -400, 400])
    header_names = list(signing.standard(STANDARD, BODY))
    part = chance.choice(["body", "token", "secret", *header_names])

    if part == "secret":
        secret = signing.standard_secret()
    headers = signing.standard(secret, BODY, at=at)
    if part == "body":
        body = alter(BODY.decode(), chance)
    elif part == "token":
        token = alter(TOKEN, chance)
    elif part in headers and number % 4:
        headers[part] = alter(headers[part], chance)
    elif part in headers:
        del headers[part]
    return receiver.post(body, url=receiver.url(token), headers=headers)


def messages_of_the_receiver(caplog):
    return [record.getMessage() for record in caplog.records if "urllib3" not in record.name]


class TestChanges:
    def test_a_rotation_of_token_and_secret_takes_effect_soon(self, receiver):
        old_secret = "an older signing secret"
        new_secret = "a newer signing secret"
        new_token = TOKEN[::-1]
        signed_before = signing.hexadecimal(old_secret, BODY)
        signed_after = signing.hexadecimal(new_secret, BODY)

        receiver.configure(**HMAC, secrets=[old_secret])
        assert post_signed(receiver, signed_before) == 200

        receiver.set("fsm_webhook_secret_tokens_fsm_default_jobs", [TOKEN, new_token])
        receiver.set("fsm_webhook_secrets_fsm_default_jobs", [old_secret, new_secret])
        receiver.clock.now += 1
        assert post_signed(receiver, signed_after, new_token) == 200

        receiver.set("fsm_webhook_secret_tokens_fsm_default_jobs", [new_token])
        receiver.set("fsm_webhook_secrets_fsm_default_jobs", [new_secret])
        receiver.clock.now += 1
        assert post_signed(receiver, signed_after) == 404
        assert post_signed(receiver, signed_before, new_token) == 401
        assert post_signed(receiver, signed_after, new_token) == 200

    def test_a_variable_that_cannot_be_read_is_not_a_missing_one(
        self, receiver, monkeypatch, caplog
    ):
        from airflow.secrets.metastore import MetastoreBackend

        receiver.clock.now += 100

        def fail(*args, **kwargs):
            raise OSError("the database is away")

        monkeypatch.setattr(MetastoreBackend, "get_variable", fail)

        assert receiver.post(BODY).status_code == 503
        # The token stands in the place of the object: no part of an unknown path is shown.
        assert receiver.post(BODY, url=receiver.url() + "/").status_code == 503
        assert "The receiver's settings were not read: VariableUnreadableError" in caplog.text
        for record in caplog.records:
            if "fsm" in record.name:
                assert TOKEN not in record.getMessage()


class TestLogsAndMetrics:
    @pytest.fixture
    def counted(self, monkeypatch):
        """What is given to Airflow's metrics, as a list."""
        counts = []

        def incr(self, name):
            counts.append((name, self.tags))

        monkeypatch.setattr(AirflowMetrics, "incr", incr)
        return counts

    def test_deliveries_and_refusals_are_counted(self, receiver, counted):
        receiver.configure(**HMAC, secrets=SECRET)
        headers = signing.hexadecimal(SECRET, BODY)

        receiver.post(BODY, headers=headers)
        receiver.post(BODY, headers=headers)
        receiver.post(BODY, headers={})
        receiver.post(BODY, url=receiver.url("guess"))

        of_jobs = {"connection": "fsm_default", "object": "jobs"}
        assert counted == [
            ("webhooks.accepted", of_jobs),
            ("webhooks.repeated", of_jobs),
            ("webhooks.refused", {**of_jobs, "reason": "headers"}),
            ("webhooks.refused", {"connection": "-", "object": "-", "reason": "path"}),
        ]

    def test_no_log_holds_token_secret_or_body(self, receiver, caplog):
        caplog.set_level(logging.DEBUG)
        receiver.configure(**HMAC, secrets=SECRET)

        unknown_url = receiver.url(TOKEN, "other/jobs")
        for headers in (signing.hexadecimal(SECRET, BODY), {}, {"x-signature": SECRET}):
            receiver.post(BODY, headers=headers)
            receiver.post(BODY, headers=headers, url=unknown_url)
            receiver.session.get(receiver.url(), timeout=5)

        log = "\n".join(messages_of_the_receiver(caplog))
        assert "Delivery for fsm_default/jobs accepted" in log
        assert TOKEN not in log
        assert SECRET not in log
        assert "PO-1" not in log

    def test_a_websocket_is_refused_and_its_path_not_logged(self, receiver, caplog):
        caplog.set_level(logging.INFO)
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "A" * 22 + "==",
        }

        response = receiver.session.get(receiver.url(), headers=headers, timeout=5)

        assert response.status_code == 500
        assert TOKEN not in caplog.text
