"""Provider metadata for Airflow: the entry point ``apache_airflow_provider``."""

from __future__ import annotations

from typing import Any

_INTEGRATION = "Field-service management API"


def _field(kind: str, label: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": [kind, "null"], **schema}}


_CONN_FIELDS = {
    "api_version": _field(
        "string", "API version", "Sent as X-API-VERSION with job creation. Empty: not sent.", default="2.0"
    ),
    "cursor_param": _field(
        "string",
        "Cursor parameter",
        "The query parameter that carries a listing's cursor. Default: cursor.",
        default="cursor",
    ),
    "page_size_param": _field(
        "string", "Page size parameter", "The query parameter that carries the page size. Empty: not sent."
    ),
    "page_size": _field(
        "integer", "Page size", "Records per page; sent as the page size parameter.", minimum=1
    ),
    "event_types_style": _field(
        "string",
        "Event types style",
        "How several event types of a webhook are passed: one registration each (separate), "
        "eventTypes=a&eventTypes=b (repeat), eventTypes[]=a (brackets) or eventTypes=a,b (comma).",
        enum=["separate", "repeat", "brackets", "comma"],
        default="separate",
    ),
    "server_timezone": _field(
        "string",
        "Server time zone",
        "The zone of date-times that carry none, e.g. Europe/London. Default: UTC.",
        default="UTC",
    ),
    "timeout": _field(
        "number",
        "Timeout (s)",
        "Seconds to wait for a connection, until a request is sent, and for each chunk of a response. "
        "Default: 30.",
        exclusiveMinimum=0,
        default=30,
    ),
    "max_retries": _field(
        "integer",
        "Retries",
        "Repeats of one request after a failure that is safe to repeat, within two minutes of waiting. "
        "Default: 4.",
        minimum=0,
        default=4,
    ),
    "max_requests_per_second": _field(
        "number",
        "Requests per second",
        "Maximum number of requests per second from one process. Empty: no limit.",
        exclusiveMinimum=0,
    ),
    "verify_ssl": _field(
        "boolean", "Verify TLS", "Whether the service's certificate is checked.", default=True
    ),
    "ca_bundle": _field(
        "string", "CA bundle", "Path of a file or folder of certificates to check the service's against."
    ),
    "state_conn_id": _field(
        "string",
        "Ledger's connection",
        "The connection of a SQL database that records what is sent: once across runs, DAGs and Airflows. "
        "Empty: Airflow 3.3 records it, for each run.",
    ),
    "idempotency_header": _field(
        "string",
        "Idempotency header",
        "The header in which the service reads a key, so that a write that is sent again takes effect once, "
        "e.g. Idempotency-Key. Empty: what may have been written is not repeated.",
    ),
    "idempotency_hours": _field(
        "number",
        "Idempotency (h)",
        "Hours for which the service remembers such a key. Default: 20.",
        exclusiveMinimum=0,
        default=20,
    ),
    "web_url": _field(
        "string",
        "Page of a job",
        "Where the link Job leads, e.g. https://app.example.com/jobs/{id}; {propertyID} is the job's "
        "property. Empty: the URL that the service returns with the job.",
    ),
    "allow_http": _field(
        "boolean",
        "Allow http",
        "Send the token in the clear to a host that is not this machine.",
        default=False,
    ),
}


def get_provider_info() -> dict[str, Any]:
    """Return the metadata, as in Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-fsm",
        "name": "Field-service management",
        "description": "Jobs, completed forms, asset fields and webhooks of a field-service management API.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["service"]}],
        "connection-types": [
            {
                "connection-type": "fsm",
                "hook-class-name": "fsm_provider.hooks.fsm.FsmHook",
                "hook-name": "Field-service management",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema", "extra"],
                    "relabeling": {"host": "Base URL", "login": "Account", "password": "API token"},
                    "placeholders": {"host": "https://api.example.com/v1"},
                },
                "conn-fields": _CONN_FIELDS,
            }
        ],
        "config": {
            "fsm": {
                "description": "The field-service management provider.",
                "options": {
                    "airflow_name": {
                        "description": "A name of this Airflow, the same on all workers. Needed if several "
                        "Airflows have DAGs with the same ids and share the database of a ledger.",
                        "version_added": None,
                        "type": "string",
                        "example": "north",
                        "default": "",
                    },
                    "webhook_secrets_function": {
                        "description": "The function that returns the signing secrets of endpoints with "
                        '"secrets_from": "function", called with connection and object where the API server '
                        "runs. It returns a text or a list.",
                        "version_added": None,
                        "type": "string",
                        "example": "my_company.secrets.signing_secrets",
                        "default": None,
                    },
                },
            }
        },
        "hooks": [{"integration-name": _INTEGRATION, "python-modules": ["fsm_provider.hooks.fsm"]}],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "fsm_provider.operators.assets",
                    "fsm_provider.operators.forms",
                    "fsm_provider.operators.generic",
                    "fsm_provider.operators.jobs",
                    "fsm_provider.operators.webhooks",
                ],
            }
        ],
        "transfers": [
            {
                "source-integration-name": _INTEGRATION,
                "target-integration-name": _INTEGRATION,
                "python-module": module,
            }
            for module in ("fsm_provider.transfers.assets", "fsm_provider.transfers.forms")
        ],
        "sensors": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["fsm_provider.sensors.forms", "fsm_provider.sensors.records"],
            }
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["fsm_provider.triggers.assets", "fsm_provider.triggers.forms"],
            }
        ],
        "asset-uris": [{"schemes": ["fsm"], "handler": "fsm_provider.assets.forms.sanitize_uri"}],
        "cli": ["fsm_provider.cli.airflow_commands"],
        "extra-links": [
            "fsm_provider.links.jobs.FsmJobLink",
            "fsm_provider.links.jobs.FsmJobsLink",
            "fsm_provider.links.reports.FsmReportLink",
            "fsm_provider.links.webhooks.FsmWebhookLink",
        ],
    }
