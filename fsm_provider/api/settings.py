"""The settings of a service, described once: for the connection's form, the documentation and the
errors.
"""

from __future__ import annotations

import ipaddress
import os
from functools import partial
from typing import Annotated, Any
from urllib.parse import SplitResult, quote, urlsplit
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field, SecretStr, StringConstraints, ValidationInfo, field_validator

from fsm_provider.api.validation import HEADER_NAME, STRAY_PERCENT, validated

DEFAULT_PORTS = {"http": 80, "https": 443}
EXAMPLE_URL = "https://api.example.com/v1"
_SHOWN_AS = {"base_url": "host", "token": "password", "account": "login"}
HeaderName = Annotated[str, StringConstraints(pattern=f"^{HEADER_NAME.pattern}$")]
Name = Annotated[str, StringConstraints(min_length=1, pattern=r"^\S+$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _setting(default: Any, title: str, description: str, **limits: Any) -> Any:
    return Field(default, title=title, description=description, **limits)


class Settings(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """Validated settings of one service: the fields of the connection's form, with its labels and
    texts.
    """

    # First, as base_url depends on it.
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
        "Where the link Job leads, e.g. https://app.example.com/jobs/{id}; {propertyID} is the job's "
        "property. Empty: the URL that the service returns with the job.",
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
    server_timezone: ZoneInfo = _setting(
        ZoneInfo("UTC"), "Server time zone", "Of times without a zone."
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
    _connection: str = ""

    @field_validator("base_url")
    @classmethod
    def _token_is_not_sent_in_the_clear(cls, value: str, info: ValidationInfo) -> str:
        parts = split_url(value, EXAMPLE_URL, is_base=True)
        if is_readable_on_the_way(parts) and not info.data.get("allow_http", True):
            raise ValueError("http would send the token in the clear: use https, or set allow_http")
        return value.rstrip("/")

    @field_validator("web_url")
    @classmethod
    def _leads_to_a_job(cls, value: str | None) -> str | None:
        example = "https://app.example.com/jobs/{id}"
        if value and ("{id}" not in value or is_readable_on_the_way(split_url(value, example))):
            raise ValueError(f"should be https, and contain {{id}}: {example}")
        return value or None

    @field_validator("token")
    @classmethod
    def _fits_a_header(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if not text:
            raise ValueError("is empty: it should be the API token")
        quoted = text[0] == text[-1] and text[0] in "\"'`"
        if quoted or " " in text or not (text.isascii() and text.isprintable()):
            raise ValueError(
                "should be the bare token: printable ASCII without blanks, not in quotes"
            )
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
        if value is not None and not os.path.exists(value):  # noqa: PTH110 - it takes any text
            raise ValueError("there is no such file or folder on this machine")
        return value

    @property
    def service(self) -> str:
        """Base URL and account, the same for each way to write them."""
        parts = urlsplit(self.base_url)
        host = (
            parts.netloc.lower().removesuffix(f":{DEFAULT_PORTS[parts.scheme]}").removesuffix(":")
        )
        account = f" (account {self.account})" if self.account else ""
        return f"{parts.scheme}://{host}{parts.path}{account}"

    @classmethod
    def form_fields(cls) -> dict[str, dict[str, Any]]:
        """Return the fields of the connection's extra as Airflow's ``conn-fields``."""
        every = cls.model_json_schema()["properties"]
        every["allow_http"] = every.pop("allow_http")  # last
        fields = {}
        for name in [one for one in every if one not in _SHOWN_AS]:
            about, schema = every[name], every[name].get("anyOf", [every[name]])[0]
            kept = {key: schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema}
            description = about["description"]
            if (default := about.get("default")) is not None:
                kept["default"] = default
                description += "" if isinstance(default, bool) else f" Default: {default}."
            form_schema = {"type": [schema["type"], "null"], **kept}
            fields[name] = {
                "label": about["title"],
                "description": description,
                "schema": form_schema,
            }
        return fields

    @classmethod
    def checked(cls, values: dict[str, Any]) -> Settings:
        """Validate ``values``; an FsmInputError names every invalid field as the connection's form
        does.
        """
        names = ", ".join(sorted(cls.model_fields.keys() - _SHOWN_AS.keys()))
        messages = {"extra_forbidden": f"is not a setting; these are: {names}"}
        shown = partial(map, lambda name: _SHOWN_AS.get(name, name))
        return validated(cls.model_validate, values, place_of=shown, messages=messages)


def split_url(url: str, example: str, *, is_base: bool = False) -> SplitResult:
    """Split an http(s) URL; raise ValueError if it is none, or, as a base, cannot be followed by a
    path.
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
    if is_base and ("?" in url or "#" in url):
        raise ValueError("should end with its path: no ? and no #")
    if is_base and STRAY_PERCENT.search(url):
        raise ValueError("has a % that begins no encoded character: write it as %25")
    return parts


def is_readable_on_the_way(parts: SplitResult) -> bool:
    """Return whether what is sent to a URL leaves this machine in the clear; its host is not
    resolved.
    """
    if parts.scheme != "http" or parts.hostname == "localhost":
        return False
    try:
        return not ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True


def job_page_url(web_url: str, job_id: int | str, property_id: int | str) -> str:
    """Return the URL of a job's page: ``web_url`` of the settings for this job."""
    url = web_url.replace("{id}", quote(str(job_id), safe=""))
    return url.replace("{propertyID}", quote(str(property_id), safe=""))
