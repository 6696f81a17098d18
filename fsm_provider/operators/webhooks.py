"""Operators that register webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from fsm_provider.api.errors import FsmInputError
from fsm_provider.links.webhooks import HIDDEN, FsmWebhookLink
from fsm_provider.operators.base import (
    bad_arguments_are_refused,
    is_known,
    permanent_errors_fail_the_task,
)
from fsm_provider.operators.writes import FsmWriteOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context

    from fsm_provider.api.payloads import WebhookCreate
    from fsm_provider.api.retry import TimeLimit
    from fsm_provider.writes.ledger import Write
    from fsm_provider.writes.webhooks import Registration


class FsmRegisterWebhookOperator(FsmWriteOperator):
    """Register a webhook once, and store its signing secret.

    A registration is saved in an Airflow Variable whose name comes from connection, object, event types and
    target: its id and its signing secret, which goes nowhere else. The operator first checks that it can
    write this Variable. Another run, a retry, a cleared task or another DAG finds it and registers nothing.
    Airflow 3.3 itself logs every Variable that a task sets, at DEBUG on the worker: register at INFO.

    If the connection has ``state_conn_id``, the registration is also a row of the ledger in that database,
    with the Variable's name as its key: then concurrent tasks, and other Airflows with the database,
    register once. Before Airflow 3.3 the database is needed.

    The connection's ``event_types_style`` selects how several event types are sent.

    :param object: one of properties, assets, contracts, opportunities, jobs, appointments (templated).
    :param event_types: ``<object>.<event>`` each, all of ``object`` (templated).
    :param target_url: the http(s) URL that receives the notifications (templated). Default: the URL of the
        receiver in Airflow's API server, with a fresh token in its path, which is never shown: see
        ``docs/webhooks.md``.
    :param description: free text (templated).
    :param if_uncertain: what to do if nobody knows whether the webhook is registered: ``fail``, or ``create``
        it, at the risk of two (templated).
    :param headers: further headers of the request (templated).
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the registrations under the service's own names, without their secrets: one per event type
        with the style ``separate``, else one.
    """

    template_fields: tuple[str, ...] = (
        *("fsm_conn_id", "object", "event_types", "target_url", "description", "if_uncertain", "headers"),
    )
    operator_extra_links: tuple[BaseOperatorLink, ...] = (FsmWebhookLink(),)

    def __init__(
        self,
        *,
        object: str,
        event_types: str | list[str],
        target_url: str | None = None,
        description: str | None = None,
        if_uncertain: Literal["fail", "create"] | str = "fail",
        headers: dict[str, str] | None = None,
        fsm_conn_id: str = "fsm_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(if_uncertain=if_uncertain, headers=headers, fsm_conn_id=fsm_conn_id, **kwargs)
        self.object = object
        self.event_types = event_types
        self.target_url = target_url
        self.description = description
        with bad_arguments_are_refused():
            self.options(only_known=True)
            if is_known([object, event_types, target_url, description]):
                self._payload(target_url or "https://receiver.invalid")

    def execute(self, context: Context) -> list[dict[str, Any]]:
        from fsm_provider.writes.webhooks import Registration

        with permanent_errors_fail_the_task():
            webhook = self._payload(self.target_url or self._receiver_url())
            style = self.hook.client.settings.event_types_style
            all_of_them = [Registration(self.hook, one) for one in webhook.requests(style)]
            missing = {one.write.key: one for one in all_of_them if one.registered is None}
            for one in all_of_them:
                if one.write.key not in missing:
                    self.log.info("Registered before: Variable %s", one.variable)
            made = self._register(context, missing) if missing else {}
            return [one.registered or made[one.write.key] for one in all_of_them]

    def _register(self, context: Context, missing: dict[str, Registration]) -> dict[str, Any]:
        def send(write: Write, headers: Mapping[str, str], limit: TimeLimit) -> dict[str, Any]:
            return missing[write.key].send({**(self.headers or {}), **headers}, limit)

        results = self.write_once(
            context,
            [one.write for one in missing.values()],
            send,
            once_per="run" if self.hook.settings.state_conn_id is None else "key",
            existing=lambda row: missing[row.key].existing(row),
        )
        return dict(zip(missing, results, strict=True))

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
