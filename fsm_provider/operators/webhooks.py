"""Operators that register webhooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import mask_secret

from fsm_provider.api.errors import FsmError, FsmInputError, FsmSecretNotStoredError, FsmUncertainWriteError
from fsm_provider.api.metrics import counted_write
from fsm_provider.api.validation import parse_choice, parse_flag
from fsm_provider.links.webhooks import HIDDEN, FsmWebhookLink
from fsm_provider.operators.base import (
    FsmOptionsOperator,
    OptionParsers,
    bad_arguments_are_refused,
    is_known,
    permanent_errors_fail_the_task,
)
from fsm_provider.state.variables import read_variable
from fsm_provider.writes.ledger import Ledger, NothingSentError
from fsm_provider.writes.ledgers import open_ledger
from fsm_provider.writes.secret_stores import FunctionSecretStore, SecretStoreError, VariableSecretStore
from fsm_provider.writes.write import Write

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.models import Webhook
    from fsm_provider.api.payloads import EventTypesStyle, WebhookCreate
    from fsm_provider.writes.registrations import PathTokens, Registrations
    from fsm_provider.writes.secret_stores import SecretStore


class FsmRegisterWebhookOperator(FsmOptionsOperator):
    """Register a webhook once, and store its signing secret.

    The service may show a secret only once. So the operator first checks that it can write to the secret
    store; the secret goes nowhere else. Airflow 3.3 itself logs every Variable that a task sets, at DEBUG on
    the worker: register at INFO.

    A registration is saved in an Airflow Variable whose name comes from connection, object, event types and
    target. Another run, a retry, a cleared task or another DAG finds it and registers nothing; if its outcome
    is unknown, they fail without a retry. Concurrent tasks wait for each other (Airflow 3.3 and newer).

    If the connection has ``state_conn_id``, the registration is also an entry of the ledger in that database,
    under the Variable's name. Then concurrent tasks wait for each other on every version of Airflow, and
    another Airflow with the same database finds it too.

    The connection's ``event_types_style`` selects how several event types are sent.

    :param object: one of properties, assets, contracts, opportunities, jobs, appointments (templated).
    :param event_types: ``<object>.<event>`` each, all of ``object`` (templated).
    :param target_url: the http(s) URL that receives the notifications (templated). Default: the URL of the
        receiver in Airflow's API server, with a fresh token in its path, which is never shown: see
        ``docs/webhooks.md``.
    :param description: free text (templated).
    :param secret_variable: name of the Variable that maps ``<connection>/<object>/<id>`` to the secret of
        each registration, as JSON; several connections may share it. Airflow hides its value if the name
        contains ``secret``. Default: ``fsm_webhook_secrets_<connection>_<object>`` (templated).
    :param secret_store: a function that stores the secret instead. It is called as
        ``function("<connection>/<object>/<id>", secret)``, and once before as a check, with ``probe`` for
        the id and an empty secret. It cannot be a template or an import path, so that no XCom or Variable
        can name code.
    :param force: register again even if a registration is saved, and save the new one (templated). The old
        one stays in the service: delete it there. A retry repeats no registration of an earlier attempt.
    :param if_uncertain: what to do if it is unknown whether the webhook is registered: ``fail``, or
        ``create`` it, at the risk of two (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the registrations under the service's own names, without their secrets: one per event type
        with the style ``separate``, else one.
    """

    template_fields: tuple[str, ...] = (
        *("fsm_conn_id", "object", "event_types", "target_url", "description"),
        *("secret_variable", "force", "if_uncertain"),
    )
    option_parsers: ClassVar[OptionParsers] = {
        "force": parse_flag,
        "if_uncertain": partial(parse_choice, choices=("fail", "create")),
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
        secret_store: Callable[[str, str], Any] | None = None,
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
        self.secret_store = secret_store
        self.force = force
        self.if_uncertain = if_uncertain
        with bad_arguments_are_refused():
            self.options(only_known=True)
            if secret_store is not None and not callable(secret_store):
                raise FsmInputError(
                    "secret_store: should be the function itself, imported in the DAG file, "
                    f"not {secret_store!r}"
                )
            if secret_variable is not None and secret_store is not None:
                raise FsmInputError("secret_store: cannot be combined with secret_variable")
            if is_known([object, event_types, target_url, description]):
                self._payload(target_url or "https://receiver.invalid")

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Register the webhooks that are not registered yet."""
        from fsm_provider.state.task import Task
        from fsm_provider.writes.registrations import Registrations

        with permanent_errors_fail_the_task():
            options = self.options()
            webhook = self._payload(self.target_url or self._receiver_url())
            registrations = Registrations(self.fsm_conn_id, Task.from_context(context))
            style = self.hook.client.settings.event_types_style
            is_shared = self.hook.state_conn_id is not None
            pending = [
                _Pending(self, request, style, registrations, force=options["force"])
                for request in webhook.requests(style)
            ]
            are_saved = not options["force"] and all(one.is_saved() for one in pending)
            if are_saved:
                registrations.delete_stale_claim()
                if not is_shared:
                    return [one.saved() for one in pending]
            with (
                nullcontext() if are_saved else registrations.exclusive(),
                open_ledger(
                    context,
                    self.hook,
                    once_per="key" if is_shared else "run",
                    repeat_uncertain=options["if_uncertain"] == "create",
                    repeat_done=options["force"],
                ) as ledger,
            ):
                writes = [one.write for one in pending]
                ledger.load(writes)
                ledger.expect(writes)
                secrets = self._open_secret_store()
                return [
                    one.run(ledger, secrets, if_uncertain=options["if_uncertain"], is_shared=is_shared)
                    for one in pending
                ]

    def _payload(self, target_url: str) -> WebhookCreate:
        from fsm_provider.api.payloads import WebhookCreate, check

        given = {
            "object": self.object,
            "event_types": self.event_types,
            "target_url": target_url,
            "description": self.description,
        }
        return check(WebhookCreate, given, "webhook")

    def _receiver_url(self) -> str:
        from fsm_provider.plugins.webhooks import settings as receiver

        configuration = read_variable(receiver.CONFIGURATION)
        if configuration is None:
            raise FsmInputError(
                f"target_url: is missing, and no Variable {receiver.CONFIGURATION} configures the receiver"
            )
        settings = receiver.ReceiverSettings.parse(configuration)
        if settings.base_url is None:
            raise FsmInputError(
                f"target_url: is missing, and Variable {receiver.CONFIGURATION} has no base_url"
            )
        endpoint = f"{self.fsm_conn_id}/{self.object}"
        if endpoint not in settings.endpoints:
            raise FsmInputError(
                f"target_url: is missing, and Variable {receiver.CONFIGURATION} has no endpoint '{endpoint}'"
            )
        return receiver.receiver_url(settings.base_url, self.fsm_conn_id, self.object, HIDDEN)

    def _open_secret_store(self) -> SecretStore:
        from fsm_provider.plugins.webhooks.settings import secrets_variable

        scope = f"{self.fsm_conn_id}/{self.object}"
        if self.secret_store is not None:
            return FunctionSecretStore(self.secret_store, scope)
        return VariableSecretStore(
            self.secret_variable or secrets_variable(self.fsm_conn_id, self.object), scope
        )


class _Pending:
    """One of the registrations of a task."""

    def __init__(
        self,
        operator: FsmRegisterWebhookOperator,
        payload: WebhookCreate,
        style: EventTypesStyle,
        registrations: Registrations,
        *,
        force: bool,
    ) -> None:
        from fsm_provider.api.endpoints import REGISTER_WEBHOOK
        from fsm_provider.plugins.webhooks.settings import tokens_variable
        from fsm_provider.writes.registrations import PathTokens, variable_name

        self._operator = operator
        self._payload = payload
        self._registrations = registrations
        self._force = force
        self.name = variable_name(
            operator.fsm_conn_id, payload.object, payload.event_types, payload.target_url
        )
        # The receiver's URL has no token yet: it is created when it is needed.
        self.write = Write(
            REGISTER_WEBHOOK.method, REGISTER_WEBHOOK.path, payload.query(style), payload.subject, self.name
        )
        self._tokens: PathTokens | None = None
        if operator.target_url is None:
            self._tokens = PathTokens(tokens_variable(operator.fsm_conn_id, payload.object))
        self._known = registrations.get(self.name)

    def is_saved(self) -> bool:
        return self._known is not None and self._known.result is not None

    def saved(self) -> dict[str, Any]:
        if self._known is None or self._known.result is None:
            raise LookupError(self.name)
        self._operator.log.info(
            "Webhook %s for %s was registered at %s by %s: Variable %s",
            *(self._known.result.get("id"), self._payload.event_types),
            *(self._known.at, self._known.by, self.name),
        )
        return self._known.result

    def run(
        self, ledger: Ledger, secrets: SecretStore, *, if_uncertain: str, is_shared: bool
    ) -> dict[str, Any]:
        from fsm_provider.writes.registrations import uncertain_error

        self._known = self._registrations.get(self.name)
        ledger.load([self.write])  # after the Variable, which others write later
        if not self._force and self.is_saved():
            if is_shared:
                self._record_saved(ledger)
            return self.saved()
        unknown = self._known if self._known is not None and self._known.result is None else None
        if unknown and not self._force and if_uncertain == "fail":
            # The ledger knows more of what this task has registered itself, or any that shares it.
            in_ledger = is_shared and ledger.get(self.write) is not None
            if not in_ledger and not self._registrations.is_own(unknown):
                raise uncertain_error(unknown)
        with counted_write(self._operator.hook.metrics) as created:
            result: dict[str, Any] = ledger.run_once(
                self.write,
                lambda: created(self._register(secrets, ledger.headers())),
                prepare=secrets.check,
            )
        if self._known is None or self._known.result != result:
            self._registrations.save(self.name, result=result)
        return result

    def _record_saved(self, ledger: Ledger) -> None:
        """Record the saved registration in the ledger if it is missing there, or its outcome is.

        It is missing if it was saved before ``state_conn_id`` was set; its outcome, if the database was away
        after the request.
        """
        known, recorded = self._known, ledger.get(self.write)
        if recorded is None or (
            known is not None
            and isinstance(recorded.error, FsmUncertainWriteError)
            and not recorded.under_way
            and recorded.by == known.by
            and recorded.error.attempted_at <= known.at
        ):
            ledger.record(self.write, self.saved())

    def _register(self, secrets: SecretStore, headers: Mapping[str, str]) -> dict[str, Any]:
        before = self._known
        payload, token = self._payload, None
        try:
            if self._tokens is not None:
                token = self._tokens.token_for(self.name, fresh=self._force)
                target_url = payload.target_url.removesuffix(HIDDEN) + token
                payload = payload.model_copy(update={"target_url": target_url})
            self._registrations.save(self.name, error=self._intent())
        except FsmError:
            raise
        except Exception as error:
            raise NothingSentError(f"Nothing was registered: {error}") from error
        try:
            (webhook,) = self._operator.hook.register_webhook(
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

    def _intent(self) -> FsmError:
        return FsmUncertainWriteError(
            self.write.method,
            self.write.path,
            f"{self._registrations.holder} has not recorded a response",
            datetime.now(UTC).isoformat(timespec="seconds"),
            self.write.subject,
        )

    def _store_secret(self, secrets: SecretStore, webhook: Webhook) -> None:
        self._operator.log.info("Registered webhook %s for %s", webhook.id, webhook.event_types)
        if webhook.signing_secret is None:
            self._operator.log.warning("The service returned no signing secret for webhook %s", webhook.id)
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
