"""The receiver's settings and secrets, which are read from Airflow beside the deliveries."""

import asyncio
import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from fsm_provider.state.variables import read_stored_variable, stored_variable_values

logger: logging.Logger = logging.getLogger(__name__)

READ_EVERY = 1.0
"""Seconds between the beginnings of two readings, at least."""
REFRESH_SHARE = 0.25
"""Of the seconds that a delivery has: what it waits for a reading while an older one serves."""
MAX_AGE = 600.0
"""Seconds since a reading began for which it serves, and thus the longest that a rotation takes.

Senders often repeat a delivery after five minutes. That repeat still finds what the first one had
read.
"""
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
Reading = tuple[float, Routes]
"""When a reading began, and what it has found."""
Registration = JsonObject
"""What the Variable of a registration holds: ``for`` (its route), ``token``, ``secret``, others."""


class ReceiverConfiguration:
    """What each route accepts, as it was last read from Airflow.

    For each delivery, the receiver's event loop awaits :meth:`refresh`, which has a thread read
    everything again, one reading at a time. :meth:`routes` returns what the last complete reading
    has found, in any thread and without I/O. A reading that fails is logged, and changes nothing.

    :param clock: seconds of a clock that is never set back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fsm-webhooks-configuration")
        self._reading: asyncio.Future[Reading] | None = None
        self._last: Reading = (-math.inf, {})  # that succeeded
        self._tried_at = -math.inf  # when the last reading began, also if it failed

    def routes(self) -> Routes | None:
        """Return what was read last; None if that reading began ``MAX_AGE`` ago or earlier."""
        began, routes = self._last
        return routes if self._clock() - began < MAX_AGE else None

    async def refresh(self, seconds: float) -> None:
        """Have everything read again, unless that was just done.

        :param seconds: how long to wait for it; while an older reading serves, it is
            ``REFRESH_SHARE`` of that.
        """
        if self._reading is None or self._reading.done():
            now = self._clock()
            if now - self._tried_at < READ_EVERY:
                return
            self._tried_at = now
            loop = asyncio.get_running_loop()
            self._reading = loop.run_in_executor(self._thread, self._read)
            self._reading.add_done_callback(self._on_read)
        if self.routes() is not None:
            seconds *= REFRESH_SHARE
        await asyncio.wait([self._reading], timeout=seconds)

    def _read(self) -> Reading:
        began = self._clock()
        return began, read_routes()

    def _on_read(self, reading: asyncio.Future[Reading]) -> None:
        error = reading.exception()
        if error is None:
            self._last = reading.result()
        else:  # without its text, which may quote a secret
            logger.error("The receiver's settings were not read: %s", type(error).__name__)


def read_routes() -> Routes:
    """Return what each route accepts. It waits for Airflow's database and secrets backends."""
    text = read_stored_variable(SETTINGS_VARIABLE)
    if text is None:
        return {}
    try:
        endpoints = ReceiverSettings.parse(text).endpoints
    except FsmInputError as error:
        logger.error("%s; every delivery is refused", error)
        return {}
    registrations = defaultdict(list)
    for stored in stored_variable_values(REGISTRATION_PREFIX):
        registration = _parse_variable(stored)
        if isinstance(registration, dict):  # not path tokens, whose Variables begin alike
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
    set_by_hand = _parse_variable(read_stored_variable(variable) or "[]")
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
