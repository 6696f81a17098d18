"""The receiver's settings and secrets, read from Airflow and cached for some seconds."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsm_provider.api.errors import FsmInputError
from fsm_provider.compat import webhook_secrets_function
from fsm_provider.plugins.webhooks.names import (
    DIGITS,
    registrations_prefix,
    secrets_variable,
    tokens_variable,
)
from fsm_provider.plugins.webhooks.settings import (
    CONFIGURATION,
    MIN_KEY_BYTES,
    MIN_TOKEN_CHARACTERS,
    ReceiverSettings,
    WebhookEndpoint,
)
from fsm_provider.plugins.webhooks.signature import is_strong
from fsm_provider.state.variables import read_variable_in_server, variables_in_server

logger: logging.Logger = logging.getLogger(__name__)

MAX_AGE = 10.0
"""Seconds after which a value is read again, and thus the longest that a rotation takes."""
MAX_AGE_BEFORE_REFUSAL = 1.0
"""Seconds after which a value is read again before a delivery is refused."""

Text = tuple[str | None, Any]
"""A value that should be text, and before it its key in the outermost JSON object."""


@dataclass(frozen=True)
class Route:
    """The connection and object that a delivery is for."""

    fsm_conn_id: str
    watched: str

    def __str__(self) -> str:
        return f"{self.fsm_conn_id}/{self.watched}"


class _Cached(NamedTuple):
    value: Any
    at: float


class Configuration:
    """The current configuration. Its methods may wait for the database; call them in a thread.

    :param clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cache: dict[tuple[str, str], _Cached] = {}
        self._reading = threading.Lock()
        self._logged: dict[str, tuple[Any, str]] = {}

    def endpoint(self, route: Route, *, fresher: bool = False) -> WebhookEndpoint | None:
        """Return the endpoint of a route, or None."""
        endpoints: dict[str, WebhookEndpoint] = self._variable("settings", CONFIGURATION, _endpoints, fresher)
        return endpoints.get(str(route))

    def tokens(self, route: Route, *, fresher: bool = False) -> list[str]:
        """Return the tokens that the path of a route may end with."""
        name = tokens_variable(route.fsm_conn_id, route.watched)
        values: list[Text] = self._variable("tokens", name, _texts, fresher)
        registered = [one["token"] for one in self._registrations(route, fresher) if one.get("token")]
        return self._usable(
            f"Variable {name}",
            f"path token of {route}",
            [*(value for _, value in values), *registered],
            lambda text: len(text) >= MIN_TOKEN_CHARACTERS,
            f"a text of {MIN_TOKEN_CHARACTERS} characters",
        )

    def secrets(self, route: Route, endpoint: WebhookEndpoint, *, fresher: bool = False) -> list[str] | None:
        """Return the signing secrets of a route, newest first; None if the function for secrets fails."""
        scheme = endpoint.scheme
        if scheme is None:
            return []
        values: list[Text] | None
        if endpoint.secrets_from is not None:
            source = "webhook_secrets_function"
            values = self._value((source, str(route)), lambda: self._call_function(route), fresher)
            if values is None:
                return None
        else:
            name = endpoint.secrets_variable or secrets_variable(route.fsm_conn_id, route.watched)
            source = f"Variable {name}"
            values = self._variable("secrets", name, _texts, fresher)
        secrets = self._usable(
            source,
            f"signing secret of {route}",
            # People write bare identifiers.
            [
                *(value for key, value in values if (key or "").rpartition("/")[0] in ("", str(route))),
                *(one["secret"] for one in self._registrations(route, fresher) if one.get("secret")),
            ],
            lambda text: is_strong(scheme, text),
            f"a text of a key of {MIN_KEY_BYTES} bytes",
        )
        return secrets[::-1]

    def is_fresh(self, route: Route) -> bool:
        """Return whether endpoint and tokens of a route are known without I/O."""
        settings = self._cached(("settings", CONFIGURATION), MAX_AGE_BEFORE_REFUSAL)
        if settings is None or str(route) not in settings.value:
            return settings is not None
        names = (route.fsm_conn_id, route.watched)
        keys = (("tokens", tokens_variable(*names)), ("registrations", registrations_prefix(*names)))
        return all(self._cached(key, MAX_AGE_BEFORE_REFUSAL) for key in keys)

    def _registrations(self, route: Route, fresher: bool) -> list[dict[str, Any]]:
        """Return what the operator has stored of the registrations of a route, oldest first."""
        prefix = registrations_prefix(route.fsm_conn_id, route.watched)

        def read() -> list[dict[str, Any]]:
            texts = [text for name, text in variables_in_server(prefix) if len(name) == len(prefix) + DIGITS]
            stored = [one for one in map(_record, texts) if one.get("for") == str(route)]
            return sorted(stored, key=lambda one: str(one.get("at", "")))

        found: list[dict[str, Any]] = self._value(("registrations", prefix), read, fresher)
        return found

    def _variable(self, kind: str, name: str, parse: Callable[[str | None], Any], fresher: bool) -> Any:
        def read() -> Any:
            text, problem = read_variable_in_server(name), ""
            try:
                return parse(text)
            except FsmInputError as error:
                problem = f"{error}; deliveries that need it are refused"
            except (ValueError, RecursionError):
                problem = (
                    f"Variable {name}: begins like JSON but is none; deliveries that need it are refused"
                )
            finally:
                self._log_once(f"{kind} {name}", text, problem)
            return parse(None)

        return self._value((kind, name), read, fresher)

    def _value(self, key: tuple[str, str], read: Callable[[], Any], fresher: bool) -> Any:
        max_age = MAX_AGE_BEFORE_REFUSAL if fresher else MAX_AGE
        if cached := self._cached(key, max_age):
            return cached.value
        with self._reading:
            if cached := self._cached(key, max_age):
                return cached.value
            value = read()
            self._cache[key] = _Cached(value, self._clock())
            return value

    def _cached(self, key: tuple[str, str], max_age: float) -> _Cached | None:
        """Return what was read at most so many seconds ago."""
        cached = self._cache.get(key)
        return cached if cached and self._clock() - cached.at < max_age else None

    def _call_function(self, route: Route) -> list[Text] | None:
        values, problem = None, ""
        try:
            values = _flat(webhook_secrets_function()(route.fsm_conn_id, route.watched))
        except FsmInputError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - any error may quote a secret
            problem = f"webhook_secrets_function raised {type(error).__name__} for {route}"
        self._log_once(f"function {route}", None, problem and f"{problem}; senders are asked to retry")
        return values

    def _usable(
        self, source: str, purpose: str, values: list[Any], fits: Callable[[str], bool], required: str
    ) -> list[str]:
        usable = [value for value in values if isinstance(value, str) and fits(value)]
        problem = ""
        if not usable:
            problem = f"{source}: holds no {purpose} ({required} at least): every delivery is refused"
        elif len(usable) < len(values):
            problem = (
                f"{source}: {len(values) - len(usable)} of {len(values)} values cannot be a {purpose} "
                f"({required} at least), and are refused"
            )
        self._log_once(purpose, (source, values, required), problem)
        return usable

    def _log_once(self, about: str, state: Any, problem: str) -> None:
        """Log a problem, and log it again only after the state that it is about has changed."""
        if not problem:
            self._logged.pop(about, None)
        elif self._logged.get(about) != (state, problem):
            self._logged[about] = (state, problem)
            logger.error("%s", problem)


def _endpoints(text: str | None) -> dict[str, WebhookEndpoint]:
    return {} if text is None else ReceiverSettings.parse(text).endpoints


def _record(text: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(record := json.loads(text), dict):
            return record
    return {}


def _texts(text: str | None) -> list[Text]:
    """Parse a JSON object, list or string; other text is one value."""
    text = (text or "").strip()
    return _flat(json.loads(text) if text[:1] in ("{", "[", '"') else text)


def _flat(value: Any, key: str | None = None) -> list[Text]:
    """Return each value that is no object or list, with its key in the outermost object."""
    if isinstance(value, dict):
        return [text for name, one in value.items() for text in _flat(one, name if key is None else key)]
    if isinstance(value, list):
        return [text for one in value for text in _flat(one, key)]
    return [(key, value.strip() if isinstance(value, str) else value)]
