"""Names that the receiver and the operator that registers webhooks agree on. Light, unlike the settings."""

from __future__ import annotations

from urllib.parse import quote

from fsm_provider.plugins.webhooks import URL_PREFIX


def tokens_variable(fsm_conn_id: str, watched: str) -> str:
    """Return the name of the Variable with the path tokens: a JSON object of registrations to tokens."""
    return f"fsm_webhook_secret_tokens_{fsm_conn_id}_{watched}"


def secrets_variable(fsm_conn_id: str, watched: str) -> str:
    """Return the name of the default Variable for signing secrets: JSON of identifiers to secrets."""
    return f"fsm_webhook_secrets_{fsm_conn_id}_{watched}"


def receiver_url(base_url: str, fsm_conn_id: str, watched: str, token: str) -> str:
    """Return the URL of an endpoint."""
    return f"{base_url}{URL_PREFIX}/{quote(fsm_conn_id, safe='')}/{watched}/{token}"
