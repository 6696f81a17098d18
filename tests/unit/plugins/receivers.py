"""A receiver behind a real socket, as a sender and an administrator see it."""

import json
import socket
from contextlib import suppress
from typing import Any

import requests

from fsm_provider.plugins.webhooks import URL_PREFIX

TOKEN = "path-token-of-43-characters-or-so-0123456789"


class Clock:
    """A clock in seconds, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RunningReceiver:
    """A receiver, the Variables that it reads and the events that it has recorded."""

    def __init__(self, base_url: str, clock: Clock) -> None:
        self.base_url = base_url
        self.clock = clock
        self.session = requests.Session()
        self.session.trust_env = False

    def url(self, token: str = TOKEN, route: str = "fsm_default/jobs") -> str:
        return f"{self.base_url}{URL_PREFIX}/{route}/{token}"

    def post(
        self, body: Any = b"{}", *, url: str | None = None, **kwargs: Any
    ) -> requests.Response:
        return self.session.post(url or self.url(), data=body, timeout=40, **kwargs)

    def configure(
        self, *, tokens: Any = (TOKEN,), secrets: Any = None, base: Any = None, **endpoint: Any
    ) -> None:
        """Write the Variables, and let the cached ones expire.

        :param base: settings in place of those of the endpoint.
        """
        settings = {"endpoints": {"fsm_default/jobs": {"signature": "none", **endpoint}}}
        if base is not None:
            settings |= base
        self.set("fsm_webhooks", settings)
        self.set("fsm_webhook_secret_tokens_fsm_default_jobs", list(tokens))
        if secrets is not None:
            self.set("fsm_webhook_secrets_fsm_default_jobs", secrets)
        self.clock.now += 100

    def set(self, name: str, value: Any) -> None:
        from airflow.models import Variable

        if not isinstance(value, str):
            value = json.dumps(value)
        Variable.set(name, value)

    @property
    def events(self) -> list[dict[str, Any]]:
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session

        with create_session() as session:
            events = session.query(AssetEvent).order_by(AssetEvent.id)
            return [event.extra for event in events]


def post_raw(receiver: RunningReceiver, rest: bytes, *, is_cut_off: bool = False) -> bytes:
    """Send a hand-made request and return the full response.

    :param rest: of the request, behind its first two lines.
    :param is_cut_off: whether nothing more may come.
    """
    host, _, port = receiver.base_url.removeprefix("http://").partition(":")
    path = receiver.url().removeprefix(receiver.base_url)
    request = f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + rest
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        # The response may arrive before the request is fully sent.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
            if is_cut_off:
                connection.shutdown(socket.SHUT_WR)
        response = b""
        part = connection.recv(65536)
        while part:
            response += part
            part = connection.recv(65536)
    return response
