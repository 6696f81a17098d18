"""Which webhooks are registered from this Airflow, across tasks, runs and DAGs: in Airflow Variables.

The service shows no way to look a registration up, or to delete it. So each is remembered in a Variable,
which says before it is sent that its outcome is unknown. An Airflow Variable cannot be written on a
condition. What can be done is to write a Variable of one's own and then to list those of the others: of
two tasks that do so at the same moment, at least one sees the other, and gives way.
"""

from __future__ import annotations

import json
import logging
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import AirflowException, Variable, mask_secret

from fsm_provider.api.errors import FsmError, FsmInputError, error_from_dict
from fsm_provider.compat import read_variable, variable_keys
from fsm_provider.digest import digest_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

logger: logging.Logger = logging.getLogger(__name__)

NAME_LENGTH = 250
"""Characters that Airflow allows in the name of a Variable."""
DIGITS = 16
"""Of a digest in the name of a Variable."""
PATIENCE = 60.0
"""Seconds that a task waits for others that register on the same connection."""


@dataclass(frozen=True)
class Holder:
    """A task of a run: the same for each of its tries, also after it was cleared."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @classmethod
    def of(cls, context: Context) -> Self:
        """Give the task that runs."""
        ti = context["ti"]
        return cls(ti.dag_id, ti.run_id, ti.task_id, ti.map_index if ti.map_index is not None else -1)

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"task {self.task_id}{mapped} of run {self.run_id} of DAG {self.dag_id}"


@dataclass(frozen=True)
class Known:
    """What is remembered of a registration.

    :param by: the task that registered it.
    :param at: when, ISO 8601.
    :param result: the registration, without secrets; None where its outcome is unknown.
    :param error: the error that says so, as :meth:`FsmError.as_dict` gives it.
    """

    by: Holder
    at: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Registrations:
    """The registrations of one connection, as one task sees them.

    :param holder: the task.
    :param patience: seconds to wait for other tasks.
    :param sleep: waits so many seconds.
    """

    def __init__(
        self,
        fsm_conn_id: str,
        holder: Holder,
        *,
        patience: float = PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.holder = holder
        self._patience = patience
        self._sleep = sleep
        self._claims = f"fsm_webhook_claim_{_short(fsm_conn_id, 100)}_{digest_of(fsm_conn_id, DIGITS)}_"
        self._claim = self._claims + digest_of(asdict(holder), DIGITS)

    def known(self, name: str) -> Known | None:
        """Give what is remembered under a name.

        :raises FsmInputError: where the Variable holds something else.
        """
        text = read_variable(name)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            return Known(**{**fields, "by": Holder(**fields["by"])})
        except (ValueError, TypeError, KeyError):
            raise FsmInputError(f"Variable {name}: does not hold what this operator writes there") from None

    def remember(
        self, name: str, *, result: dict[str, Any] | None = None, error: FsmError | None = None
    ) -> None:
        """Remember what came of a registration, or that nobody knows yet."""
        known = Known(
            self.holder,
            datetime.now(UTC).isoformat(timespec="seconds"),
            result,
            error.as_dict() if error else None,
        )
        self.restore(name, known)

    def restore(self, name: str, known: Known | None) -> None:
        """Remember what was remembered before."""
        if known is None:
            Variable.delete(name)
        else:
            Variable.set(name, json.dumps(asdict(known)))

    def tidy(self) -> None:
        """Take back what an earlier try of the same task that was killed has left behind."""
        if self._claim in (variable_keys(self._claims) or ()):
            self._give_up()

    def is_ours(self, known: Known) -> bool:
        """Tell whether a try of the same task remembers it."""
        return known.by == self.holder

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep all others from registering on the connection (Airflow 3.3 and newer).

        :raises AirflowException: where another task keeps us from it for longer than our patience.
        """
        if variable_keys(self._claims) is None:
            logger.warning(
                "This Airflow lists no Variables for a task (3.3 and newer do): another task that registers "
                "the same at this moment will not be noticed"
            )
            yield
            return
        self._take()
        try:
            yield
        finally:
            self._give_up()

    def _take(self) -> None:
        deadline = time.monotonic() + self._patience
        while others := self._others_after_showing_ourselves():
            if time.monotonic() >= deadline:
                raise AirflowException(
                    f"{self._describe(others[0])} is registering webhooks on the connection. Should it have "
                    f"died: find out whether its webhook exists, then delete Variable {others[0]}"
                )
            self._sleep(random.uniform(0.2, 1.0))  # noqa: S311 - so that two do not meet again

    def _others_after_showing_ourselves(self) -> list[str]:
        if others := self._others():
            return others
        try:
            Variable.set(self._claim, json.dumps(asdict(self.holder)))
            others = self._others()
        except BaseException:
            self._give_up()
            raise
        if others:
            self._give_up()
        return others

    def _others(self) -> list[str]:
        return [key for key in variable_keys(self._claims) or () if key != self._claim]

    def _give_up(self) -> None:
        try:
            Variable.delete(self._claim)
        except Exception as error:  # noqa: BLE001 - what the claim was for has its own outcome
            logger.warning("Variable %s could not be deleted, do that: %r", self._claim, error)

    @staticmethod
    def _describe(claim: str) -> str:
        with suppress(ValueError, TypeError):
            return str(Holder(**json.loads(read_variable(claim) or "")))
        return "Another task"


class PathTokens:
    """The tokens in the paths of the receiver's addresses: a Variable of registration to tokens, as JSON.

    :param name: the Variable's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def token_for(self, registration: str, *, anew: bool) -> str:
        """Give a token that the receiver accepts from now on.

        :param anew: make another, which :meth:`settle` puts in place of those before it.
        """
        all_tokens = self._read()
        tokens = all_tokens.get(registration, [])
        if not tokens or (anew and len(tokens) == 1):
            tokens = [*tokens, secrets.token_urlsafe(32)]
            mask_secret(tokens[-1])
            Variable.set(self._name, json.dumps({**all_tokens, registration: tokens}))
        return tokens[-1]

    def settle(self, registration: str, token: str) -> None:
        """Have the receiver accept this token alone for the registration."""
        all_tokens = self._read()
        if all_tokens.get(registration) != [token]:
            Variable.set(self._name, json.dumps({**all_tokens, registration: [token]}))

    def _read(self) -> dict[str, list[str]]:
        try:
            read: dict[str, list[str]] = json.loads(read_variable(self._name) or "{}")
            for token in (token for tokens in read.values() for token in tokens):
                mask_secret(token)
        except (ValueError, AttributeError, TypeError):
            raise FsmInputError(
                f"Variable {self._name}: is not a JSON object of registrations to lists of tokens"
            ) from None
        return read


def name_of(fsm_conn_id: str, watched: str, event_types: list[str], target: str) -> str:
    """Name the Variable that remembers a registration.

    :param target: its address, or that without the token.
    """
    events = "_".join(sorted(event.removeprefix(f"{watched}.") for event in event_types))
    digest = digest_of([fsm_conn_id, watched, sorted(event_types), target], DIGITS)
    readable = f"fsm_webhook_{_short(fsm_conn_id, 100)}_{watched}_{_short(events, 80)}"
    return f"{readable}_{digest}"[:NAME_LENGTH]


def uncertainty(known: Known) -> FsmError:
    """Give the error of a registration whose outcome is unknown."""
    if known.error is None:
        raise ValueError("the outcome is known")
    return error_from_dict(known.error)


def _short(text: str, length: int) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:length]
