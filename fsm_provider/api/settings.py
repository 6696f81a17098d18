"""The validated settings of a service.

The names are those of the Airflow connection's form, where ``base_url`` is ``host`` and ``token`` is
``password``.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import SplitResult, urlsplit
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.payloads import EventTypesStyle
from fsm_provider.api.validation import (
    HEADER_NAME,
    OWN_HEADERS,
    STRAY_PERCENT,
    describe_invalid_fields,
    dotted_name,
)

DEFAULT_PORTS = {"http": 80, "https": 443}
EXAMPLE_URL = "https://api.example.com/v1"
_SHOWN_AS = {"base_url": "host", "token": "password", "account": "login"}
_HEADERS_WITH_A_MEANING = OWN_HEADERS | {
    *("accept", "accept-encoding", "connection", "content-encoding", "content-type", "cookie", "expect"),
    *("host", "te", "trailer", "upgrade", "user-agent", "x-api-version"),
}
Name = Annotated[str, StringConstraints(min_length=1, pattern=r"^\S+$")]


def _check_header_name(name: str) -> str:
    if not HEADER_NAME.fullmatch(name) or name.lower() in _HEADERS_WITH_A_MEANING:
        raise ValueError("should be the name of a header of its own, such as Idempotency-Key")
    return name


HeaderName = Annotated[str, AfterValidator(_check_header_name)]


class Settings(BaseModel):
    """Validated settings of one service.

    :param allow_http: send the token in the clear to a host that is not loopback.
    :param base_url: the URL before the specification's paths; https, unless the host is loopback
        or ``allow_http`` is set.
    :param token: the bearer token.
    :param account: tells the accounts of one base URL apart: what is written once is written once for each.
    :param api_version: sent as ``X-API-VERSION`` with job creation; if empty, not sent.
    :param cursor_param: the query parameter that carries a listing's cursor.
    :param page_size_param: the query parameter that carries the page size.
    :param page_size: records per page; needs ``page_size_param``.
    :param event_types_style: how a webhook registration passes several event types.
    :param server_timezone: the zone of date-times that carry none.
    :param timeout: seconds to wait for a connection, until a request is sent, and for each chunk of a
        response.
    :param max_retries: repeats of one request after failures that are safe to repeat, as long as its waits
        add up to at most two minutes.
    :param max_requests_per_second: limit of this process for one ``base_url``.
    :param verify_ssl: whether the service's certificate is checked.
    :param ca_bundle: path of a file or folder of certificates to check it against.
    :param state_conn_id: the Airflow connection of the SQL database that holds the ledger, and before Airflow
        3.3 the watermarks of assets.
    :param idempotency_header: the header in which the service reads a key of each write, so that the same
        write sent again takes effect once.
    :param idempotency_hours: how long the service remembers such a key.
    :param web_url: the URL of a job's page for people, with ``{id}`` and perhaps ``{propertyID}``.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    allow_http: bool = False  # first, as base_url depends on it
    base_url: str
    token: SecretStr
    account: str = ""
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
    state_conn_id: Name | None = None
    idempotency_header: HeaderName | None = None
    idempotency_hours: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    web_url: str | None = None

    @field_validator("base_url")
    @classmethod
    def _is_a_plain_url(cls, value: str, info: ValidationInfo) -> str:
        needs_https = _needs_https(value, example=EXAMPLE_URL)
        if "?" in value or "#" in value:
            raise ValueError("should end with its path: no ? and no #")
        if STRAY_PERCENT.search(value):
            raise ValueError("has a % that begins no encoded character: write it as %25")
        if needs_https and not info.data.get("allow_http", True):
            raise ValueError("http would send the token in the clear: use https, or set allow_http")
        return value.rstrip("/")

    @field_validator("web_url")
    @classmethod
    def _leads_to_a_job(cls, value: str | None) -> str | None:
        if value is None:
            return None
        example = "https://app.example.com/jobs/{id}"
        placeholders = set(re.findall(r"\{[^{}]*\}|[{}]", value))
        if "{id}" not in placeholders or placeholders - {"{id}", "{propertyID}"}:
            raise ValueError(f"should contain {{id}}, and no placeholder but {{propertyID}}: {example}")
        if _needs_https(value, example=example) or "{" in urlsplit(value).netloc:
            raise ValueError(f"should be https, and its host no placeholder: {example}")
        return value

    @field_validator("token")
    @classmethod
    def _fits_a_header(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if not text:
            raise ValueError("is empty: it should be the API token")
        quoted = text[0] == text[-1] and text[0] in "\"'`"
        if quoted or " " in text or not (text.isascii() and text.isprintable()):
            raise ValueError("should be the bare token: printable ASCII without blanks, not in quotes")
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

    @property
    def service(self) -> str:
        """Base URL and account, the same for each way to write them."""
        parts = split_url(self.base_url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        port = "" if parts.port in (None, DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
        account = f" (account {self.account})" if self.account else ""
        return f"{parts.scheme}://{host}{port}{parts.path}{account}"

    @classmethod
    def checked(cls, values: dict[str, Any]) -> Settings:
        """Validate ``values``.

        :raises FsmInputError: one message that names every invalid field as the connection's form does.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            names = ", ".join(sorted(cls.model_fields.keys() - _SHOWN_AS.keys()))
            messages = {"extra_forbidden": f"is not a setting; these are: {names}"}
            described = describe_invalid_fields(error, cls, name_for=_shown_name, messages=messages)
        raise FsmInputError(described)  # not inside except: pydantic's error holds the token


def split_url(url: str, *, example: str = EXAMPLE_URL) -> SplitResult:
    """Split an http(s) URL.

    :raises ValueError: if it is none.
    """
    try:
        parts = urlsplit(url)
        hostname, _ = parts.hostname, parts.port
    except ValueError:
        hostname = None
    if not hostname or parts.scheme not in DEFAULT_PORTS:
        raise ValueError(f"should be a URL such as {example}")
    return parts


def _needs_https(url: str, *, example: str) -> bool:
    """Return whether what is sent to a URL could be read on the way.

    :raises ValueError: if it is not an http(s) URL, or has a user, blanks or a backslash.
    """
    parts = split_url(url, example=example)
    if "@" in parts.netloc:
        raise ValueError("should contain no user or password")
    if not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("should contain no blanks and no backslash")
    return parts.scheme == "http" and not is_loopback(parts.hostname)


def _shown_name(location: tuple[int | str, ...]) -> str:
    return dotted_name(tuple(_SHOWN_AS.get(str(name), name) for name in location))


def is_loopback(hostname: str | None) -> bool:
    """Return whether a host name or IP address is loopback, without resolving it."""
    if hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(hostname or "").is_loopback
    except ValueError:
        return False
