"""Where signing secrets go: an Airflow Variable, or a function of the user's."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from airflow.providers.common.compat.sdk import Variable

from fsm_provider.api.errors import FsmInputError
from fsm_provider.compat import import_function, read_variable

logger: logging.Logger = logging.getLogger(__name__)

PROBE = "probe"
"""The key of the empty text that is written before anything is registered."""
ATTEMPTS = 4


class SecretSink(Protocol):
    """A place for secrets by key. What it raises quotes no secret."""

    def prove(self) -> None:
        """Write to it, without a secret."""

    def keep(self, key: str, secret: str) -> None:
        """Write a secret."""


class SinkError(Exception):
    """A secret could not be written; the text does not say which."""


class VariableSink:
    """A Variable that maps keys to secrets, as JSON.

    :param name: its name; Airflow hides the value where that contains ``secret``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def prove(self) -> None:
        """Write what the Variable holds already."""
        Variable.set(self.name, json.dumps(self._kept()))

    def keep(self, key: str, secret: str) -> None:
        """Write the secret beside those that are kept."""
        self._try(lambda: Variable.set(self.name, json.dumps({**self._kept(), key: secret})))

    def _try(self, write: Callable[[], None]) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return write()
            except Exception as error:  # noqa: BLE001 - whatever it is, it may quote what was written
                reason = type(error).__name__
            if attempt < ATTEMPTS:
                logger.warning("Variable %s could not be written (%s): trying again", self.name, reason)
                time.sleep(2 ** (attempt - 2))
        raise SinkError(f"Variable {self.name} could not be written: {reason}") from None

    def _kept(self) -> dict[str, str]:
        text = read_variable(self.name) or "{}"
        try:
            kept = json.loads(text)
        except ValueError:
            kept = None
        if not isinstance(kept, dict):
            raise FsmInputError(
                f"Variable {self.name}: does not hold a JSON object of identifiers to secrets: "
                "nothing was registered, as no secret could be added to it"
            ) from None
        return kept


class FunctionSink:
    """A function that is called with key and secret, e.g. one that writes to a secrets backend.

    :param path: ``package.module.function``.
    :param scope: begins each key.
    """

    def __init__(self, path: str, scope: str) -> None:
        self.path = path
        self.scope = scope
        self._function: Callable[[str, str], Any] = import_function("secret_sink", path)

    def prove(self) -> None:
        """Call it with an empty secret."""
        self._call(PROBE, "")

    def keep(self, key: str, secret: str) -> None:
        """Call it with the secret."""
        self._call(key, secret)

    def _call(self, key: str, secret: str) -> None:
        try:
            self._function(f"{self.scope}/{key}", secret)
        except Exception as error:  # noqa: BLE001 - whatever it is, it may quote what was written
            reason = type(error).__name__
        else:
            return
        raise SinkError(f"secret_sink {self.path} raised {reason} for key {self.scope}/{key}")
