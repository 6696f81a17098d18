"""The receiver's settings and secrets, read from Airflow at most once a second."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import pluralize
from fsm_provider.plugins.webhooks import settings
from fsm_provider.plugins.webhooks.signature import MIN_KEY_BYTES, key_from
from fsm_provider.state.variables import read_variable_in_server, variables_in_server

logger: logging.Logger = logging.getLogger(__name__)

MAX_AGE = 1.0
"""Seconds after which everything is read again, and thus the longest that a rotation takes."""
MIN_TOKEN_CHARACTERS = 20


class RouteConfig(NamedTuple):
    """What a route, ``<connection>/<object>``, accepts; its path may end with any of the tokens."""

    endpoint: settings.WebhookEndpoint
    tokens: list[str]
    secrets: list[str]


Routes = dict[str, RouteConfig]


class Configuration:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reading = threading.Lock()
        self._routes: Routes = {}
        self._read_at = -math.inf

    def known(self) -> Routes | None:
        """Return what was read a short time ago, without I/O; None if nothing was."""
        return self._routes if self._clock() - self._read_at < MAX_AGE else None

    def read(self) -> Routes:
        """Return what each route accepts. It may wait for the database."""
        with self._reading:
            if self.known() is None:
                self._routes, self._read_at = _read_routes(), self._clock()
            return self._routes


def _read_routes() -> Routes:
    text = read_variable_in_server(settings.CONFIGURATION)
    try:
        endpoints = settings.ReceiverSettings.parse(text).endpoints if text is not None else {}
    except FsmInputError as error:
        logger.error("%s; every delivery is refused", error)
        return {}
    registered: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for text in variables_in_server(settings.REGISTRATIONS) if endpoints else ():
        if isinstance(registration := _parsed(text), dict):
            registered[registration.get("for")].append(registration)
    return {
        route: _route(route, endpoint, registered[route]) for route, endpoint in endpoints.items()
    }


def _route(
    route: str, endpoint: settings.WebhookEndpoint, registered: list[dict[str, Any]]
) -> RouteConfig:
    suffix = route.replace("/", "_")
    tokens = _usable(
        f"fsm_webhook_secret_tokens_{suffix}",
        f"path token of {route} ({MIN_TOKEN_CHARACTERS} characters at least)",
        [one["token"] for one in registered if one.get("token")],
        lambda token: len(token) >= MIN_TOKEN_CHARACTERS,
    )
    if endpoint.signature == "none":
        return RouteConfig(endpoint, tokens, [])
    secrets = _usable(
        f"fsm_webhook_secrets_{suffix}",
        f"signing secret of {route} (a key of {MIN_KEY_BYTES} bytes at least)",
        [one["secret"] for one in registered if one.get("secret")],
        lambda secret: len(key_from(secret, endpoint)) >= MIN_KEY_BYTES,
    )
    return RouteConfig(endpoint, tokens, secrets)


def _usable(
    variable: str, purpose: str, registered: list[Any], fits: Callable[[str], bool]
) -> list[str]:
    """Return the registered values and those of a Variable: a text, or a JSON list."""
    by_hand = _parsed(read_variable_in_server(variable) or "[]")
    values = [*(by_hand if isinstance(by_hand, list) else [by_hand]), *registered]
    usable = [one.strip() for one in values if isinstance(one, str) and fits(one.strip())]
    if not usable:
        logger.error("Variable %s: holds no %s: every delivery is refused", variable, purpose)
    elif refused := len(values) - len(usable):
        message = "Variable %s: %s refused: each should be a %s"
        logger.error(message, variable, pluralize(refused, "value"), purpose)
    return usable


def _parsed(text: str) -> Any:
    """Parse a JSON object or list; other text is a value itself."""
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return None
