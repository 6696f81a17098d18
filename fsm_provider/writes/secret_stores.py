"""Stores for signing secrets: an Airflow Variable, or a function of the user."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Protocol

from tenacity import Future, RetryError, Retrying, stop_after_attempt, wait_exponential

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.variables import read_variable, write_variable

logger: logging.Logger = logging.getLogger(__name__)

PROBE = "probe"
"""The key of the empty secret that is written before anything is registered."""
ATTEMPTS = 4


class SecretStore(Protocol):
    """Stores secrets by key. Its errors quote no secret."""

    def check(self) -> None:
        """Check that it can be written to, without a secret."""

    def put(self, key: str, secret: str) -> None:
        """Store a secret."""


class SecretStoreError(Exception):
    """A secret could not be stored; the message does not quote it."""


class VariableSecretStore:
    """A Variable that maps keys to secrets, as JSON. Several connections may share it.

    :param name: its name; Airflow hides the value if the name contains ``secret``.
    :param scope: ``<connection>/<object>``, whose deliveries the secrets verify; the prefix of each key.
    """

    def __init__(self, name: str, scope: str) -> None:
        self.name = name
        self.scope = scope

    def check(self) -> None:
        """Write back what the Variable holds."""
        write_variable(self.name, json.dumps(self._read()))

    def put(self, key: str, secret: str) -> None:
        """Add the secret to those in the Variable, and read it back."""
        attempts = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=0.5),
            before_sleep=lambda state: logger.warning(
                "Variable %s could not be written (%s): trying again", self.name, _reason(state.outcome)
            ),
        )
        try:
            attempts(self._add, f"{self.scope}/{key}", secret)
        except RetryError as error:
            reason = _reason(error.last_attempt)
        else:
            return
        # Not inside except: the error before it may quote the secret.
        raise SecretStoreError(f"Variable {self.name} could not be written: {reason}")

    def _add(self, key: str, secret: str) -> None:
        write_variable(self.name, json.dumps({**self._read(), key: secret}))
        if self._read().get(key) != secret:
            raise LookupError("the secret is not there after the write")

    def _read(self) -> dict[str, str]:
        text = read_variable(self.name) or "{}"
        try:
            secrets = json.loads(text)
        except ValueError:
            secrets = None
        if not isinstance(secrets, dict):
            raise FsmInputError(
                f"Variable {self.name}: does not hold a JSON object that maps identifiers to "
                "secrets: nothing was registered, as no secret could be added to it"
            ) from None
        return secrets


def _reason(attempt: Future | None) -> str:
    """Return the class of an attempt's error, whose text may quote the secret."""
    return type(attempt.exception() if attempt else None).__name__


class FunctionSecretStore:
    """A function that is called with key and secret, e.g. to write to a secrets backend.

    :param scope: the prefix of each key.
    """

    def __init__(self, function: Callable[[str, str], Any], scope: str) -> None:
        self._function = function
        self.scope = scope

    def check(self) -> None:
        """Call it with an empty secret."""
        self._call(PROBE, "")

    def put(self, key: str, secret: str) -> None:
        """Call it with the secret."""
        self._call(key, secret)

    def _call(self, key: str, secret: str) -> None:
        try:
            self._function(f"{self.scope}/{key}", secret)
        except Exception as error:  # noqa: BLE001 - any error may quote the secret
            reason = type(error).__name__
        else:
            return
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        raise SecretStoreError(f"secret_store {name} raised {reason} for key {self.scope}/{key}")
