"""The configuration of the receiver: the Airflow Variable ``fsm_webhooks``, as JSON.

Other Variables hold secrets: the path tokens, which the registering operator writes, and the signing secrets,
which it also writes unless they are stored elsewhere.
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
SECRETS_FUNCTION_ENV = "AIRFLOW__FSM__WEBHOOK_SECRETS_FUNCTION"
MIN_KEY_BYTES = 16
"""Minimum length of a decoded signing secret: a shorter one can be guessed, or is none, such as ``None``."""
MIN_DISTINCT_BYTES = 5
"""Minimum distinct bytes of a decoded signing secret: sixteen asterisks are no secret."""
MIN_TOKEN_CHARACTERS = 20
MAX_BODY = 1024 * 1024
REMEMBERED_HOURS = 24
"""Hours that a delivery is remembered, so that its repeats are dropped."""

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", to_lower=True)]
VariableName = Annotated[str, StringConstraints(min_length=1, max_length=250, pattern=r"^[\w ./:-]+$")]

_PLACEHOLDER = re.compile(r"\{([a-z]*)\}")


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Scheme(_Model):
    """An HMAC signature.

    :param header: the header that carries the signature, or several separated by blanks or commas.
    :param algorithm: the hash of the HMAC.
    :param encoding: how the signature is written.
    :param prefix: what stands before the signature, e.g. ``sha256=`` or ``v1=``.
    :param signed: what is signed: ``{body}`` as received, ``{timestamp}`` and ``{id}`` as in their headers.
    :param timestamp_header: the header that carries the time of sending; it may be ``header`` itself.
    :param timestamp_prefix: what stands before the time, e.g. ``t=``.
    :param timestamp_unit: ``s`` or ``ms`` since 1970, or ``iso`` 8601.
    :param tolerance: seconds that the time may be off, either way; at most half of ``REMEMBERED_HOURS``, so
        that no delivery is accepted again after it has been forgotten.
    :param id_header: the header that carries the delivery's identifier.
    :param secret_encoding: how the secret is written: as ``text``, or as ``base64``, ``base64url`` (with
        ``-`` and ``_``) or ``hex`` of the key, where a leading ``whsec_`` is ignored.
    """

    header: HeaderName
    algorithm: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""
    signed: str = "{body}"
    timestamp_header: HeaderName | None = None
    timestamp_prefix: str = ""
    timestamp_unit: Literal["s", "ms", "iso"] = "s"
    tolerance: int = Field(default=300, ge=1, le=REMEMBERED_HOURS * 3600 // 2)
    id_header: HeaderName | None = None
    secret_encoding: Literal["text", "base64", "base64url", "hex"] = "text"  # noqa: S105

    @model_validator(mode="after")
    def _signed_fields_have_headers(self) -> Self:
        used = _PLACEHOLDER.findall(self.signed)
        if sorted(set(used)) != sorted(used) or not set(used) <= {"body", "timestamp", "id"}:
            raise ValueError("signed: may hold {body}, {timestamp} and {id}, each once")
        if "body" not in used:
            raise ValueError("signed: should hold {body}: an unsigned body can be replaced")
        if "id" in used and self.id_header is None:
            raise ValueError("id_header: is missing, and signed holds {id}")
        if ("timestamp" in used) != (self.timestamp_header is not None):
            raise ValueError(
                "timestamp_header: goes with {timestamp} in signed: an unsigned time proves nothing"
            )
        return self


STANDARD_WEBHOOKS = Scheme(
    header="webhook-signature",
    prefix="v1,",
    encoding="base64",
    algorithm="sha256",
    signed="{id}.{timestamp}.{body}",
    id_header="webhook-id",
    timestamp_header="webhook-timestamp",
    timestamp_unit="s",
    tolerance=300,
    secret_encoding="base64",  # noqa: S106
)
"""https://www.standardwebhooks.com"""


_SIGNATURE_KINDS = ("a name", "an HMAC")


def _signature_kind(value: Any) -> str:
    return _SIGNATURE_KINDS[isinstance(value, dict | Scheme)]


Signature = Annotated[
    Annotated[Literal["none", "standard-webhooks"], Tag("a name")] | Annotated[Scheme, Tag("an HMAC")],
    Discriminator(_signature_kind),
]


class WebhookEndpoint(_Model):
    """One URL of the receiver: for deliveries about one object of one connection.

    :param signature: ``standard-webhooks``, another HMAC, or ``none``: then the token in the path is the
        only protection.
    :param id_header: for ``none``: the header that carries the delivery's identifier.
    :param secrets_variable: the Variable with the signing secrets: a JSON object of identifiers to secrets, a
        JSON list, or one secret as text. Default: the Variable that the operator writes.
    :param secrets_from: ``function``: the function that airflow.cfg names returns the secrets instead; it is
        called with the connection and the object. No Variable can name code.
    :param max_body: maximum bytes of a body.
    :param content_type: the only accepted content type; any by default.
    :param refusals_per_minute: refused deliveries that are logged one by one and get a status of their own;
        further ones get 429. Valid deliveries are always accepted.
    :param keep_body: store the full body in the asset event; it may hold personal data.
    """

    signature: Signature
    id_header: HeaderName | None = None
    secrets_variable: VariableName | None = None
    secrets_from: Literal["function"] | None = None
    max_body: int = Field(default=MAX_BODY, ge=1, le=MAX_BODY)
    content_type: str | None = None
    refusals_per_minute: int = Field(default=60, ge=0)
    keep_body: bool = False

    @property
    def scheme(self) -> Scheme | None:
        """The HMAC that deliveries are signed with; None if they are not signed."""
        if self.signature == "none":
            return None
        return STANDARD_WEBHOOKS if self.signature == "standard-webhooks" else self.signature

    @field_validator("secrets_from", mode="before")
    @classmethod
    def _names_no_code(cls, value: Any) -> Any:
        if value not in ("function", None):
            raise ValueError(
                "should be 'function', with the path of the function in airflow.cfg, as "
                f"webhook_secrets_function of [fsm] ({SECRETS_FUNCTION_ENV}): nothing that a Variable names "
                "is imported"
            )
        return value

    @model_validator(mode="after")
    def _no_setting_contradicts_another(self) -> Self:
        if self.id_header is not None and self.signature != "none":
            raise ValueError("id_header: belongs in signature (standard-webhooks has its own)")
        if self.secrets_variable == CONFIGURATION:
            raise ValueError(f"secrets_variable: {CONFIGURATION} holds no secret")
        if self.secrets_variable is not None and self.secrets_from is not None:
            raise ValueError("secrets_from: cannot be combined with secrets_variable")
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
            described = describe_invalid_fields(error, cls, name_for=_name)
        raise FsmInputError(
            f"Variable {CONFIGURATION}: {described}"
        )  # not inside except: it holds the values


def _name(location: tuple[int | str, ...]) -> str:
    """Name a field as the Variable does, without the tag of the signature's kind."""
    return dotted_name(tuple(part for part in location if part not in _SIGNATURE_KINDS))
