"""Register one webhook once: what is saved of it in Variables, and what the ledger knows, agree."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import mask_secret

from fsm_provider.api.endpoints import REGISTER_WEBHOOK
from fsm_provider.api.errors import (
    FsmError,
    FsmSecretNotStoredError,
    FsmUncertainWriteError,
    error_from_dict,
)
from fsm_provider.links.webhooks import HIDDEN
from fsm_provider.metrics import counted_write
from fsm_provider.plugins.webhooks.names import tokens_variable
from fsm_provider.writes.ledger import Ledger, NothingSentError
from fsm_provider.writes.registrations import PathTokens, Registration, Registrations, variable_name
from fsm_provider.writes.secret_stores import SecretStoreError
from fsm_provider.writes.write import Write, uncertain_now

if TYPE_CHECKING:
    from fsm_provider.api.models import Webhook
    from fsm_provider.api.payloads import EventTypesStyle, WebhookCreate
    from fsm_provider.hooks.fsm import FsmHook
    from fsm_provider.writes.secret_stores import SecretStore

logger: logging.Logger = logging.getLogger(__name__)


class PendingWebhook:
    """A registration that a task is to make, unless it is saved.

    :param payload: one request.
    :param registrations: what is saved.
    :param needs_token: whether its target is the receiver, whose URL gets a token.
    :param force: register even if it is saved.
    """

    def __init__(
        self,
        hook: FsmHook,
        payload: WebhookCreate,
        style: EventTypesStyle,
        registrations: Registrations,
        *,
        needs_token: bool,
        force: bool,
    ) -> None:
        self._hook = hook
        self._payload = payload
        self._registrations = registrations
        self._force = force
        self.name = variable_name(hook.fsm_conn_id, payload.object, payload.event_types, payload.target_url)
        # The receiver's URL has no token yet: it is created when it is needed.
        self.write = Write(
            REGISTER_WEBHOOK.method, REGISTER_WEBHOOK.path, payload.query(style), payload.subject, self.name
        )
        self._tokens: PathTokens | None = None
        if needs_token:
            self._tokens = PathTokens(tokens_variable(hook.fsm_conn_id, payload.object))
        self._known = registrations.get(self.name)

    @property
    def saved(self) -> dict[str, Any] | None:
        """The registration, if it is saved."""
        return self._known.result if self._known else None

    def log_saved(self) -> None:
        """Log when and by whom the saved registration was made."""
        if self._known and self._known.result:
            logger.info(
                "Webhook %s for %s was registered at %s by %s: Variable %s",
                *(self._known.result.get("id"), self._payload.event_types),
                *(self._known.at, self._known.by, self.name),
            )

    def run(
        self, ledger: Ledger, secrets: SecretStore, *, if_uncertain: str, is_shared: bool, is_retry: bool
    ) -> dict[str, Any]:
        """Register it, and return the registration; or return the saved one.

        :param secrets: gets the signing secret.
        :param if_uncertain: ``fail`` if it may be registered already, or ``create``.
        :param is_shared: whether the ledger is in a database.
        :param is_retry: whether the task has had an attempt before, or was cleared.
        """
        known = self._known = self._registrations.get(self.name)
        ledger.load([self.write])  # after the Variable, which others write later
        if known and not self._force:
            if known.result is not None:
                if is_shared:
                    self._record_saved(ledger, known)
                self.log_saved()
                return known.result
            # The ledger knows more of what this task has registered itself, or any that shares it. In its
            # first attempt it has registered nothing: the run was deleted and triggered again.
            is_own = is_retry and known.by == self._registrations.holder
            in_ledger = is_shared and ledger.get(self.write) is not None
            if known.error and if_uncertain == "fail" and not is_own and not in_ledger:
                raise error_from_dict(known.error)
        with counted_write(self._hook.metrics) as created:
            result: dict[str, Any] = ledger.run_once(
                self.write,
                lambda: created(self._register(secrets, ledger.headers())),
                prepare=secrets.check,
            )
        if self._known is None or self._known.result != result:
            self._registrations.save(self.name, result=result)
        return result

    def _record_saved(self, ledger: Ledger, known: Registration) -> None:
        """Record the saved registration in the ledger if it is missing there, or its outcome is.

        It is missing if it was saved before ``state_conn_id`` was set; its outcome, if the database was away
        after the request.
        """
        recorded = ledger.get(self.write)
        if recorded is None or (
            isinstance(recorded.error, FsmUncertainWriteError)
            and not recorded.under_way
            and recorded.by == known.by
            and recorded.error.attempted_at <= known.at
        ):
            ledger.record(self.write, known.result)

    def _register(self, secrets: SecretStore, headers: Mapping[str, str]) -> dict[str, Any]:
        before = self._known
        payload, token = self._payload, None
        try:
            if self._tokens is not None:
                token = self._tokens.token_for(self.name, fresh=self._force)
                target_url = payload.target_url.removesuffix(HIDDEN) + token
                payload = payload.model_copy(update={"target_url": target_url})
            reason = f"{self._registrations.holder} has not recorded a response"
            self._registrations.save(self.name, error=uncertain_now(self.write, reason))
        except FsmError:
            raise
        except Exception as error:
            raise NothingSentError(f"Nothing was registered: {error}") from error
        try:
            (webhook,) = self._hook.register_webhook(
                payload, on_registered=partial(self._store_secret, secrets), headers=headers
            )
        except FsmError as error:
            if error.may_have_written:
                self._registrations.save(self.name, error=error)
            else:
                self._registrations.restore(self.name, before)
            raise
        result: dict[str, Any] = webhook.as_json()
        if self._tokens is not None and token is not None:
            result = json.loads(json.dumps(result).replace(token, HIDDEN))
        self._registrations.save(self.name, result=result)
        self._known = self._registrations.get(self.name)
        if self._tokens is not None and token is not None:
            self._tokens.activate(self.name, token)
        return result

    def _store_secret(self, secrets: SecretStore, webhook: Webhook) -> None:
        logger.info("Registered webhook %s for %s", webhook.id, webhook.event_types)
        if webhook.signing_secret is None:
            logger.warning("The service returned no signing secret for webhook %s", webhook.id)
            return
        secret = webhook.signing_secret.get_secret_value()
        mask_secret(secret)
        try:
            secrets.put(str(webhook.id), secret)
        except SecretStoreError as error:
            raise FsmSecretNotStoredError(
                f"webhook {webhook.id} was registered, but its signing secret could not be stored: {error}. "
                "Delete the webhook in the service, then register again with force=True",
                webhook.id,
            ) from None
