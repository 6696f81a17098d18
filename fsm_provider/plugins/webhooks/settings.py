"""How the receiver is configured: one Airflow Variable of JSON, ``fsm_webhooks``.

Beside it are the Variables that hold secrets: the path tokens, which the registering operator writes, and
the signing secrets, which it writes too unless they go elsewhere.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self, get_args
from urllib.parse import quote, urlsplit

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

from fsm_provider.api.drafts import WebhookObject
from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.settings import is_loopback
from fsm_provider.plugins.webhooks import URL_PREFIX

CONFIGURATION = "fsm_webhooks"
"""The Variable that configures the receiver."""
MAX_BODY = 1024 * 1024
REMEMBERED_HOURS = 24
"""How long a delivery is remembered, so that its repeats are dropped."""

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", to_lower=True)]
DottedPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]

_PLACEHOLDER = re.compile(r"\{([a-z]*)\}")


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Scheme(_Model):
    """An HMAC over what a delivery says.

    :param header: the header that carries the signature; several, apart by blanks or commas, may be in it.
    :param algorithm: the hash of the HMAC.
    :param encoding: how the signature is written.
    :param prefix: what stands before the signature, e.g. ``sha256=`` or ``v1=``.
    :param signed: what is signed: ``{body}`` as it came, ``{timestamp}`` and ``{id}`` as in their headers.
    :param timestamp_header: the header that carries the time of sending; it may be ``header`` itself.
    :param timestamp_prefix: what stands before the time, e.g. ``t=``.
    :param timestamp_unit: ``s`` or ``ms`` since 1970, or ``iso`` 8601.
    :param tolerance: seconds that the time may be off, either way; at most half of what is remembered, so
        that no delivery is accepted again after it was forgotten.
    :param id_header: the header that carries the delivery's identifier.
    :param secret_encoding: how the secret is written: as the ``text`` it is, or as ``base64`` or ``hex`` of
        the key; a beginning ``whsec_`` is left out for the latter two.
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
    secret_encoding: Literal["text", "base64", "hex"] = "text"  # noqa: S105

    @model_validator(mode="after")
    def _what_is_signed_is_there(self) -> Self:
        used = _PLACEHOLDER.findall(self.signed)
        if sorted(set(used)) != sorted(used) or not set(used) <= {"body", "timestamp", "id"}:
            raise ValueError("signed: may hold {body}, {timestamp} and {id}, each once")
        if "body" not in used:
            raise ValueError("signed: should hold {body}: what is not signed can be replaced")
        if "id" in used and self.id_header is None:
            raise ValueError("id_header: is missing, and signed holds {id}")
        if ("timestamp" in used) != (self.timestamp_header is not None):
            raise ValueError(
                "timestamp_header: goes with {timestamp} in signed: a time that is not signed proves nothing"
            )
        return self


def _kind_of_signature(value: Any) -> str:
    return "an HMAC" if isinstance(value, dict | Scheme) else "a name"


Signature = Annotated[
    Annotated[Literal["none", "standard-webhooks"], Tag("a name")] | Annotated[Scheme, Tag("an HMAC")],
    Discriminator(_kind_of_signature),
]


class Endpoint(_Model):
    """One address of the receiver: deliveries on one object of one connection.

    :param signature: ``standard-webhooks``, an HMAC of another kind, or ``none``: then the token in the
        path is the only proof.
    :param id_header: for ``none``: the header that carries the delivery's identifier.
    :param secrets_variable: the Variable with the signing secrets: JSON of identifier to secret, JSON of a
        list, or one secret as text. Default: where the operator puts them.
    :param secrets_from: ``package.module.function`` that gives them instead, called with the connection and
        the object.
    :param max_body: bytes of a body.
    :param content_type: the only accepted type of body; any by default.
    :param refusals_per_minute: refused deliveries that are logged one by one and told their own status;
        the others are answered 429. Right deliveries are always accepted.
    :param keep_body: put the whole body into the asset event: it may hold personal data.
    """

    signature: Signature
    id_header: HeaderName | None = None
    secrets_variable: Annotated[str, StringConstraints(min_length=1)] | None = None
    secrets_from: DottedPath | None = None
    max_body: int = Field(default=MAX_BODY, ge=1, le=MAX_BODY)
    content_type: str | None = None
    refusals_per_minute: int = Field(default=60, ge=0)
    keep_body: bool = False

    @model_validator(mode="after")
    def _one_place_of_each(self) -> Self:
        if self.id_header is not None and self.signature != "none":
            raise ValueError("id_header: belongs into signature (standard-webhooks has its own)")
        if self.secrets_variable is not None and self.secrets_from is not None:
            raise ValueError("secrets_from: is given beside secrets_variable")
        return self


class ReceiverSettings(_Model):
    """What the Variable ``fsm_webhooks`` holds.

    :param base_url: where the service reaches this Airflow, e.g. ``https://airflow.example.com``: what
        registrations without a ``target_url`` are made with.
    :param endpoints: by ``<connection>/<object>``.
    """

    base_url: str | None = None
    endpoints: dict[str, Endpoint] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def _base_is_an_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("is not an absolute http(s) address without a query")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError("should be https: with http, path token and deliveries are sent in the clear")
        return value.rstrip("/")

    @field_validator("endpoints")
    @classmethod
    def _names_are_connection_and_object(cls, value: dict[str, Endpoint]) -> dict[str, Endpoint]:
        for name in value:
            connection, _, watched = name.rpartition("/")
            if not connection or watched not in get_args(WebhookObject):
                raise ValueError(f"{name!r} is not <connection>/<object>, e.g. fsm_default/jobs")
        return value

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the Variable.

        :raises FsmInputError: one message that names every bad field, and quotes none.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problems = "; ".join(
                f"{_place(detail['loc'])}{detail['msg'].removeprefix('Value error, ')}"
                for detail in error.errors(include_url=False, include_input=False, include_context=False)
            )
            raise FsmInputError(f"Variable {CONFIGURATION}: {problems}") from None


def _place(location: tuple[int | str, ...]) -> str:
    names = [str(part) for part in location if part not in ("a name", "an HMAC")]
    return f"{'.'.join(names)}: " if names else ""


def tokens_variable(fsm_conn_id: str, watched: str) -> str:
    """Name the Variable with the path tokens: JSON of registration to tokens."""
    return f"fsm_webhook_secret_tokens_{fsm_conn_id}_{watched}"


def secrets_variable(fsm_conn_id: str, watched: str) -> str:
    """Name the Variable where signing secrets go by default: JSON of identifier to secret."""
    return f"fsm_webhook_secrets_{fsm_conn_id}_{watched}"


def address(base_url: str, fsm_conn_id: str, watched: str, token: str) -> str:
    """Give the address of an endpoint."""
    return f"{base_url}{URL_PREFIX}/{quote(fsm_conn_id, safe='')}/{watched}/{token}"
