"""The webhooks registered from this Airflow, across tasks, runs and DAGs, in Airflow Variables.

The service offers no way to look up or delete a registration. So each is saved in a Variable, which says
before the request is sent that the outcome is unknown. Airflow has no conditional write of a Variable. So
each task writes a claim, a Variable of its own, and then lists the claims of others: of two tasks that do so
at the same time, at least one sees the other and gives way.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, mask_secret
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_random

from fsm_provider.api.errors import FsmError, FsmInputError, error_from_dict
from fsm_provider.state.digest import digest_for
from fsm_provider.state.task import Task
from fsm_provider.state.variables import delete_variable, read_variable, variable_keys, write_variable

logger: logging.Logger = logging.getLogger(__name__)

CLAIMS = "fsm_webhook_claim_"
"""The prefix of all claims. No task registers while another holds a claim."""
DIGITS = 16
"""Length of a digest in the name of a Variable."""
MAX_CLAIM_WAIT = 60.0
"""Seconds that a task waits for others to finish registering."""


@dataclass(frozen=True)
class Registration:
    """What is saved of a registration.

    :param by: the task that registered it.
    :param at: when it was saved, ISO 8601.
    :param result: the registration, without secrets; None if the outcome is unknown.
    :param error: why it is unknown, as :meth:`FsmError.as_dict` returns it.
    """

    by: Task
    at: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Registrations:
    """The registrations of one connection, as one task sees them.

    :param holder: the task.
    :param max_wait: seconds to wait for other tasks.
    """

    def __init__(self, fsm_conn_id: str, holder: Task, *, max_wait: float = MAX_CLAIM_WAIT) -> None:
        self.holder = holder
        self._max_wait = max_wait
        connection = f"{_short(fsm_conn_id, 100)}_{digest_for(fsm_conn_id, DIGITS)}"
        self._claim = f"{CLAIMS}{connection}_{digest_for(asdict(holder), DIGITS)}"

    def get(self, name: str) -> Registration | None:
        """Return what is saved under a name; None if nothing is.

        :raises FsmInputError: if the Variable holds anything else.
        """
        text = read_variable(name)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            registration = Registration(**{**fields, "by": Task(**fields["by"])})
            if registration.result is None:
                error_from_dict(registration.error or {})
        except (ValueError, TypeError, KeyError):
            raise FsmInputError(
                f"Variable {name}: does not hold a registration saved by this operator"
            ) from None
        return registration

    def save(self, name: str, *, result: dict[str, Any] | None = None, error: FsmError | None = None) -> None:
        """Save the result of a registration, or the error that says that its outcome is unknown."""
        registration = Registration(
            self.holder,
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            result,
            error.as_entry() if error else None,
        )
        self.restore(name, registration)

    def restore(self, name: str, registration: Registration | None) -> None:
        """Restore what was saved before; None deletes the Variable."""
        if registration is None:
            delete_variable(name)
        else:
            write_variable(name, json.dumps(asdict(registration)))

    def delete_stale_claim(self) -> None:
        """Delete the claim that a killed attempt of this task has left."""
        if self._claim in (variable_keys(CLAIMS) or ()):
            self._release()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep all other tasks from registering, on any connection, as they may share a Variable for secrets.

        Needs Airflow 3.3 or newer; older versions log a warning instead.

        :raises AirflowException: if another task is still registering after ``max_wait``.
        """
        if variable_keys(CLAIMS) is None:
            logger.warning(
                "This Airflow lists no Variables for a task (3.3 and newer do): another task that registers "
                "the same, or writes to the same Variable, at the same time will not be noticed"
            )
            yield
            return
        self._acquire()
        try:
            yield
        finally:
            self._release()

    def _acquire(self) -> None:
        attempts = Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(self._max_wait),
            wait=wait_random(0.2, 1.0),  # so that two do not collide again
        )
        try:
            attempts(self._attempt_claim)
        except RetryError as error:
            other = error.last_attempt.result()[0]
            raise AirflowException(
                f"{self._describe(other)} is registering webhooks. If it has died, find out "
                f"whether its webhook exists, then delete Variable {other}"
            ) from None

    def _attempt_claim(self) -> list[str]:
        if others := self._others():
            return others
        try:
            write_variable(self._claim, json.dumps(asdict(self.holder)))
            others = self._others()
        except BaseException:
            self._release()
            raise
        if others:
            self._release()
        return others

    def _others(self) -> list[str]:
        return [key for key in variable_keys(CLAIMS) or () if key != self._claim]

    def _release(self) -> None:
        try:
            delete_variable(self._claim)
        except Exception as error:  # noqa: BLE001 - what the claim protected has its own outcome
            logger.warning("Variable %s could not be deleted; delete it yourself: %r", self._claim, error)

    @staticmethod
    def _describe(claim: str) -> str:
        with suppress(ValueError, TypeError):
            return str(Task(**json.loads(read_variable(claim) or "")))
        return "Another task"


class PathTokens:
    """The path tokens of the receiver's URLs: a Variable that maps registrations to tokens, as JSON.

    :param name: the Variable's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def token_for(self, registration: str, *, fresh: bool) -> str:
        """Return a token that the receiver accepts from now on.

        :param fresh: create another one; :meth:`activate` then retires the previous ones.
        """
        all_tokens = self._read()
        tokens = all_tokens.get(registration, [])
        if not tokens or (fresh and len(tokens) == 1):
            tokens = [*tokens, secrets.token_urlsafe(32)]
            mask_secret(tokens[-1])
            write_variable(self._name, json.dumps({**all_tokens, registration: tokens}))
        return tokens[-1]

    def activate(self, registration: str, token: str) -> None:
        """Make this the only token that the receiver accepts for the registration."""
        all_tokens = self._read()
        if all_tokens.get(registration) != [token]:
            write_variable(self._name, json.dumps({**all_tokens, registration: [token]}))

    def _read(self) -> dict[str, list[str]]:
        try:
            read: dict[str, list[str]] = json.loads(read_variable(self._name) or "{}")
            for token in (token for tokens in read.values() for token in tokens):
                mask_secret(token)
        except (ValueError, AttributeError, TypeError):
            raise FsmInputError(
                f"Variable {self._name}: is not a JSON object that maps registrations to lists of tokens"
            ) from None
        return read


def variable_name(fsm_conn_id: str, watched: str, event_types: list[str], target: str) -> str:
    """Return the name of the Variable in which a registration is saved.

    :param target: its URL, without the token of the receiver.
    """
    events = "_".join(sorted(event.removeprefix(f"{watched}.") for event in event_types))
    digest = digest_for([fsm_conn_id, watched, sorted(event_types), target], DIGITS)
    # Airflow allows 250 characters.
    return f"fsm_webhook_{_short(fsm_conn_id, 100)}_{watched}_{_short(events, 80)}_{digest}"


def _short(text: str, length: int) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:length]
