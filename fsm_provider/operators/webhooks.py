"""Operators that register webhooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import parse_choice, parse_flag
from fsm_provider.links.webhooks import HIDDEN, FsmWebhookLink
from fsm_provider.operators.base import (
    FsmOptionsOperator,
    OptionParsers,
    bad_arguments_are_refused,
    is_known,
    permanent_errors_fail_the_task,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.payloads import WebhookCreate
    from fsm_provider.writes.registrations import Registrations
    from fsm_provider.writes.secret_stores import SecretStore
    from fsm_provider.writes.webhooks import PendingWebhook


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
        from fsm_provider.writes.ledgers import open_ledger
        from fsm_provider.writes.registrations import Registrations

        with permanent_errors_fail_the_task():
            options = self.options()
            registrations = Registrations(self.fsm_conn_id, Task.from_context(context))
            pending = self._pending(registrations, force=options["force"])
            is_shared = self.hook.state_conn_id is not None
            saved = [] if options["force"] else [one.saved for one in pending if one.saved is not None]
            are_saved = len(saved) == len(pending)
            if are_saved:
                registrations.delete_stale_claim()
                if not is_shared:
                    for one in pending:
                        one.log_saved()
                    return saved
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
                    one.run(
                        ledger,
                        secrets,
                        if_uncertain=options["if_uncertain"],
                        is_shared=is_shared,
                        is_retry=context["ti"].try_number > 1,
                    )
                    for one in pending
                ]

    def _pending(self, registrations: Registrations, *, force: bool) -> list[PendingWebhook]:
        """Return the registrations to make, one for each request."""
        from fsm_provider.writes.webhooks import PendingWebhook

        webhook = self._payload(self.target_url or self._receiver_url())
        style = self.hook.client.settings.event_types_style
        needs_token = self.target_url is None
        return [
            PendingWebhook(self.hook, one, style, registrations, needs_token=needs_token, force=force)
            for one in webhook.requests(style)
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
        from fsm_provider.plugins.webhooks.names import receiver_url
        from fsm_provider.state.variables import read_variable

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
        return receiver_url(settings.base_url, self.fsm_conn_id, self.object, HIDDEN)

    def _open_secret_store(self) -> SecretStore:
        from fsm_provider.plugins.webhooks.names import secrets_variable
        from fsm_provider.writes.secret_stores import FunctionSecretStore, VariableSecretStore

        scope = f"{self.fsm_conn_id}/{self.object}"
        if self.secret_store is not None:
            return FunctionSecretStore(self.secret_store, scope)
        return VariableSecretStore(
            self.secret_variable or secrets_variable(self.fsm_conn_id, self.object), scope
        )
