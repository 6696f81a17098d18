"""Request bodies and parameters, validated strictly before they are sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import partial
from json import dumps
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypedDict, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictStr,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from fsm_provider.api import validation
from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.models import CREATE_JOB, Integer, wire_name
from fsm_provider.api.redaction import TOKEN_LENGTH


class _Payload(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=wire_name, validate_by_name=True, extra="forbid", defer_build=True
    )


def _integer_to_text(value: Any) -> Any:
    if value in validation.NOTHING:
        raise ValueError(validation.FOUND_NOTHING.format(value))
    return str(value) if type(value) is int else value


def _amount_to_text(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError("should be text or Decimal: a float is not exact")
    return format(value, "f") if isinstance(value, Decimal) else _integer_to_text(value)


def _check_characters(value: Any) -> Any:
    if validation.SURROGATE.search(dumps(value, ensure_ascii=False, allow_nan=False)):
        raise ValueError(validation.HALF_A_CHARACTER)
    return value


Text = Annotated[StrictStr, StringConstraints(min_length=0)]
"""Of complete characters, which pydantic checks only where it has something else to check."""
TextID = Annotated[Text, BeforeValidator(_integer_to_text)]
_Decimal = StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?$")
_Complete = AfterValidator(_check_characters)


EXTRA_FIELDS = "extra_fields"


class JobCreate(_Payload):
    """The body of a job creation. Every field is optional, and only given fields are sent.

    :param quoted_amount: digits with at most one decimal point, as text, ``Decimal`` or integer.
    :param skills: sent unchanged: the specification does not show its format.
    :param extra_fields: fields that the specification does not show, by the service's names; sent
        unchanged.
    """

    customer_contact_id: TextID | None = None
    site_contact_id: TextID | None = None
    settings_job_description_id: TextID | None = None
    notes: Text | None = None
    service_reminder_instance1_id: Integer | None = None
    service_reminder_instance2_id: Integer | None = None
    service_reminder_instance3_id: Integer | None = None
    skills: Annotated[JsonValue, _Complete] = None
    customer_reference: TextID | None = None
    quoted_amount: Annotated[StrictStr, _Decimal, BeforeValidator(_amount_to_text)] | None = None
    priority: Text | None = None
    business_unit_id: Integer | None = None
    user_group_id: Integer | None = None
    extra_fields: Annotated[dict[str, JsonValue], _Complete] = Field({}, alias="extra_fields")

    @field_validator(EXTRA_FIELDS)
    @classmethod
    def _are_further_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        if named := [name for name in value if name in JOB_FIELDS]:
            raise ValueError(f"{named[0]} is a field of the job: give it there")
        return value

    def body(self) -> dict[str, Any]:
        given = self.model_dump(
            mode="json", by_alias=True, exclude_unset=True, exclude={"extra_fields"}
        )
        sent = {
            name: value for name, value in given.items() if value is not None or name == "skills"
        }
        return {**sent, **self.extra_fields}


JOB_FIELDS = {
    name: wire_name(attribute)
    for attribute in JobCreate.model_fields
    for name in (attribute, wire_name(attribute))
    if attribute != EXTRA_FIELDS
}
"""The service's name of each field, by that name and in snake_case."""


class JobFields(TypedDict, total=False):
    """The fields of a :class:`JobCreate` under the service's names, to annotate a dictionary with."""

    customerContactID: int | str
    siteContactID: int | str
    settingsJobDescriptionID: int | str
    notes: str
    serviceReminderInstance1ID: int | str
    serviceReminderInstance2ID: int | str
    serviceReminderInstance3ID: int | str
    skills: Any
    customerReference: int | str
    quotedAmount: Decimal | int | str
    priority: str
    businessUnitID: int | str
    userGroupID: int | str
    extra_fields: dict[str, Any]


class JobRequest(_Payload):
    """A job to create: its property, its body and a key that identifies it when it is given again."""

    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=None)

    property_id: Annotated[int | str, BeforeValidator(partial(validation.parse_identifier, ""))]
    job: JobCreate
    key: Annotated[TextID, StringConstraints(min_length=1, strip_whitespace=True)] | None = None

    @property
    def path(self) -> str:
        return CREATE_JOB.path.format(propertyID=quote(str(self.property_id), safe=""))

    @property
    def content(self) -> tuple[str, dict[str, Any]]:
        """Path and body, by which a ledger tells one job from another."""
        return self.path, self.job.body()

    @property
    def subject(self) -> dict[str, Any]:
        """The fields to look the job up by, under the service's names."""
        reference = self.job.customer_reference
        return {
            "propertyID": self.property_id,
            **({"customerReference": reference} if reference else {}),
        }


WebhookObject = Literal[
    "properties", "assets", "contracts", "opportunities", "jobs", "appointments"
]
_OneOrSeveral = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)


class WebhookCreate(_Payload):
    """The parameters of a webhook registration.

    :param event_types: each ``<object>.<event>``, with this ``object``; a single one may be text.
    :param target_url: the http(s) URL that receives the notifications.
    """

    object: WebhookObject
    event_types: Annotated[list[Text], _OneOrSeveral] = Field(min_length=1)
    target_url: Text = Field(repr=False)
    description: Text | None = None

    @field_validator("event_types")
    @classmethod
    def _event_types_are_of_the_object(cls, value: list[str], info: ValidationInfo) -> list[str]:
        watched = info.data.get("object", "")
        wrong = [one for one in value if not re.fullmatch(rf"{watched}\.[^\s,]+", one)]
        if watched and wrong:
            raise ValueError(f"{wrong[0]!r} is not of the form {watched}.<event>")
        if len(set(value)) < len(value):
            raise ValueError("an event type is given twice")
        return value

    @field_validator("target_url")
    @classmethod
    def _target_is_a_url(cls, value: str) -> str:
        parts = urlsplit(value)
        is_web = parts.scheme in ("http", "https") and parts.hostname
        if not is_web or not value.isprintable() or " " in value:
            raise ValueError("is not an absolute http(s) URL")
        return value

    def query(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)

    @property
    def subject(self) -> dict[str, Any]:
        return {"object": self.object, "eventTypes": self.event_types}

    @property
    def confidential(self) -> tuple[str, ...]:
        """The texts that no error may quote: the URL, and parts of it that may be tokens."""
        parts = urlsplit(self.target_url)
        tokens = [segment for segment in parts.path.split("/") if len(segment) >= TOKEN_LENGTH]
        return (self.target_url, *tokens, *filter(None, [parts.query]))


_MESSAGES = {
    "extra_forbidden": "is not known here. What belongs in a job: "
    f"{', '.join(dict.fromkeys(JOB_FIELDS.values()))}; what is not specified goes under its extra_fields",
    "string_pattern_mismatch": "should be an amount such as '120' or '99.50', as text or Decimal",
    "string_unicode": validation.HALF_A_CHARACTER,
}


PayloadT = TypeVar("PayloadT", bound=_Payload)


def check(
    model: type[PayloadT],
    payload: PayloadT | Mapping[str, Any],
    what: str,
    names: Mapping[Any, str] = MappingProxyType({}),
) -> PayloadT:
    """Validate ``payload`` as a ``model``; an FsmInputError names every invalid field, without its
    value.

    :param what: the caller's name for it, e.g. ``jobs[3]``, which starts each message; may be
        empty.
    :param names: the caller's names for fields, by their location in the model.
    """

    def place_of(location: validation.Location) -> validation.Location:
        return (what, names[location]) if location in names else (what, *location)

    return validation.validated(
        model.model_validate, payload, place_of=place_of, messages=_MESSAGES
    )


def check_job_requests(jobs: Iterable[Any], *, refuse_equal: bool = False) -> list[JobRequest]:
    """Validate jobs; the error names every invalid field, one job per line.

    :param refuse_equal: refuse equal jobs without keys, as it is not known whether both are wanted.
    """
    requests: list[JobRequest] = []
    problems: list[str] = []
    seen: dict[tuple[str | None, str], tuple[int, JobRequest]] = {}
    for index, job in enumerate(jobs):
        try:
            request = check(JobRequest, job, f"jobs[{index}]")
        except FsmInputError as error:
            key = job.get("key") if isinstance(job, dict) else None
            problems.append(f"{error}{f' (key {key!r})' if key else ''}")
            continue
        requests.append(request)
        if (key := request.key) is not None:
            first, same = seen.setdefault((key, ""), (index, request))
            if same.content != request.content:
                problems.append(
                    f"jobs[{index}].key: '{key}' is the key of jobs[{first}], another job"
                )
        elif refuse_equal:
            first, _ = seen.setdefault(
                (None, dumps(request.content, sort_keys=True)), (index, request)
            )
            if first != index:
                problems.append(
                    f"jobs[{index}]: is equal to jobs[{first}]: leave one out, or give both keys"
                )
    if problems:
        raise FsmInputError("\n".join(problems))
    return requests
