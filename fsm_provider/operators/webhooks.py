"""Operators that register webhooks."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import mask_secret

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import FsmError, FsmInputError, FsmNotSentError, FsmRegistrationError
from fsm_provider.api.validation import JsonObject
from fsm_provider.operators.base import bad_arguments_refused, is_literal
from fsm_provider.operators.writes import FsmWriteOperator
from fsm_provider.state.task import Task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.models import Webhook
    from fsm_provider.api.payloads import WebhookCreate
    from fsm_provider.api.request import ApiRequest, TimeLimit
    from fsm_provider.writes.attempt import WriteAttempt
    from fsm_provider.writes.runner import Sender

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
        "fsm_conn_id",
        "object",
        "event_types",
        "target_url",
        "description",
        "if_uncertain",
    )
    _registrar: Registrar

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
                # Any URL: that of the receiver is read later.
                self._webhook(target_url or "https://receiver.invalid")

    def perform(self, context: Context) -> list[JsonObject]:
        from fsm_provider.plugins.webhooks.settings import DIGEST_LENGTH, registrations_prefix

        webhook = self._webhook(self.target_url or self._receiver_url())
        task = Task.from_context(context, self.task_id)
        service = self.hook.settings.service
        prefix = registrations_prefix(self.fsm_conn_id, webhook.object)
        registered = {}
        variables = []
        missing = []
        for event_type in webhook.event_types:
            wanted = webhook.model_copy(update={"event_types": [event_type]})
            # Each Variable is named after what it is for.
            content = [service, wanted.object, wanted.event_types, wanted.target_url]
            variable = f"{prefix}{digest_for(content, DIGEST_LENGTH)}"
            variables.append(variable)
            registration = read_registration(variable).get("registration")
            if registration:
                registered[variable] = registration
                self.log.info("Registered before: Variable %s", variable)
            else:
                missing.append(Registration(wanted, variable, wanted.request()))
        if missing:
            made = self._register(context, task, missing)
            for new, result in zip(missing, made, strict=True):
                registered[new.variable] = result
        return [registered[variable] for variable in variables]

    def _register(
        self, context: Context, task: Task, registrations: list[Registration]
    ) -> list[JsonObject]:
        """Register what no Variable has; return the registrations."""
        from fsm_provider.writes.attempt import WriteAttempt
        from fsm_provider.writes.ledger import new_entry

        settings = self.hook.settings
        # A database keeps each key, the name of a Variable, for all runs and DAGs, too.
        self.once_per = "run" if settings.state_conn_id is None else "key"
        endpoint = f"{self.fsm_conn_id}/{self.object}"
        self._registrar = Registrar(self.hook.client, endpoint, registrations)
        writes = []
        for registration in registrations:
            request = registration.request
            key = registration.variable
            intended = new_entry(task, settings.service, request, key, "webhook")
            writes.append(WriteAttempt(request, intended, key_is_given=True))
        return self.write_once(context, task, writes)

    def sender(self) -> Sender:
        return self._registrar

    def existing_result(self, write: WriteAttempt) -> JsonObject:
        """Return a registration that was made before: of its Variable, or else of its entry."""
        entry = write.entry
        registration = read_registration(entry.key).get("registration")
        if registration:
            return dict(registration)
        logger.warning(
            "Webhook %s was registered by %s; Variable %s, with its signing secret, is not in this "
            "Airflow",
            entry.result_id,
            entry.sent_by,
            entry.key,
        )
        webhook = self._registrar.registrations[write.request].webhook
        return {"id": entry.result_id, **webhook.subject, "targetURL": webhook.target_url}

    def _webhook(self, target_url: str) -> WebhookCreate:
        from fsm_provider.api.payloads import WebhookCreate, parse_payload

        given = {
            "object": self.object,
            "event_types": self.event_types,
            "description": self.description,
            "target_url": target_url,
        }
        return parse_payload(WebhookCreate, given, "webhook")

    def _receiver_url(self) -> str:
        """Return the URL of our own receiver, without its token."""
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


@dataclass(frozen=True)
class Registration:
    """One event type of a webhook, to be registered.

    :param webhook: in its ``target_url``, ``HIDDEN`` stands for the path token of our receiver.
    :param variable: the Airflow Variable that holds its token, signing secret and record.
    :param request: its request with the token hidden, which the ledger's digest is of.
    """

    webhook: WebhookCreate
    variable: str
    request: ApiRequest


class Registrar:
    """Sends registrations for the runner, in its threads, and keeps their secrets in Variables.

    The ledger knows a registration by a request whose path token is hidden, so that no token
    stands there, not even in a digest. :meth:`send` is given that request. It first writes the
    Variable, which proves that it can be written; for our own receiver, it then holds the token,
    which the receiver accepts from then on. It sends the request, with the token if there is one;
    then it stores the signing secret, which the service shows once.

    :param endpoint: ``<connection>/<object>``, for whoever looks at the Variable.
    :ivar registrations: by their requests.
    """

    def __init__(
        self, client: FsmClient, endpoint: str, registrations: Iterable[Registration]
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self.registrations: dict[ApiRequest, Registration] = {
            registration.request: registration for registration in registrations
        }

    def send(
        self, request: ApiRequest, *, headers: Mapping[str, str], limit: TimeLimit
    ) -> JsonObject:
        """Register a webhook, and store its secret; return the webhook's record without it."""
        registration = self.registrations[request]
        variable = registration.variable
        try:
            stored = read_registration(variable)
            if "registration" in stored:  # by another task meanwhile
                return dict(stored["registration"])
            sent = self._with_token(registration.webhook, stored)
            self._store(variable, stored)  # also proves that it can be written
        except FsmError:
            raise
        except Exception as error:  # noqa: BLE001 - its text may quote the value
            raise FsmNotSentError(
                f"Variable {variable} could not be read or written ({type(error).__name__}): "
                "nothing was sent"
            ) from None
        webhook: Webhook = self._client.send(sent.request(), headers=headers, limit=limit)
        return self._store_secret(registration, webhook, stored)

    def _with_token(self, webhook: WebhookCreate, stored: JsonObject) -> WebhookCreate:
        """Return a webhook of our receiver with its token, which is put into ``stored`` if new."""
        from fsm_provider.plugins.webhooks.settings import HIDDEN

        if not webhook.target_url.endswith(f"/{HIDDEN}"):
            return webhook
        if "token" not in stored:
            stored["token"] = secrets.token_urlsafe(32)
        mask_secret(stored["token"])
        target_url = webhook.target_url.removesuffix(HIDDEN) + stored["token"]
        return webhook.model_copy(update={"target_url": target_url})

    def _store_secret(
        self, registration: Registration, webhook: Webhook, stored: JsonObject
    ) -> JsonObject:
        """Store the signing secret of a webhook with its record; return the record."""
        from fsm_provider.api.redaction import hide_in

        variable = registration.variable
        secret = webhook.signing_secret.get_secret_value() if webhook.signing_secret else ""
        mask_secret(secret)
        if not secret:
            logger.warning("The service returned no signing secret for webhook %s", webhook.id)
        hidden = [text for text in (secret, stored.get("token")) if text]
        record = hide_in(webhook.as_json(), *hidden)
        try:
            self._store(variable, {**stored, "registration": record, "secret": secret})
        except Exception as error:  # noqa: BLE001 - its text may quote the value
            raise FsmRegistrationError(
                f"webhook {webhook.id} was registered, but Variable {variable} with its signing "
                f"secret could not be written ({type(error).__name__}): delete the webhook in the "
                "service",
                webhook.id,
            ) from None
        events = ", ".join(registration.webhook.event_types)
        logger.info("Registered webhook %s for %s", webhook.id, events)
        return dict(record)

    def _store(self, variable: str, stored: JsonObject) -> None:
        from fsm_provider.state.variables import write_variable

        at = datetime.now(UTC).isoformat(timespec="seconds")
        write_variable(variable, json.dumps({**stored, "for": self._endpoint, "at": at}))


def read_registration(variable: str) -> JsonObject:
    """Return what the Variable of a registration holds; its secrets are masked."""
    from fsm_provider.state.variables import read_variable

    try:
        stored: JsonObject = json.loads(read_variable(variable) or "{}")
        for name in ("token", "secret"):
            if stored.get(name):
                mask_secret(stored[name])
    except (ValueError, AttributeError):
        raise FsmInputError(f"Variable {variable}: does not hold a registration") from None
    return stored
