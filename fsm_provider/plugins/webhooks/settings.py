"""The configuration of the receiver: the Airflow Variable ``fsm_webhooks``, as JSON.

Other Variables hold secrets: the path tokens and the signing secrets.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.payloads import WebhookObject
from fsm_provider.api.settings import is_loopback
from fsm_provider.api.validation import describe_invalid_fields, dotted_name

CONFIGURATION = "fsm_webhooks"
"""The Variable that configures the receiver."""
MAX_BODY = 1024 * 1024
REMEMBERED_HOURS = 24
"""Hours that a delivery is remembered, so that its repeats are dropped."""

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", to_lower=True)]
Prefix = Annotated[str, StringConstraints(pattern=r"^[^\s,]*$")]


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class HmacSignature(_Model):
    """An HMAC-SHA256 with the secret as text: of the body, or of time and body as ``<time>.<body>``.

    :param header: the header that carries the signature, or several separated by blanks or commas.
    :param prefix: what precedes the signature, e.g. ``sha256=`` or ``v1=``.
    :param timestamp_prefix: what precedes the time of sending in the same header, in seconds since 1970, e.g.
        ``t=`` where it is ``t=1790000000,v1=...``. Then time and body are signed; otherwise the body.
    :param encoding: how the signature is written.
    :param tolerance: seconds that the time may be off, either way; at most half of ``REMEMBERED_HOURS``, so
        that no delivery is accepted again after it has been forgotten.
    """

    header: HeaderName
    prefix: Prefix = ""
    timestamp_prefix: Prefix = ""
    encoding: Literal["hex", "base64"] = "hex"
    tolerance: int = Field(default=300, ge=1, le=REMEMBERED_HOURS * 3600 // 2)

    @model_validator(mode="after")
    def _the_two_can_be_told_apart(self) -> Self:
        if self.timestamp_prefix and self.prefix in ("", self.timestamp_prefix):
            raise ValueError("prefix: should precede the signature, as timestamp_prefix precedes the time")
        return self


_SIGNATURE_KINDS = ("a name", "an HMAC")


def _signature_kind(value: Any) -> str:
    return _SIGNATURE_KINDS[isinstance(value, dict | HmacSignature)]


Signature = Annotated[
    Annotated[Literal["none", "standard-webhooks"], Tag("a name")] | Annotated[HmacSignature, Tag("an HMAC")],
    Discriminator(_signature_kind),
]


class WebhookEndpoint(_Model):
    """One URL of the receiver: for deliveries about one object of one connection.

    :param signature: ``standard-webhooks`` (https://www.standardwebhooks.com), an HMAC, or ``none``: then the
        token in the path is the only protection.
    :param id_header: for ``none``: the header that carries the delivery's identifier.
    :param max_body: maximum bytes of a body.
    :param keep_body: store the body in the asset event, as text; it may hold personal data.
    """

    signature: Signature
    id_header: HeaderName | None = None
    max_body: int = Field(default=MAX_BODY, ge=1, le=MAX_BODY)
    keep_body: bool = False

    @model_validator(mode="after")
    def _signed_identifiers_have_their_header(self) -> Self:
        if self.id_header is not None and self.signature != "none":
            raise ValueError("id_header: is for the signature 'none' (standard-webhooks has its own)")
        return self


class ReceiverSettings(_Model):
    """The content of the Variable ``fsm_webhooks``.

    :param base_url: the URL at which the service reaches this Airflow, e.g. ``https://airflow.example.com``,
        for registrations without a ``target_url``.
    :param endpoints: the endpoints, by ``<connection>/<object>``.
    """

    base_url: str | None = None
    endpoints: dict[str, WebhookEndpoint] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _base_is_a_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("is not an absolute http(s) URL without a query")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError("should be https: http sends path token and deliveries in clear text")
        return value.rstrip("/")

    @field_validator("endpoints")
    @classmethod
    def _names_are_connection_and_object(
        cls, value: dict[str, WebhookEndpoint]
    ) -> dict[str, WebhookEndpoint]:
        for name in value:
            connection, _, watched = name.rpartition("/")
            if not re.fullmatch(r"[\w.-]+", connection) or watched not in get_args(WebhookObject):
                raise ValueError(
                    f"{name!r} is not <connection>/<object>, e.g. fsm_default/jobs, with letters, digits, "
                    "_, . and - in the connection's name"
                )
        return value

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the Variable.

        :raises FsmInputError: one message that names every bad field and quotes no value.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            described = describe_invalid_fields(error, name_for=_name)
        raise FsmInputError(
            f"Variable {CONFIGURATION}: {described}"
        )  # not inside except: it holds the values


def _name(location: tuple[int | str, ...]) -> str:
    """Name a field as the Variable does, without the tag of the signature's kind."""
    return dotted_name(tuple(part for part in location if part not in _SIGNATURE_KINDS))
