"""Webhook registrations: writes, each with a Variable that holds its id and its signing secret."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import mask_secret

from fsm_provider.api.errors import (
    FsmError,
    FsmInputError,
    FsmRegistrationMismatchError,
    FsmSecretNotStoredError,
)
from fsm_provider.api.redaction import hide_in
from fsm_provider.links.webhooks import HIDDEN
from fsm_provider.plugins.webhooks.names import DIGITS, registrations_prefix
from fsm_provider.state.task import digest_for
from fsm_provider.state.variables import read_variable, write_variable
from fsm_provider.writes.ledger import Row, Write
from fsm_provider.writes.outcomes import NotCreatedError

if TYPE_CHECKING:
    from fsm_provider.api.models import Webhook
    from fsm_provider.api.payloads import WebhookCreate
    from fsm_provider.api.retry import TimeLimit
    from fsm_provider.hooks.fsm import FsmHook

logger: logging.Logger = logging.getLogger(__name__)


class Registration:
    """A webhook registration.

    :param payload: one request; its target ends with ``***`` where a token of the receiver is to be.
    :raises FsmInputError: if its Variable holds anything else.
    """

    def __init__(self, hook: FsmHook, payload: WebhookCreate) -> None:
        self._hook = hook
        self._payload = payload
        watched, events = payload.object, sorted(payload.event_types)
        digest = digest_for([hook.settings.service, watched, events, payload.target_url], DIGITS)
        self.variable = f"{registrations_prefix(hook.fsm_conn_id, watched)}{digest}"
        self.write = Write(
            method="POST",
            path="/settings/webhooks",
            content=[watched, events, payload.target_url, payload.description],
            key=self.variable,
            key_is_given=True,
            kind="webhook",
            payload=self,
        )
        self._stored = self._read()

    @property
    def registered(self) -> dict[str, Any] | None:
        """The registration without its secret, None if the Variable holds none.

        :raises FsmInputError: if it was registered, but not as requested.
        """
        if problem := self._stored.get("problem"):
            raise FsmInputError(f"{problem}; then delete Variable {self.variable}")
        found: dict[str, Any] | None = self._stored.get("registration")
        return found

    def send(self, headers: Mapping[str, str], limit: TimeLimit) -> dict[str, Any]:
        """Register it once, and store its secret; return it without its secret.

        First it proves that its Variable can be written, which only who has claimed the write does: from then
        on the receiver accepts its token.

        :raises NotCreatedError: if it cannot: nothing was sent.
        """
        try:
            self._stored = self._read()
            if (registered := self.registered) is not None:  # by another task meanwhile
                return registered
            if self._payload.target_url.endswith(f"/{HIDDEN}") and "token" not in self._stored:
                self._stored["token"] = secrets.token_urlsafe(32)
                mask_secret(self._stored["token"])
            self._store()
        except FsmError:
            raise
        except Exception as error:  # noqa: BLE001 - its text may quote the value
            problem = type(error).__name__
            raise NotCreatedError(
                f"Variable {self.variable} could not be read or written ({problem}): nothing was sent"
            ) from None
        token = self._stored.get("token", HIDDEN)
        target_url = self._payload.target_url.removesuffix(HIDDEN) + token if "token" in self._stored else ""
        payload = self._payload.model_copy(update={"target_url": target_url}) if target_url else self._payload
        try:
            self._hook.client.register_webhook(
                payload, on_registered=self._keep, headers=headers, limit=limit
            )
        except FsmRegistrationMismatchError as error:
            self._stored["problem"] = str(error)
            self._store()
            raise
        registration: dict[str, Any] = self._stored["registration"]
        return registration

    def existing(self, row: Row) -> dict[str, Any]:
        """Return a registration that was made before: what its Variable holds by now, or else its row."""
        self._stored = self._read()
        if (registered := self.registered) is not None:
            return registered
        logger.warning(
            "Webhook %s was registered by %s; Variable %s, with its signing secret, is not in this Airflow",
            *(row.result_id, row.by, self.variable),
        )
        about = {"object": self._payload.object, "eventTypes": self._payload.event_types}
        return {"id": row.result_id, **about, "targetURL": self._payload.target_url}

    def _keep(self, webhook: Webhook) -> None:
        secret = webhook.signing_secret.get_secret_value() if webhook.signing_secret else ""
        mask_secret(secret)
        if not secret:
            logger.warning("The service returned no signing secret for webhook %s", webhook.id)
        hidden = [one for one in (secret, self._stored.get("token", "")) if one]
        self._stored |= {"registration": hide_in(webhook.as_json(), *hidden), "secret": secret}
        try:
            self._store()
        except Exception as error:  # noqa: BLE001 - its text may quote the value
            raise FsmSecretNotStoredError(
                f"webhook {webhook.id} was registered, but Variable {self.variable} with its signing secret "
                f"could not be written ({type(error).__name__}): delete the webhook in the service",
                webhook.id,
            ) from None
        logger.info("Registered webhook %s for %s", webhook.id, self._payload.event_types)

    def _read(self) -> dict[str, Any]:
        try:
            stored = json.loads(read_variable(self.variable) or "{}")
            for name in ("token", "secret"):
                if text := stored.get(name):
                    mask_secret(text)
        except (ValueError, AttributeError):
            raise FsmInputError(f"Variable {self.variable}: does not hold a registration") from None
        return dict(stored)

    def _store(self) -> None:
        self._stored["for"] = f"{self._hook.fsm_conn_id}/{self._payload.object}"
        self._stored["at"] = datetime.now(UTC).isoformat(timespec="seconds")
        write_variable(self.variable, json.dumps(self._stored))
