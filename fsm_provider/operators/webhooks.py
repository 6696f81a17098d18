"""Operators that register webhooks."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Variable, mask_secret

from fsm_provider.compat import read_variable
from fsm_provider.ledger import Ledger, Write
from fsm_provider.operators.base import (
    FsmBaseOperator,
    bad_arguments_are_refused,
    is_known,
    permanent_errors_fail_the_task,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.drafts import EventTypesStyle, WebhookCreate
    from fsm_provider.api.models import Webhook


class FsmRegisterWebhookOperator(FsmBaseOperator):
    """Register a webhook (4.4), and keep its signing secret in an Airflow Variable.

    The Variable is written before anything is registered, which proves that it can be: the service
    may show a secret only once. It maps each registration's id to its secret, as JSON; the secret
    goes nowhere else. Airflow 3.3 itself logs at DEBUG, on the worker, every Variable that a task
    sets: register at INFO. How several event types are passed is the connection's
    ``event_types_style``.

    A retry, or the task when it is cleared, registers nothing that an earlier try has registered (Airflow
    3.3 and newer). Another run registers anew: the service shows no way to look a registration up, or to
    delete it.

    :param object: one of properties, assets, contracts, opportunities, jobs, appointments (templated).
    :param event_types: ``<object>.<event>`` each, all of ``object`` (templated).
    :param target_url: the http(s) address that will receive the notifications (templated).
    :param description: free text (templated).
    :param secret_variable: name of the Variable; Airflow hides its value where the name contains
        ``secret``. Default: ``fsm_webhook_secrets_<connection>_<object>`` (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the registrations under the service's own names (2.4), without their secrets: one for
        each event type with the style ``separate``, else one.
    """

    template_fields = (
        "fsm_conn_id",
        "object",
        "event_types",
        "target_url",
        "description",
        "secret_variable",
    )

    def __init__(
        self,
        *,
        object: str,
        event_types: str | list[str],
        target_url: str,
        description: str | None = None,
        secret_variable: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.object = object
        self.event_types = event_types
        self.target_url = target_url
        self.description = description
        self.secret_variable = secret_variable
        if is_known(list(self._webhook().values())):
            with bad_arguments_are_refused():
                self._check()

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Register the webhook and keep its secret."""
        with permanent_errors_fail_the_task():
            webhook = self._check()
            sink = self.secret_variable or f"fsm_webhook_secrets_{self.fsm_conn_id}_{self.object}"
            secrets = json.loads(read_variable(sink) or "{}")
            Variable.set(sink, json.dumps(secrets))

            def keep_secret(webhook: Webhook) -> None:
                self.log.info("Registered webhook %s for %s", webhook.id, webhook.event_types)
                if webhook.signing_secret is None:
                    self.log.warning("Webhook %s came without a signing secret", webhook.id)
                    return
                secret = webhook.signing_secret.get_secret_value()
                mask_secret(secret)
                secrets[str(webhook.id)] = secret
                Variable.set(sink, json.dumps(secrets))

            def register(part: WebhookCreate) -> dict[str, Any]:
                (registration,) = self.hook.register_webhook(part, on_registered=keep_secret)
                return registration.as_json()

            style = self.hook.client.settings.event_types_style
            parts = [(_write_of(part, style), part) for part in webhook.requests(style)]
            with Ledger.of(context) as ledger:
                ledger.expect(write for write, _ in parts)
                return [ledger.once(write, partial(register, part)) for write, part in parts]

    def _webhook(self) -> dict[str, Any]:
        return {
            "object": self.object,
            "event_types": self.event_types,
            "target_url": self.target_url,
            "description": self.description,
        }

    def _check(self) -> WebhookCreate:
        from fsm_provider.api.drafts import WebhookCreate, check

        return check(WebhookCreate, self._webhook(), "webhook")


def _write_of(part: WebhookCreate, style: EventTypesStyle) -> Write:
    from fsm_provider.api.endpoints import REGISTER_WEBHOOK

    return Write(REGISTER_WEBHOOK.method, REGISTER_WEBHOOK.path, part.query(style), part.subject)
