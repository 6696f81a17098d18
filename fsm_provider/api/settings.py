"""The settings of a service, described once: for the connection's form, the documentation and the errors."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Annotated, Any, ClassVar, Literal
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
EventTypesStyle = Literal["separate", "repeat", "brackets", "comma"]
Name = Annotated[str, StringConstraints(min_length=1, pattern=r"^\S+$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _check_header_name(name: str) -> str:
    if not HEADER_NAME.fullmatch(name) or name.lower() in _HEADERS_WITH_A_MEANING:
        raise ValueError("should be the name of a header of its own, such as Idempotency-Key")
    return name


HeaderName = Annotated[str, AfterValidator(_check_header_name)]


class Settings(BaseModel):
    """Validated settings of one service: the fields of the connection's form, with its labels and texts.

    In the connection ``base_url`` is ``host``, ``token`` is ``password`` and ``account`` is ``login``.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    allow_http: bool = Field(  # first, as base_url depends on it
        False,
        title="Allow http",
        description="Send the token in the clear to a host that is not this machine.",
    )
    base_url: str = Field(title="Base URL", description="The URL before the specification's paths.")
    token: SecretStr = Field(title="API token", description="The bearer token.")
    account: str = Field(
        "",
        title="Account",
        description="Tells accounts with one base URL apart: what is written once is written once for each.",
    )
    state_conn_id: Name | None = Field(
        None,
        title="Ledger's connection",
        description="The connection of a SQL database that records what is sent: once across runs, DAGs and "
        "Airflows; before Airflow 3.3 also the watermarks of assets. Empty: Airflow 3.3 records it, for each "
        "run.",
    )
    web_url: str | None = Field(
        None,
        title="Page of a job",
        description="Where the link Job leads, e.g. https://app.example.com/jobs/{id}; {propertyID} is the "
        "job's property. Empty: the URL that the service returns with the job.",
    )
    api_version: Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[\x20-\x7e]*$")] = Field(
        "2.0", title="API version", description="Sent as X-API-VERSION with job creation. Empty: not sent."
    )
    cursor_param: Name = Field(
        "cursor", title="Cursor parameter", description="The query parameter that carries a listing's cursor."
    )
    page_size_param: Name | None = Field(
        None,
        title="Page size parameter",
        description="The query parameter of the page size. Empty: not sent.",
    )
    page_size: int | None = Field(
        None, ge=1, title="Page size", description="Records per page; sent as the page size parameter."
    )
    event_types_style: EventTypesStyle = Field(
        "separate",
        title="Event types style",
        description="How several event types of a webhook are passed: one registration each (separate), "
        "eventTypes=a&eventTypes=b (repeat), eventTypes[]=a (brackets) or eventTypes=a,b (comma).",
    )
    server_timezone: ZoneInfo = Field(
        ZoneInfo("UTC"), title="Server time zone", description="The zone of times that carry none."
    )
    timeout: Positive = Field(
        30,
        title="Timeout (s)",
        description="Seconds for a connection, for sending a request, and for each chunk of a response.",
    )
    max_retries: int = Field(
        4,
        ge=0,
        title="Retries",
        description="Repeats of a request that is safe to repeat, within two minutes of waiting.",
    )
    max_response_mb: int = Field(
        64,
        ge=1,
        title="Response size (MiB)",
        description="A larger response, decoded, is an error. PDFs have a limit of their own.",
    )
    max_requests_per_second: Positive | None = Field(
        None, title="Requests per second", description="Maximum of one process. Empty: no limit."
    )
    verify_ssl: bool = Field(
        True,
        title="Verify TLS",
        description="Whether the certificates of the service, and of other hosts of PDFs, are checked.",
    )
    ca_bundle: str | None = Field(
        None, title="CA bundle", description="Path of a file or folder of certificates to check them against."
    )
    idempotency_header: HeaderName | None = Field(
        None,
        title="Idempotency header",
        description="The header in which the service reads a key, so that a write that is sent again takes "
        "effect once, e.g. Idempotency-Key. Empty: what may have been written is not repeated.",
    )
    idempotency_hours: Positive = Field(
        20, title="Idempotency (h)", description="Hours for which the service remembers such a key."
    )
    _connection: str = ""

    @field_validator("base_url")
    @classmethod
    def _is_a_plain_url(cls, value: str, info: ValidationInfo) -> str:
        parts = _split_url(value, example=EXAMPLE_URL)
        if "?" in value or "#" in value:
            raise ValueError("should end with its path: no ? and no #")
        if STRAY_PERCENT.search(value):
            raise ValueError("has a % that begins no encoded character: write it as %25")
        if is_readable_on_the_way(parts) and not info.data.get("allow_http", True):
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
        parts = _split_url(value, example=example)
        if is_readable_on_the_way(parts) or "{" in parts.netloc:
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

    @field_validator("page_size")
    @classmethod
    def _page_size_has_a_name(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("page_size_param", "unreadable") is None:
            raise ValueError("is sent nowhere unless page_size_param names its query parameter")
        return value

    @field_validator("ca_bundle")
    @classmethod
    def _bundle_is_there(cls, value: str | None) -> str | None:
        # Unlike Path.exists, it takes any text.
        if value is not None and not os.path.exists(value):  # noqa: PTH110
            raise ValueError("there is no such file or folder on this machine")
        return value

    @property
    def service(self) -> str:
        """Base URL and account, the same for each way to write them."""
        parts = urlsplit(self.base_url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        port = "" if parts.port in (None, DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
        account = f" (account {self.account})" if self.account else ""
        return f"{parts.scheme}://{host}{port}{parts.path}{account}"

    @classmethod
    def form_fields(cls) -> dict[str, dict[str, Any]]:
        """Return the fields of the connection's extra as Airflow's ``conn-fields``."""
        every = cls.model_json_schema()["properties"]
        every["allow_http"] = every.pop("allow_http")  # last
        fields = {}
        for name in [one for one in every if one not in _SHOWN_AS]:
            about, schema = every[name], every[name].get("anyOf", [every[name]])[0]
            kept = {key: schema[key] for key in ("minimum", "exclusiveMinimum", "enum") if key in schema}
            description = about["description"]
            if (default := about.get("default")) is not None:
                kept["default"] = default
                description += "" if isinstance(default, bool) else f" Default: {default}."
            form_schema = {"type": [schema["type"], "null"], **kept}
            fields[name] = {"label": about["title"], "description": description, "schema": form_schema}
        return fields

    @classmethod
    def checked(cls, values: dict[str, Any]) -> Settings:
        """Validate ``values``.

        :raises FsmInputError: one message that names every invalid field as the connection's form does.
        """

        def shown(location: tuple[int | str, ...]) -> str:
            return dotted_name(tuple(_SHOWN_AS.get(str(name), name) for name in location))

        try:
            return cls.model_validate(values)
        except ValidationError as error:
            names = ", ".join(sorted(cls.model_fields.keys() - _SHOWN_AS.keys()))
            messages = {"extra_forbidden": f"is not a setting; these are: {names}"}
            described = describe_invalid_fields(error, name_for=shown, messages=messages)
        raise FsmInputError(described)  # not inside except: pydantic's error holds the token


def _split_url(url: str, *, example: str) -> SplitResult:
    """Split an http(s) URL.

    :raises ValueError: if it is none, or has a user, blanks or a backslash.
    """
    try:
        parts = urlsplit(url)
        hostname, _ = parts.hostname, parts.port
    except ValueError:
        hostname = None
    if not hostname or parts.scheme not in DEFAULT_PORTS:
        raise ValueError(f"should be a URL such as {example}")
    if "@" in parts.netloc:
        raise ValueError("should contain no user or password")
    if not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("should contain no blanks and no backslash")
    return parts


def is_readable_on_the_way(parts: SplitResult) -> bool:
    """Return whether what is sent to a URL leaves this machine in the clear; its host is not resolved."""
    if parts.scheme != "http" or parts.hostname == "localhost":
        return False
    try:
        return not ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True
