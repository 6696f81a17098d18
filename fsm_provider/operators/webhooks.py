"""Operators that register webhooks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import mask_secret

from fsm_provider.api.errors import FsmError, FsmInputError, FsmSecretLostError, FsmUncertainWriteError
from fsm_provider.api.inputs import read_choice, read_flag
from fsm_provider.compat import read_variable
from fsm_provider.ledger import Ledger, NothingSentError, Write
from fsm_provider.links.webhooks import HIDDEN, FsmWebhookLink
from fsm_provider.operators.base import (
    FsmWriteOperator,
    Readers,
    bad_arguments_are_refused,
    is_known,
    permanent_errors_fail_the_task,
)
from fsm_provider.sinks import FunctionSink, SinkError, VariableSink

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.drafts import EventTypesStyle, WebhookCreate
    from fsm_provider.api.models import Webhook
    from fsm_provider.registrations import PathTokens, Registrations
    from fsm_provider.sinks import SecretSink


class FsmRegisterWebhookOperator(FsmWriteOperator):
    """Register a webhook (4.4) once, and keep its signing secret.

    The sink for the secret is written before anything is registered, which proves that it can be: the
    service may show a secret only once. The secret goes nowhere else. Airflow 3.3 itself logs at DEBUG, on
    the worker, every Variable that a task sets: register at INFO.

    A registration is remembered in an Airflow Variable named by connection, object, event types and target.
    A second run, a retry, the task when it is cleared, or another DAG finds it and registers nothing; one
    that finds that its outcome is unknown fails, without a retry. Tasks at the same moment wait for each
    other (Airflow 3.3 and newer). How several event types are passed is the connection's
    ``event_types_style``.

    :param object: one of properties, assets, contracts, opportunities, jobs, appointments (templated).
    :param event_types: ``<object>.<event>`` each, all of ``object`` (templated).
    :param target_url: the http(s) address that will receive the notifications (templated). Left out, it is
        that of the receiver in Airflow's API server, with a fresh token in its path, which is shown to
        nobody: see ``docs/webhooks.md``.
    :param description: free text (templated).
    :param secret_variable: name of the Variable that maps each registration's id to its secret, as JSON;
        Airflow hides its value where the name contains ``secret``. Default:
        ``fsm_webhook_secrets_<connection>_<object>`` (templated).
    :param secret_sink: ``package.module.function`` that keeps the secret instead, called as
        ``function("<connection>/<object>/<id>", secret)``, and once before with ``probe`` for the id and an
        empty secret (templated).
    :param force: register anew whatever is remembered, and remember that instead (templated). The old
        registration stays in the service: delete it there. A retry registers nothing that an earlier try
        has registered.
    :param if_uncertain: what to do where nobody knows whether the webhook is registered: ``fail``, or
        ``create`` it, at the risk of two (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the registrations under the service's own names (2.4), without their secrets: one for
        each event type with the style ``separate``, else one.
    """

    template_fields: tuple[str, ...] = (
        *("fsm_conn_id", "object", "event_types", "target_url", "description"),
        *("secret_variable", "secret_sink", "force", "if_uncertain"),
    )
    readers: ClassVar[Readers] = {
        "force": read_flag,
        "if_uncertain": partial(read_choice, choices=("fail", "create")),
    }
    operator_extra_links: tuple[BaseOperatorLink, ...] = (FsmWebhookLink(),)

    def __init__(
        self,
        *,
        object: str,
        event_types: str | list[str],
        target_url: str | None = None,
        description: str | None = None,
        secret_variable: str | None = None,
        secret_sink: str | None = None,
        force: bool | str = False,
        if_uncertain: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.object = object
        self.event_types = event_types
        self.target_url = target_url
        self.description = description
        self.secret_variable = secret_variable
        self.secret_sink = secret_sink
        self.force = force
        self.if_uncertain = if_uncertain
        with bad_arguments_are_refused():
            self.options(only_known=True)
            if secret_variable is not None and secret_sink is not None:
                raise FsmInputError("secret_sink: is given beside secret_variable")
            if is_known([object, event_types, target_url, description]):
                self._draft(target_url or "https://receiver.invalid")

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Register what is not registered yet."""
        from fsm_provider.registrations import Holder, Registrations

        with permanent_errors_fail_the_task():
            options = self.options()
            webhook = self._draft(self.target_url or self._own_address())
            registrations = Registrations(self.fsm_conn_id, Holder.of(context))
            style = self.hook.client.settings.event_types_style
            parts = [
                _Part(self, part, style, registrations, force=options["force"])
                for part in webhook.requests(style)
            ]
            if not options["force"] and all(part.is_remembered() for part in parts):
                registrations.tidy()
                return [part.remembered() for part in parts]
            with (
                registrations.alone(),
                Ledger.of(
                    context,
                    repeat_uncertain=options["if_uncertain"] == "create",
                    repeat_made=options["force"],
                ) as ledger,
            ):
                ledger.expect(part.write for part in parts)
                sink = self._sink()
                sink.prove()
                return [part.once(ledger, sink, if_uncertain=options["if_uncertain"]) for part in parts]

    def _draft(self, target_url: str) -> WebhookCreate:
        from fsm_provider.api.drafts import WebhookCreate, check

        given = {
            "object": self.object,
            "event_types": self.event_types,
            "target_url": target_url,
            "description": self.description,
        }
        return check(WebhookCreate, given, "webhook")

    def _own_address(self) -> str:
        from fsm_provider.plugins.webhooks import settings as receiver

        configuration = read_variable(receiver.CONFIGURATION)
        if configuration is None:
            raise FsmInputError(
                f"target_url: is left out, and there is no Variable {receiver.CONFIGURATION} that configures "
                "the receiver"
            )
        settings = receiver.ReceiverSettings.parse(configuration)
        if settings.base_url is None:
            raise FsmInputError(
                f"target_url: is left out, and Variable {receiver.CONFIGURATION} has no base_url"
            )
        endpoint = f"{self.fsm_conn_id}/{self.object}"
        if endpoint not in settings.endpoints:
            raise FsmInputError(
                f"target_url: is left out, and Variable {receiver.CONFIGURATION} has no endpoint '{endpoint}'"
            )
        return receiver.address(settings.base_url, self.fsm_conn_id, self.object, HIDDEN)

    def _sink(self) -> SecretSink:
        from fsm_provider.plugins.webhooks.settings import secrets_variable

        if self.secret_sink is not None:
            return FunctionSink(self.secret_sink, f"{self.fsm_conn_id}/{self.object}")
        return VariableSink(self.secret_variable or secrets_variable(self.fsm_conn_id, self.object))


class _Part:
    """One registration of a task, which may make several."""

    def __init__(
        self,
        operator: FsmRegisterWebhookOperator,
        draft: WebhookCreate,
        style: EventTypesStyle,
        registrations: Registrations,
        *,
        force: bool,
    ) -> None:
        from fsm_provider.api.endpoints import REGISTER_WEBHOOK
        from fsm_provider.plugins.webhooks.settings import tokens_variable
        from fsm_provider.registrations import PathTokens, name_of

        self._operator = operator
        self._draft = draft
        self._registrations = registrations
        self._force = force
        self.name = name_of(operator.fsm_conn_id, draft.object, draft.event_types, draft.target_url)
        # Of the receiver's own address the token is not known before it is needed.
        self.write = Write(
            REGISTER_WEBHOOK.method, REGISTER_WEBHOOK.path, draft.query(style), draft.subject, self.name
        )
        self._tokens: PathTokens | None = None
        if operator.target_url is None:
            self._tokens = PathTokens(tokens_variable(operator.fsm_conn_id, draft.object))
        self._known = registrations.known(self.name)

    def is_remembered(self) -> bool:
        return self._known is not None and self._known.result is not None

    def remembered(self) -> dict[str, Any]:
        if self._known is None or self._known.result is None:
            raise LookupError(self.name)
        self._operator.log.info(
            "Webhook %s for %s was registered at %s by %s: Variable %s",
            *(self._known.result.get("id"), self._draft.event_types),
            *(self._known.at, self._known.by, self.name),
        )
        return self._known.result

    def once(self, ledger: Ledger, sink: SecretSink, *, if_uncertain: str) -> dict[str, Any]:
        from fsm_provider.registrations import uncertainty

        self._known = self._registrations.known(self.name)
        if not self._force and self.is_remembered():
            return self.remembered()
        unknown = self._known if self._known is not None and self._known.result is None else None
        if unknown and not self._force and if_uncertain == "fail":
            ledger_knows_more = ledger.keeps and self._registrations.is_ours(unknown)
            if not ledger_knows_more:
                raise uncertainty(unknown)
        result: dict[str, Any] = ledger.once(self.write, lambda: self._register(sink))
        if self._known is None or self._known.result != result:
            self._registrations.remember(self.name, result=result)
        return result

    def _register(self, sink: SecretSink) -> dict[str, Any]:
        before = self._known
        draft, token = self._draft, None
        try:
            if self._tokens is not None:
                token = self._tokens.token_for(self.name, anew=self._force)
                draft = draft.model_copy(update={"target_url": draft.target_url.removesuffix(HIDDEN) + token})
            self._registrations.remember(self.name, error=self._intent())
        except FsmError:
            raise
        except Exception as error:
            raise NothingSentError(f"Nothing was registered: {error}") from error
        try:
            (webhook,) = self._operator.hook.register_webhook(
                draft, on_registered=partial(self._keep_secret, sink)
            )
        except FsmError as error:
            if error.may_have_written:
                self._registrations.remember(self.name, error=error)
            else:
                self._registrations.restore(self.name, before)
            raise
        result: dict[str, Any] = webhook.as_json()
        if self._tokens is not None and token is not None:
            result = json.loads(json.dumps(result).replace(token, HIDDEN))
        self._registrations.remember(self.name, result=result)
        self._known = self._registrations.known(self.name)
        if self._tokens is not None and token is not None:
            self._tokens.settle(self.name, token)
        return result

    def _intent(self) -> FsmError:
        return FsmUncertainWriteError(
            self.write.method,
            self.write.path,
            f"{self._registrations.holder} has not recorded an answer",
            datetime.now(UTC).isoformat(timespec="seconds"),
            self.write.subject,
        )

    def _keep_secret(self, sink: SecretSink, webhook: Webhook) -> None:
        self._operator.log.info("Registered webhook %s for %s", webhook.id, webhook.event_types)
        if webhook.signing_secret is None:
            self._operator.log.warning("Webhook %s came without a signing secret", webhook.id)
            return
        secret = webhook.signing_secret.get_secret_value()
        mask_secret(secret)
        try:
            sink.keep(str(webhook.id), secret)
        except SinkError as error:
            raise FsmSecretLostError(
                f"webhook {webhook.id} was registered, but its signing secret could not be kept: {error}. "
                "Delete it in the service, then register anew with force=True",
                webhook.id,
            ) from None
