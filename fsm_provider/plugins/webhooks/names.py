"""Names that the receiver and the operator that registers webhooks agree on. Light, unlike the settings."""

from __future__ import annotations

import re
from urllib.parse import quote

from fsm_provider.plugins.webhooks import URL_PREFIX

DIGITS = 16
"""Length of the digest in the name of a registration's Variable."""


def tokens_variable(fsm_conn_id: str, watched: str) -> str:
    """Return the name of the Variable with the path tokens: a JSON object of registrations to tokens."""
    return f"fsm_webhook_secret_tokens_{fsm_conn_id}_{watched}"


def secrets_variable(fsm_conn_id: str, watched: str) -> str:
    """Return the name of the default Variable for signing secrets: JSON of identifiers to secrets."""
    return f"fsm_webhook_secrets_{fsm_conn_id}_{watched}"


def registrations_prefix(fsm_conn_id: str, watched: str) -> str:
    """Return how the names of an object's Variables begin: one for each registration, as JSON."""
    return f"fsm_webhook_secret_{re.sub(r'[^A-Za-z0-9_.-]', '-', fsm_conn_id)[:100]}_{watched}_"


def receiver_url(base_url: str, fsm_conn_id: str, watched: str, token: str) -> str:
    return f"{base_url}{URL_PREFIX}/{quote(fsm_conn_id, safe='')}/{watched}/{token}"
