"""The receiver's settings and secrets, read from Airflow and cached for some seconds."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from fsm_provider.api.errors import FsmInputError
from fsm_provider.plugins.webhooks.names import (
    DIGITS,
    registrations_prefix,
    secrets_variable,
    tokens_variable,
)
from fsm_provider.plugins.webhooks.settings import CONFIGURATION, ReceiverSettings, WebhookEndpoint
from fsm_provider.plugins.webhooks.signature import is_strong
from fsm_provider.state.variables import read_variable_in_server, variables_in_server

logger: logging.Logger = logging.getLogger(__name__)

MAX_AGE = 10.0
"""Seconds after which a value is read again, and thus the longest that a rotation takes."""
MAX_AGE_BEFORE_REFUSAL = 1.0
"""Seconds after which a value is read again before a delivery is refused."""
MIN_TOKEN_CHARACTERS = 20


class Route(NamedTuple):
    """The connection and object that a delivery is for."""

    fsm_conn_id: str
    watched: str

    def __str__(self) -> str:
        return f"{self.fsm_conn_id}/{self.watched}"


class RouteConfig(NamedTuple):
    """What a route accepts.

    :param tokens: its path may end with any of them.
    :param secrets: the signing secrets, newest first.
    """

    endpoint: WebhookEndpoint
    tokens: list[str]
    secrets: list[str]


class Configuration:
    """The current configuration.

    :param clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cache: dict[str, tuple[Any, float]] = {}
        self._reading = threading.Lock()
        self._logged: dict[str, str] = {}

    def known(self, route: Route, max_age: float) -> tuple[RouteConfig | None] | None:
        """Return what was read of a route at most so many seconds ago, without I/O; None if nothing was."""
        settings = self._cached(CONFIGURATION, max_age)
        if settings and str(route) in settings[0]:
            return self._cached(str(route), max_age)
        return settings and (None,)

    def read(self, route: Route, max_age: float) -> RouteConfig | None:
        """Return what a route accepts, None if there is no such route. It may wait for the database."""
        with self._reading:
            if known := self.known(route, max_age):
                return known[0]
            endpoint = self._keep(CONFIGURATION, self._endpoints()).get(str(route))
            config: RouteConfig | None = endpoint and self._keep(str(route), self._route(route, endpoint))
            return config

    def _endpoints(self) -> dict[str, WebhookEndpoint]:
        text, endpoints, problem = read_variable_in_server(CONFIGURATION), {}, ""
        try:
            endpoints = ReceiverSettings.parse(text).endpoints if text is not None else {}
        except FsmInputError as error:
            problem = f"{error}; every delivery is refused"
        self._log_once(CONFIGURATION, problem)
        return endpoints

    def _route(self, route: Route, endpoint: WebhookEndpoint) -> RouteConfig:
        prefix = registrations_prefix(*route)
        texts = [text for name, text in variables_in_server(prefix) if len(name) == len(prefix) + DIGITS]
        stored = [
            one for one in map(_parsed, texts) if isinstance(one, dict) and one.get("for") == str(route)
        ]
        stored.sort(key=lambda one: str(one.get("at", "")))
        tokens = self._usable(
            tokens_variable(*route),
            f"path token of {route} ({MIN_TOKEN_CHARACTERS} characters at least)",
            [one["token"] for one in stored if one.get("token")],
            lambda text: len(text) >= MIN_TOKEN_CHARACTERS,
        )
        if endpoint.signature == "none":
            return RouteConfig(endpoint, tokens, [])
        secrets = self._usable(
            secrets_variable(*route),
            f"signing secret of {route} (a key of 16 bytes at least)",
            [one["secret"] for one in stored if one.get("secret")],
            lambda text: is_strong(endpoint, text),
        )
        return RouteConfig(endpoint, tokens, secrets[::-1])

    def _usable(
        self, variable: str, purpose: str, registered: list[Any], fits: Callable[[str], bool]
    ) -> list[str]:
        values = [*_texts(_parsed(read_variable_in_server(variable) or "[]")), *registered]
        usable = [value for value in values if isinstance(value, str) and fits(value)]
        problem = ""
        if not usable:
            problem = f"Variable {variable}: holds no {purpose}: every delivery is refused"
        elif len(usable) < len(values):
            problem = (
                f"Variable {variable}: {len(values) - len(usable)} of {len(values)} values are refused: each "
                f"should be a {purpose}"
            )
        self._log_once(purpose, problem)
        return usable

    def _keep(self, key: str, value: Any) -> Any:
        self._cache[key] = value, self._clock()
        return value

    def _cached(self, key: str, max_age: float) -> tuple[Any] | None:
        value, at = self._cache.get(key, (None, None))
        return None if at is None or self._clock() - at >= max_age else (value,)

    def _log_once(self, about: str, problem: str) -> None:
        """Log a problem once, and again only after it was another one, or none."""
        if problem and self._logged.get(about) != problem:
            logger.error("%s", problem)
        self._logged[about] = problem


def _parsed(text: str) -> Any:
    """Parse a JSON object, list or string; other text is a value itself."""
    text = text.strip()
    try:
        return json.loads(text) if text[:1] in ("{", "[", '"') else text
    except (ValueError, RecursionError):
        return None


def _texts(value: Any) -> Iterable[Any]:
    """Yield each value that is no object or list, stripped if it is a text."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)
    else:
        yield value.strip() if isinstance(value, str) else value
