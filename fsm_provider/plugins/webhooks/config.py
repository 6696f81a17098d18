"""The receiver's settings and secrets, read from Airflow at most once a second."""

import json
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import JsonObject, pluralize
from fsm_provider.plugins.webhooks.settings import (
    REGISTRATION_PREFIX,
    SETTINGS_VARIABLE,
    ReceiverSettings,
    WebhookEndpoint,
)
from fsm_provider.plugins.webhooks.signature import MIN_KEY_BYTES, key_from
from fsm_provider.state.variables import read_variable_in_server, variables_in_server

logger: logging.Logger = logging.getLogger(__name__)

MAX_AGE = 1.0
"""Seconds after which everything is read again, and thus the longest that a rotation takes."""
MIN_TOKEN_CHARACTERS = 20


class RouteConfig(NamedTuple):
    """What the receiver accepts on one route, ``<connection>/<object>``.

    :ivar path_tokens: a delivery's path ends with any of them.
    :ivar signing_secrets: a delivery is signed with any of them; empty if the endpoint's signature
        is ``none``.
    """

    endpoint: WebhookEndpoint
    path_tokens: list[str]
    signing_secrets: list[str]


Routes = dict[str, RouteConfig]
Registration = JsonObject
"""What the Variable of a registration holds: ``for`` (its route), ``token``, ``secret``, others."""


class ReceiverConfiguration:
    """What each route accepts, as it was read from Airflow a short time ago.

    For each delivery, the receiver's event loop calls :meth:`fresh_routes`. Where that returns
    None, the event loop has one of the receiver's threads call :meth:`read`, which waits for
    Airflow's database. If several threads call it at once, the first one reads; the others wait
    for it, and return what it has read.

    :param clock: seconds of a clock that is never set back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reading = threading.Lock()
        self._routes: Routes = {}
        self._read_at = -math.inf

    def fresh_routes(self) -> Routes | None:
        """Return what was read less than ``MAX_AGE`` ago, without I/O; None if nothing was."""
        age = self._clock() - self._read_at
        return self._routes if age < MAX_AGE else None

    def read(self) -> Routes:
        """Return what each route accepts. It may wait for the database: call it in a thread."""
        with self._reading:
            if self.fresh_routes() is None:
                self._routes = _read_routes()
                self._read_at = self._clock()
            return self._routes


def _read_routes() -> Routes:
    text = read_variable_in_server(SETTINGS_VARIABLE)
    if text is None:
        return {}
    try:
        endpoints = ReceiverSettings.parse(text).endpoints
    except FsmInputError as error:
        logger.error("%s; every delivery is refused", error)
        return {}
    if not endpoints:
        return {}
    registrations = defaultdict(list)
    for stored in variables_in_server(REGISTRATION_PREFIX):
        registration = _parse_variable(stored)
        if isinstance(registration, dict):
            route = str(registration.get("for"))  # input: whoever may write Variables wrote it
            registrations[route].append(registration)
    return {
        route: _read_route(route, endpoint, registrations[route])
        for route, endpoint in endpoints.items()
    }


def _read_route(
    route: str, endpoint: WebhookEndpoint, registrations: list[Registration]
) -> RouteConfig:
    suffix = route.replace("/", "_")
    path_tokens = _usable_values(
        f"fsm_webhook_secret_tokens_{suffix}",
        f"path token of {route} ({MIN_TOKEN_CHARACTERS} characters at least)",
        "token",
        registrations,
        lambda token: len(token) >= MIN_TOKEN_CHARACTERS,
    )
    if endpoint.signature == "none":
        return RouteConfig(endpoint, path_tokens, [])
    signing_secrets = _usable_values(
        f"fsm_webhook_secrets_{suffix}",
        f"signing secret of {route} (a key of {MIN_KEY_BYTES} bytes at least)",
        "secret",
        registrations,
        lambda secret: len(key_from(secret, endpoint)) >= MIN_KEY_BYTES,
    )
    return RouteConfig(endpoint, path_tokens, signing_secrets)


def _usable_values(
    variable: str,
    purpose: str,
    name: str,
    registrations: list[Registration],
    is_usable: Callable[[str], bool],
) -> list[str]:
    """Return the usable values of those in a Variable and what registrations hold under a name.

    A person sets the Variable, to a text or to a JSON list of texts. Values that are not usable are
    logged by their number, without quoting them.
    """
    set_by_hand = _parse_variable(read_variable_in_server(variable) or "[]")
    if not isinstance(set_by_hand, list):
        set_by_hand = [set_by_hand]
    registered = [registration[name] for registration in registrations if registration.get(name)]
    values = set_by_hand + registered
    texts = [value.strip() for value in values if isinstance(value, str)]
    usable = [text for text in texts if is_usable(text)]
    refused = len(values) - len(usable)
    if not usable:
        logger.error("Variable %s: holds no %s: every delivery is refused", variable, purpose)
    elif refused:
        message = "Variable %s: %s refused: each should be a %s"
        logger.error(message, variable, pluralize(refused, "value"), purpose)
    return usable


def _parse_variable(text: str) -> Any:
    """Parse a JSON object or list; None if it is malformed. Other text is returned as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
