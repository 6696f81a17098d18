"""The receiver's settings without its secrets: the Airflow Variable ``fsm_webhooks``, as JSON.

Other Variables hold the secrets: the path tokens and the signing secrets.
"""

import re
from typing import Annotated, ClassVar, Literal, Self, get_args
from urllib.parse import quote

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.payloads import WebhookObject
from fsm_provider.api.settings import is_readable_on_the_way, split_url
from fsm_provider.api.validation import validate_with
from fsm_provider.plugins.webhooks import URL_PREFIX

SETTINGS_VARIABLE = "fsm_webhooks"
REGISTRATION_PREFIX = "fsm_webhook_secret_"
"""How the names of the Variables begin that hold one registration each, with its secrets."""
DIGEST_LENGTH = 16
"""Hexadecimal digits at the end of such a name, that tell registrations for one object apart."""
HIDDEN = "***"
"""Replaces the path token in a URL that is shown."""
REMEMBERED_HOURS = 24
"""Hours in which the receiver drops the repeats of a delivery."""

HeaderName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", to_lower=True)
]
Prefix = Annotated[str, StringConstraints(pattern=r"^[^\s,]*$")]


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class WebhookEndpoint(_Model):
    """One URL of the receiver: for deliveries about one object of one connection.

    Section 6 of the service's specification leaves the signature of a delivery open, so it is set
    here.

    :param signature: ``standard-webhooks`` (https://www.standardwebhooks.com); ``hmac``, an
        HMAC-SHA256 with the secret as text, of the body or of ``<time>.<body>``; or ``none``: then
        the token in the path is the only protection.
    :param header: of an ``hmac``: the name of the header with the signature, or with several
        separated by blanks or commas.
    :param prefix: of an ``hmac``: what precedes the signature, e.g. ``sha256=`` or ``v1=``.
    :param timestamp_prefix: of an ``hmac``: what precedes the time of sending in the same header,
        in seconds since 1970, e.g. ``t=`` where it is ``t=1790000000,v1=...``. Then time and body
        are signed.
    :param encoding: of an ``hmac``: how the header writes the signature's bytes.
    :param tolerance: seconds that a signed time may be off, either way; at most half of
        ``REMEMBERED_HOURS``, so that no delivery is accepted again after it has been forgotten.
    :param keep_body: store the body in the asset event, as text; it may hold personal data.
    """

    signature: Literal["standard-webhooks", "hmac", "none"]
    header: HeaderName | None = None
    prefix: Prefix = ""
    timestamp_prefix: Prefix = ""
    encoding: Literal["hex", "base64"] = "hex"
    tolerance: int = Field(default=300, ge=1, le=REMEMBERED_HOURS * 3600 // 2)
    keep_body: bool = False

    @model_validator(mode="after")
    def _check_header_and_prefixes(self) -> Self:
        needs_header = self.signature == "hmac"
        has_header = self.header is not None
        if has_header != needs_header:
            raise ValueError("header: is needed for the signature 'hmac', and for no other")
        if not self.timestamp_prefix:
            return self
        # A part of the header that begins as the time does counts as a time.
        if not self.prefix or self.prefix.startswith(self.timestamp_prefix):
            raise ValueError(
                "prefix: should precede the signature, as timestamp_prefix precedes the time"
            )
        return self


class ReceiverSettings(_Model):
    """The content of the Variable ``fsm_webhooks``.

    :param base_url: the URL at which the service reaches this Airflow, e.g.
        ``https://airflow.example.com``, for registrations without a ``target_url``.
    :param endpoints: the endpoints, by ``<connection>/<object>``; the object is one of those that
        section 6 of the service's specification lists.
    """

    base_url: str | None = None
    endpoints: dict[str, WebhookEndpoint] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = split_url(value, "https://airflow.example.com", is_base=True)
        if is_readable_on_the_way(parts):
            raise ValueError("should be https: http sends path token and deliveries in clear text")
        return value.rstrip("/")

    @field_validator("endpoints")
    @classmethod
    def _check_routes(cls, value: dict[str, WebhookEndpoint]) -> dict[str, WebhookEndpoint]:
        for route in value:
            fsm_conn_id, _, watched = route.rpartition("/")
            is_connection = re.fullmatch(r"[\w.-]+", fsm_conn_id)
            if not is_connection or watched not in get_args(WebhookObject):
                raise ValueError(
                    f"{route!r} is not <connection>/<object>, e.g. fsm_default/jobs, with letters, "
                    "digits, _, . and - in the connection's name"
                )
        return value

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of the Variable.

        :raises FsmInputError: names every bad field, and quotes no value.
        """
        try:
            return validate_with(cls.model_validate_json, text)
        except FsmInputError as error:
            raise FsmInputError(f"Variable {SETTINGS_VARIABLE}: {error}") from None


def registrations_prefix(fsm_conn_id: str, watched: str) -> str:
    """Return how the names of an object's Variables begin: one for each registration, as JSON.

    :param watched: the object that the webhook watches, e.g. ``jobs``.
    """
    connection = re.sub(r"[^A-Za-z0-9_.-]", "-", fsm_conn_id)[:100]
    return f"{REGISTRATION_PREFIX}{connection}_{watched}_"


def receiver_url(base_url: str, fsm_conn_id: str, watched: str, path_token: str) -> str:
    """Return the URL at which the receiver accepts deliveries about an object.

    :param base_url: the URL of Airflow's API server, without a slash at its end.
    :param watched: the object that the webhook watches, e.g. ``jobs``.
    :param path_token: the secret at the end of the path, or :data:`HIDDEN`.
    """
    connection = quote(fsm_conn_id, safe="")
    return f"{base_url}{URL_PREFIX}/{connection}/{watched}/{path_token}"
