"""The settings of a service, described once: for the connection's form, pages and errors."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, quote, urlsplit
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field, SecretStr, StringConstraints, ValidationInfo, field_validator

from fsm_provider.api.validation import (
    HEADER_NAME,
    STRAY_PERCENT,
    JsonObject,
    Location,
    validate_with,
)

DEFAULT_PORTS = {"http": 80, "https": 443}
EXAMPLE_URL = "https://api.example.com/v1"
CONNECTION_FIELDS = {"base_url": "host", "token": "password", "account": "login"}
"""The field of Airflow's connection that holds a setting; the other settings are in its extra."""
HeaderName = Annotated[str, StringConstraints(pattern=f"^{HEADER_NAME.pattern}$")]
Name = Annotated[str, StringConstraints(min_length=1, pattern=r"^\S+$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _setting(default: Any, title: str, description: str, **limits: Any) -> Any:
    return Field(default, title=title, description=description, **limits)


class Settings(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """Validated settings of one service, with the labels and texts of the connection's form."""

    # First, as base_url's validator reads it.
    allow_http: bool = _setting(
        False, "Allow http", "Send the token in the clear to a host that is not this machine."
    )
    base_url: str = _setting(..., "Base URL", "The URL before the specification's paths.")
    token: SecretStr = _setting(..., "API token", "The bearer token.")
    account: str = _setting("", "Account", "Tells the writes of accounts with one base URL apart.")
    state_conn_id: Name | None = _setting(
        None,
        "Ledger's connection",
        "The connection of a SQL database that records what is sent: once across runs, DAGs and "
        "Airflows; before Airflow 3.3 also the watermarks of assets. Empty: Airflow 3.3 records "
        "it, for each run.",
    )
    web_url: str | None = _setting(
        None,
        "Page of a job",
        "Where the link Job leads, e.g. https://app.example.com/jobs/{id}; {propertyID} is the "
        "job's property. Empty: the URL that the service returns with the job.",
    )
    api_version: Annotated[
        str, StringConstraints(strip_whitespace=True, pattern=r"^[\x20-\x7e]*$")
    ] = _setting("2.0", "API version", "Sent as X-API-VERSION with job creation. Empty: not sent.")
    cursor_param: Name = _setting(
        "cursor", "Cursor parameter", "The query parameter of a listing's cursor."
    )
    page_size_param: Name | None = _setting(
        None, "Page size parameter", "Empty: no page size is sent."
    )
    page_size: int | None = _setting(None, "Page size", "Records per page.", ge=1)
    no_forms_response: Literal["404", "empty"] | None = _setting(
        None,
        "Response for no forms",
        "What GET /forms returns if no form matches a filter: 404, or empty (no body, null or {}). "
        "Empty: a listing without records.",
    )
    server_timezone: ZoneInfo = _setting(
        ZoneInfo("UTC"), "Server time zone", "Of the service's times without a zone."
    )
    timeout: Positive = _setting(
        30,
        "Timeout (s)",
        "Seconds to connect, to send a request, and for each chunk of a response.",
    )
    max_retries: int = _setting(
        4,
        "Retries",
        "Repeats of a request that is safe to repeat, within two minutes of waiting.",
        ge=0,
    )
    max_response_mb: int = _setting(
        64,
        "Response size (MiB)",
        "A larger response, decoded, is an error; PDFs have their own limit.",
        ge=1,
    )
    max_requests_per_second: Positive | None = _setting(
        None, "Requests per second", "Maximum of one process. Empty: no limit."
    )
    verify_ssl: bool = _setting(
        True,
        "Verify TLS",
        "Whether certificates of the service, and of other hosts of PDFs, are checked.",
    )
    ca_bundle: str | None = _setting(
        None, "CA bundle", "Path of a file or folder of certificates to trust."
    )
    idempotency_header: HeaderName | None = _setting(
        None,
        "Idempotency header",
        "The header in which the service reads a key, so that a write that is sent again takes "
        "effect once, e.g. Idempotency-Key. Empty: what may have been written is not repeated.",
    )
    idempotency_hours: Positive = _setting(
        20, "Idempotency (h)", "Hours for which the service remembers such a key."
    )
    # The id of Airflow's connection, which the hook sets, for messages.
    _connection: str = ""

    @field_validator("base_url")
    @classmethod
    def _token_is_not_sent_in_the_clear(cls, value: str, info: ValidationInfo) -> str:
        parts = split_url(value, EXAMPLE_URL, is_base=True)
        # allow_http is missing here if it is itself invalid: one error about it is enough.
        is_http_allowed = info.data.get("allow_http", True)
        if is_readable_on_the_way(parts) and not is_http_allowed:
            raise ValueError("http would send the token in the clear: use https, or set allow_http")
        return value.rstrip("/")

    @field_validator("web_url")
    @classmethod
    def _leads_to_a_job(cls, value: str | None) -> str | None:
        if not value:
            return None
        example = "https://app.example.com/jobs/{id}"
        if "{id}" not in value or is_readable_on_the_way(split_url(value, example)):
            raise ValueError(f"should be https, and contain {{id}}: {example}")
        return value

    @field_validator("token")
    @classmethod
    def _fits_a_header(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if not text:
            raise ValueError("is empty: it should be the API token")
        is_quoted = text[0] == text[-1] and text[0] in "\"'`"
        is_printable_ascii = text.isascii() and text.isprintable()
        if is_quoted or " " in text or not is_printable_ascii:
            raise ValueError(
                "should be the bare token: printable ASCII without blanks, not in quotes"
            )
        return value

    @field_validator("page_size")
    @classmethod
    def _page_size_has_a_name(cls, value: int | None, info: ValidationInfo) -> int | None:
        # page_size_param is missing here if it is itself invalid: one error is enough.
        param = info.data.get("page_size_param", "invalid")
        if value is not None and param is None:
            raise ValueError("is sent nowhere unless page_size_param names its query parameter")
        return value

    @field_validator("ca_bundle")
    @classmethod
    def _bundle_is_there(cls, value: str | None) -> str | None:
        if value is not None and not os.path.exists(value):  # noqa: PTH110 - it takes any text
            raise ValueError("there is no such file or folder on this machine")
        return value

    @property
    def service(self) -> str:
        """Base URL and account, the same for each way to write them."""
        parts = urlsplit(self.base_url)
        default_port = f":{DEFAULT_PORTS[parts.scheme]}"
        host = parts.netloc.lower().removesuffix(default_port).removesuffix(":")
        account = f" (account {self.account})" if self.account else ""
        return f"{parts.scheme}://{host}{parts.path}{account}"

    @classmethod
    def form_fields(cls) -> dict[str, JsonObject]:
        """Return the fields of the connection's extra as Airflow's ``conn-fields``.

        :return: for each setting, in the order of the form, its ``label``, its ``description`` and
            its JSON ``schema``.
        """
        schemas = cls.model_json_schema()["properties"]
        names = [name for name in schemas if name not in CONNECTION_FIELDS]
        # It is the first setting, and the last field of the form.
        names.remove("allow_http")
        names.append("allow_http")
        return {name: _form_field(schemas[name]) for name in names}

    @classmethod
    def parse(cls, values: JsonObject) -> Settings:
        """Return the settings of ``values``, by their names.

        :raises FsmInputError: names every invalid field as the connection's form does.
        """

        def place_in_form(location: Location) -> Iterable[Any]:
            return [CONNECTION_FIELDS.get(str(part), part) for part in location]

        names = ", ".join(sorted(cls.model_fields.keys() - CONNECTION_FIELDS.keys()))
        messages = {"extra_forbidden": f"is not a setting; these are: {names}"}
        return validate_with(cls.model_validate, values, place_of=place_in_form, messages=messages)


def _form_field(setting: JsonObject) -> JsonObject:
    """Return a field of the connection's form, made of the JSON schema of a setting."""
    # The schema of an optional setting is a choice of its type and null.
    type_schema = setting["anyOf"][0] if "anyOf" in setting else setting
    schema: JsonObject = {"type": [type_schema["type"], "null"]}
    for limit in ("minimum", "exclusiveMinimum"):
        if limit in type_schema:
            schema[limit] = type_schema[limit]
    description = setting["description"]
    default = setting.get("default")
    if default is not None:
        schema["default"] = default
        if not isinstance(default, bool):
            description += f" Default: {default}."
    return {"label": setting["title"], "description": description, "schema": schema}


def split_url(url: str, example: str, *, is_base: bool = False) -> SplitResult:
    """Split an http(s) URL.

    :param example: a URL of the expected kind, for the message.
    :param is_base: whether a path is to be appended to it.
    :raises ValueError: if it is no such URL, or holds what it should not.
    """
    wanted = f"should be a URL such as {example}"
    try:
        parts = urlsplit(url)
        hostname = parts.hostname
        _ = parts.port  # raises ValueError unless it is a port's number
    except ValueError:
        raise ValueError(wanted) from None
    if not hostname or parts.scheme not in DEFAULT_PORTS:
        raise ValueError(wanted)
    if "@" in parts.netloc:
        raise ValueError("should contain no user or password")
    if not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("should contain no blanks and no backslash")
    if is_base and ("?" in url or "#" in url):
        raise ValueError("should end with its path: no ? and no #")
    if is_base and STRAY_PERCENT.search(url):
        raise ValueError("has a % that begins no encoded character: write it as %25")
    return parts


def is_readable_on_the_way(parts: SplitResult) -> bool:
    """Return whether what is sent to a URL leaves this machine in the clear.

    The URL's host is not resolved: a name other than ``localhost`` counts as another machine.
    """
    if parts.scheme != "http" or parts.hostname == "localhost":
        return False
    try:
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return True
    return not address.is_loopback


def job_page_url(web_url: str, job_id: int | str, property_id: int | str) -> str:
    """Return the URL of a job's page: ``web_url`` of the settings for this job."""
    url = web_url.replace("{id}", quote(str(job_id), safe=""))
    return url.replace("{propertyID}", quote(str(property_id), safe=""))
