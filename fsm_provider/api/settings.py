"""How to reach the service, and what its specification leaves open: one checked object.

The names are those of the Airflow connection's form, where ``base_url`` is ``host`` and ``token`` is
``password``.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from fsm_provider.api.drafts import EventTypesStyle
from fsm_provider.api.errors import FsmInputError

_SHOWN_AS = {"base_url": "host", "token": "password"}
Name = Annotated[str, StringConstraints(min_length=1, pattern=r"^\S+$")]


class Settings(BaseModel):
    """Checked settings of one service.

    :param base_url: where the paths of the specification start; https, unless the host is loopback
        or ``allow_http`` is set.
    :param token: the bearer token (section 5).
    :param api_version: sent as ``X-API-VERSION`` with job creation (section 9); empty sends none.
    :param cursor_param: the query parameter that carries a listing's cursor.
    :param page_size_param: the query parameter that carries the page size.
    :param page_size: records a page; sent only where both are set.
    :param event_types_style: how several event types are passed at webhook registration (4.4).
    :param server_timezone: the zone of date-times that carry none.
    :param timeout: seconds to wait for a connection, and for each piece of an answer.
    :param max_retries: repeats of one request after a failure that is safe to repeat.
    :param max_requests_per_second: of this process, for one ``base_url``.
    :param verify_ssl: whether the service's certificate is checked.
    :param ca_bundle: path of a file or folder of certificates to check it against.
    :param allow_http: send the token in the clear to a host that is not loopback.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    base_url: str
    token: SecretStr
    api_version: str = "2.0"
    cursor_param: Name = "cursor"
    page_size_param: Name | None = None
    page_size: int | None = Field(default=None, ge=1)
    event_types_style: EventTypesStyle = "separate"
    server_timezone: ZoneInfo = ZoneInfo("UTC")
    timeout: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    max_retries: int = Field(default=4, ge=0)
    max_requests_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    verify_ssl: bool = True
    ca_bundle: str | None = None
    allow_http: bool = Field(default=False, validate_default=True)

    @field_validator("base_url")
    @classmethod
    def _is_a_plain_address(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            hostname, _ = parts.hostname, parts.port
        except ValueError:
            hostname = None
        if not hostname or parts.scheme not in ("http", "https"):
            raise ValueError("should be an address such as https://api.example.com/v1")
        if "@" in parts.netloc:
            raise ValueError("should hold no user or password")
        if "?" in value or "#" in value:
            raise ValueError("should end with its path: no ? and no #")
        if not value.isprintable() or " " in value or "\\" in value:
            raise ValueError("should hold no blanks and no backslash")
        return value.rstrip("/")

    @field_validator("token")
    @classmethod
    def _fits_a_header(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if not text:
            raise ValueError("is empty: it should be the API token")
        if not (text.isascii() and text.isprintable()) or " " in text:
            raise ValueError("should be the bare token: printable ASCII without blanks")
        return value

    @field_validator("api_version")
    @classmethod
    def _version_fits_a_header(cls, value: str) -> str:
        if not (value.isascii() and value.isprintable()):
            raise ValueError("should be printable ASCII")
        return value.strip()

    @field_validator("page_size")
    @classmethod
    def _page_size_has_a_name(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("page_size_param", "unreadable") is None:
            raise ValueError("is sent nowhere unless page_size_param names its query parameter")
        return value

    @field_validator("ca_bundle")
    @classmethod
    def _bundle_is_there_and_of_use(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and not info.data.get("verify_ssl", True):
            raise ValueError("has no effect while verify_ssl is off")
        try:
            exists = value is None or Path(value).exists()
        except (OSError, ValueError):
            exists = False
        if not exists:
            raise ValueError("there is no such file or folder on this machine")
        return value

    @field_validator("allow_http")
    @classmethod
    def _http_is_allowed(cls, value: bool, info: ValidationInfo) -> bool:
        parts = urlsplit(info.data.get("base_url", ""))
        if parts.scheme == "http" and not value and not is_loopback(parts.hostname):
            raise ValueError("host: http would send the token in the clear: use https, or set allow_http")
        return value

    @classmethod
    def checked(cls, values: dict[str, Any]) -> Settings:
        """Make settings of ``values``.

        :raises FsmInputError: one message that names every bad field as the connection's form does.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise FsmInputError(
                "; ".join(
                    _message(
                        str(detail["loc"][0]) if detail["loc"] else "",
                        detail["type"],
                        detail["msg"],
                    )
                    for detail in error.errors(include_url=False, include_input=False)
                )
            ) from None


def _message(field: str, kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        known = ", ".join(name for name in Settings.model_fields if name not in _SHOWN_AS)
        return f"{field}: is not a setting; these are: {known}"
    text = "is missing" if kind == "missing" else text.removeprefix("Value error, ")
    return text if text.startswith("host: ") else f"{_SHOWN_AS.get(field, field)}: {text}"


def is_loopback(hostname: str | None) -> bool:
    """Tell whether a host is this machine, by its name alone."""
    if hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(hostname or "").is_loopback
    except ValueError:
        return False
