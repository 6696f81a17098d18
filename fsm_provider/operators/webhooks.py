"""Operators that register webhooks."""

from __future__ import annotations

import json
import logging
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import mask_secret

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import FsmError, FsmInputError, FsmNotSentError, FsmRegistrationError
from fsm_provider.operators.base import bad_arguments_refused, is_literal
from fsm_provider.operators.writes import FsmWriteOperator
from fsm_provider.state.task import Task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.payloads import WebhookCreate
    from fsm_provider.api.request import TimeLimit
    from fsm_provider.writes.ledger import WriteAttempt

logger: logging.Logger = logging.getLogger(__name__)


class FsmRegisterWebhookOperator(FsmWriteOperator):
    """Register a webhook once, and store its signing secret.

    Its id and its signing secret, which goes nowhere else, are kept in an Airflow Variable named
    after connection, object, event types and target, where other runs and DAGs find it. With
    ``state_conn_id``, concurrent tasks and other Airflows with that database register once, too. At
    DEBUG, Airflow 3.3 logs every Variable that a task sets: register at INFO.

    :param object: one of properties, assets, contracts, opportunities, jobs, appointments
        (templated).
    :param event_types: ``<object>.<event>`` each, all of ``object`` (templated).
    :param target_url: the http(s) URL that receives the notifications (templated). Default: the URL
        of the receiver in Airflow's API server, with a fresh token in its path, which is never
        shown.
    :param description: free text (templated).
    :param if_uncertain: what to do if nobody knows whether the webhook is registered: ``fail``, or
        ``create`` it, at the risk of two (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the registrations, one per event type, under the service's own names, without their
        secrets.
    """

    template_fields: tuple[str, ...] = (
        *("fsm_conn_id", "object", "event_types", "target_url", "description", "if_uncertain"),
    )

    def __init__(
        self,
        *,
        object: str,
        event_types: str | list[str],
        target_url: str | None = None,
        description: str | None = None,
        if_uncertain: Literal["fail", "create"] | str = "fail",
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(if_uncertain=if_uncertain, fsm_conn_id=fsm_conn_id, **kwargs)
        self.object = object
        self.event_types = event_types
        self.target_url = target_url
        self.description = description
        with bad_arguments_refused():
            self.options(literals_only=True)
            if is_literal([object, event_types, target_url, description]):
                self._payload(target_url or "https://receiver.invalid")

    def perform(self, context: Context) -> list[dict[str, Any]]:
        webhook = self._payload(self.target_url or self._receiver_url())
        task = Task.from_context(context, self.task_id)
        each = [webhook.model_copy(update={"event_types": [one]}) for one in webhook.event_types]
        planned = [self._plan(task, one) for one in each]
        registered = {
            one.planned.key: _read(one.planned.key).get("registration", {}) for one in planned
        }
        missing = {one.planned.key: one for one in planned if not registered[one.planned.key]}
        for name in registered.keys() - missing.keys():
            self.log.info("Registered before: Variable %s", name)
        if missing:
            self.once_per = "run" if self.hook.settings.state_conn_id is None else "key"
            made = self.write_once(context, task, missing.values())
            registered |= zip(missing, made, strict=True)
        return [*map(dict, registered.values())]

    def _plan(self, task: Task, payload: WebhookCreate) -> WriteAttempt:
        """Return the write that makes one registration; its key is the name of its Variable."""
        from fsm_provider.plugins.webhooks.settings import DIGEST_LENGTH, registrations_prefix
        from fsm_provider.writes.ledger import WriteAttempt, planned

        service = self.hook.settings.service
        content: list[Any] = [payload.object, sorted(payload.event_types), payload.target_url]
        prefix = registrations_prefix(self.fsm_conn_id, payload.object)
        variable = f"{prefix}{digest_for([service, *content], DIGEST_LENGTH)}"
        content.append(payload.description)
        row = planned(task, service, "POST /settings/webhooks", content, variable, "webhook")
        return WriteAttempt(row, True, payload)

    def send_write(
        self, write: WriteAttempt, headers: dict[str, str], limit: TimeLimit
    ) -> dict[str, Any]:
        """Register it, and store its secret; return it without."""
        from fsm_provider.api.redaction import hide_in
        from fsm_provider.plugins.webhooks.settings import HIDDEN

        payload: WebhookCreate = write.payload
        variable, target_url = write.row.key, payload.target_url
        try:
            stored = _read(variable)
            if "registration" in stored:  # by another task meanwhile
                return dict(stored["registration"])
            if target_url.endswith(f"/{HIDDEN}"):
                token = stored.setdefault("token", secrets.token_urlsafe(32))
                mask_secret(token)
                target_url = target_url.removesuffix(HIDDEN) + token
            self._store(variable, stored)  # from now on the receiver accepts the token
        except FsmError:
            raise
        except Exception as error:  # noqa: BLE001 - its text may quote the value
            problem = type(error).__name__
            text = f"Variable {variable} could not be read or written ({problem}): nothing was sent"
            raise FsmNotSentError(text) from None
        sent = payload.model_copy(update={"target_url": target_url})
        webhook = self.hook.client.register_webhook(sent, headers=headers, limit=limit)
        secret = webhook.signing_secret.get_secret_value() if webhook.signing_secret else ""
        mask_secret(secret)
        if not secret:
            logger.warning("The service returned no signing secret for webhook %s", webhook.id)
        registration = hide_in(webhook.as_json(), *filter(None, (secret, stored.get("token"))))
        try:
            self._store(variable, {**stored, "registration": registration, "secret": secret})
        except Exception as error:  # noqa: BLE001 - its text may quote the value
            raise FsmRegistrationError(
                f"webhook {webhook.id} was registered, but Variable {variable} with its signing "
                f"secret could not be written ({type(error).__name__}): delete the webhook in the "
                "service",
                webhook.id,
            ) from None
        logger.info("Registered webhook %s for %s", webhook.id, ", ".join(payload.event_types))
        return dict(registration)

    def existing_result(self, write: WriteAttempt) -> dict[str, Any]:
        """Return a registration that was made before: what its Variable holds by now, or else its
        row.
        """
        row, payload = write.row, write.payload
        if registration := _read(row.key).get("registration"):
            return dict(registration)
        logger.warning(
            "Webhook %s was registered by %s; Variable %s, with its signing secret, is not in this Airflow",
            *(row.result_id, row.by, row.key),
        )
        return {"id": row.result_id, **payload.subject, "targetURL": payload.target_url}

    def _store(self, variable: str, stored: dict[str, Any]) -> None:
        from fsm_provider.state.variables import write_variable

        at = datetime.now(UTC).isoformat(timespec="seconds")
        write_variable(
            variable, json.dumps({**stored, "for": f"{self.fsm_conn_id}/{self.object}", "at": at})
        )

    def _payload(self, target_url: str) -> WebhookCreate:
        from fsm_provider.api.payloads import WebhookCreate, check

        given = {name: getattr(self, name) for name in ("object", "event_types", "description")}
        return check(WebhookCreate, {**given, "target_url": target_url}, "webhook")

    def _receiver_url(self) -> str:
        from fsm_provider.plugins.webhooks import settings as receiver
        from fsm_provider.state.variables import read_variable

        configuration = read_variable(receiver.SETTINGS_VARIABLE)
        settings = None if configuration is None else receiver.ReceiverSettings.parse(configuration)
        endpoint = f"{self.fsm_conn_id}/{self.object}"
        if settings is None or settings.base_url is None or endpoint not in settings.endpoints:
            raise FsmInputError(
                f"target_url: is missing, and no Variable {receiver.SETTINGS_VARIABLE} has a "
                f"base_url and an endpoint '{endpoint}'"
            )
        return receiver.receiver_url(
            settings.base_url, self.fsm_conn_id, self.object, receiver.HIDDEN
        )


def _read(variable: str) -> dict[str, Any]:
    """Return what the Variable of a registration holds; its secrets are masked."""
    from fsm_provider.state.variables import read_variable

    try:
        stored: dict[str, Any] = json.loads(read_variable(variable) or "{}")
        for text in filter(None, map(stored.get, ("token", "secret"))):
            mask_secret(text)
    except (ValueError, AttributeError):
        raise FsmInputError(f"Variable {variable}: does not hold a registration") from None
    return stored
