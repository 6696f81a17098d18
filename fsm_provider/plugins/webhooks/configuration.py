"""The receiver's settings and secrets, read from Airflow and kept for some seconds."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from fsm_provider.api.errors import FsmInputError
from fsm_provider.compat import import_function, read_variable_in_server
from fsm_provider.plugins.webhooks.settings import (
    CONFIGURATION,
    Endpoint,
    ReceiverSettings,
    secrets_variable,
    tokens_variable,
)

logger: logging.Logger = logging.getLogger(__name__)

FRESH = 10.0
"""Seconds after which a value is read again: how long a rotation takes at most."""
FRESHER = 1.0
"""Seconds after which it is read again for a delivery that would be refused."""


@dataclass(frozen=True)
class Route:
    """Whom a delivery is for."""

    fsm_conn_id: str
    watched: str

    def __str__(self) -> str:
        return f"{self.fsm_conn_id}/{self.watched}"


@dataclass(frozen=True)
class _Read:
    value: Any
    at: float


class Configuration:
    """What is configured now. Its methods may wait for the database; call them in a thread.

    :param read: gives an Airflow Variable, None where there is none.
    :param clock: gives seconds.
    """

    def __init__(
        self,
        read: Callable[[str], str | None] = read_variable_in_server,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._kept: dict[tuple[str, str], _Read] = {}
        self._reading = threading.Lock()

    def endpoint(self, route: Route, *, fresher: bool = False) -> Endpoint | None:
        """Give the endpoint of a route, None where there is none."""
        endpoints: dict[str, Endpoint] = self._variable("settings", CONFIGURATION, _endpoints, fresher)
        return endpoints.get(str(route))

    def tokens(self, route: Route, *, fresher: bool = False) -> list[str]:
        """Give the tokens that the path of a route may end with."""
        name = tokens_variable(route.fsm_conn_id, route.watched)
        tokens: list[str] = self._variable("tokens", name, _texts, fresher)
        return [token for token in tokens if len(token) >= 20]

    def secrets(self, route: Route, endpoint: Endpoint, *, fresher: bool = False) -> list[str] | None:
        """Give the signing secrets of a route, the newest first; None where ``secrets_from`` fails."""
        if endpoint.signature == "none":
            return []
        secrets: list[str] | None
        if (path := endpoint.secrets_from) is not None:
            secrets = self._value((path, str(route)), lambda: _asked(path, route), fresher)
        else:
            name = endpoint.secrets_variable or secrets_variable(route.fsm_conn_id, route.watched)
            secrets = self._variable("secrets", name, _texts, fresher)
        return secrets and secrets[::-1]

    def is_fresh(self, route: Route) -> bool:
        """Tell whether endpoint and tokens of a route are known without asking anybody."""
        settings = self._kept.get(("settings", CONFIGURATION))
        if settings is None or self._clock() - settings.at >= FRESHER:
            return False
        tokens = self._kept.get(("tokens", tokens_variable(route.fsm_conn_id, route.watched)))
        known = tokens is not None and self._clock() - tokens.at < FRESHER
        return known or str(route) not in settings.value

    def _variable(self, kind: str, name: str, parse: Callable[[str | None], Any], fresher: bool) -> Any:
        def read() -> Any:
            text = self._read(name)
            try:
                return parse(text)
            except FsmInputError as error:
                logger.error("%s; what it is for is refused", error)
            except ValueError:
                logger.error(
                    "Variable %s: holds neither a text nor JSON with texts; what it is for is refused", name
                )
            return parse(None)

        return self._value((kind, name), read, fresher)

    def _value(self, key: tuple[str, str], read: Callable[[], Any], fresher: bool) -> Any:
        most = FRESHER if fresher else FRESH
        if (kept := self._kept.get(key)) and self._clock() - kept.at < most:
            return kept.value
        with self._reading:
            if (kept := self._kept.get(key)) and self._clock() - kept.at < most:
                return kept.value
            value = read()
            self._kept[key] = _Read(value, self._clock())
            return value


def _endpoints(text: str | None) -> dict[str, Endpoint]:
    endpoints = {} if text is None else ReceiverSettings.parse(text).endpoints
    uses_library = any(endpoint.signature == "standard-webhooks" for endpoint in endpoints.values())
    if uses_library and find_spec("standardwebhooks") is None:
        raise FsmInputError(
            f"Variable {CONFIGURATION}: standard-webhooks needs the extra airflow-provider-fsm[webhooks] "
            "where the API server runs"
        )
    return endpoints


def _texts(text: str | None) -> list[str]:
    """Read texts: JSON of anything to a text or to a list of texts, a JSON list, or one text as it is."""
    if not text or not text.strip():
        return []
    if text.strip()[0] not in "{[":
        return [text.strip()]
    return _flat(json.loads(text))


def _flat(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        raise ValueError("not a text")
    return [text for one in value for text in _flat(one)]


def _asked(path: str, route: Route) -> list[str] | None:
    try:
        return _flat(import_function("secrets_from", path)(route.fsm_conn_id, route.watched))
    except FsmInputError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it may quote a secret
        reason = f"secrets_from: {path!r} raised {type(error).__name__} for {route}"
    logger.error("%s; deliveries are asked to come again", reason)
    return None
