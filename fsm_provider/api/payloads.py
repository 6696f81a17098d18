"""What the service is asked to create, validated strictly; its requests, and their responses."""

import logging
import re
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from decimal import Decimal
from functools import partial
from json import dumps
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypedDict, TypeVar, cast
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

from fsm_provider.api.errors import FsmInputError, FsmRegistrationError, FsmResponseError
from fsm_provider.api.models import (
    CREATE_JOB,
    REGISTER_WEBHOOK,
    Endpoint,
    Integer,
    Job,
    RecordT,
    Webhook,
    wire_name,
)
from fsm_provider.api.parsing import parse_record, warn_once
from fsm_provider.api.redaction import TOKEN_LENGTH
from fsm_provider.api.request import ApiRequest, write_json
from fsm_provider.api.settings import is_readable_on_the_way
from fsm_provider.api.validation import (
    FOUND_NOTHING,
    HALF_A_CHARACTER,
    MISSING_AS_TEXT,
    SURROGATE,
    JsonObject,
    Location,
    canonical_id,
    check_found,
    parse_identifier,
    parse_key,
    validate_with,
    visible_text,
)

logger: logging.Logger = logging.getLogger(__name__)


class _Payload(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=wire_name, validate_by_name=True, extra="forbid", defer_build=True
    )


def _text_of_integer(value: Any) -> Any:
    """Make text of an integer; refuse what says that a template has found nothing."""
    check_found("", value, as_word=True)
    return str(value) if type(value) is int else value


def _text_of_amount(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError("should be text or Decimal: a float is not exact")
    if isinstance(value, Decimal):
        return format(value, "f")
    return _text_of_integer(value)


def _check_characters(value: Any) -> Any:
    """Refuse JSON values in which any text has half a character."""
    if SURROGATE.search(dumps(value, ensure_ascii=False, allow_nan=False)):
        raise ValueError(HALF_A_CHARACTER)
    return value


Text = Annotated[StrictStr, StringConstraints(min_length=0)]
"""Text without half a character.

The length excludes none: pydantic checks characters only where there is a constraint to check.
"""
TextID = Annotated[Text, BeforeValidator(_text_of_integer)]
_Decimal = StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?$")
_Complete = AfterValidator(_check_characters)

EXTRA_FIELDS = "extra_fields"
HTTP_TARGET = (
    "webhook.target_url: with http, deliveries and a token in the URL can be read on the way: use "
    "https"
)


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
    quoted_amount: Annotated[StrictStr, _Decimal, BeforeValidator(_text_of_amount)] | None = None
    priority: Text | None = None
    business_unit_id: Integer | None = None
    user_group_id: Integer | None = None
    # No field of the service: without an alias of its own it would be called extraFields.
    extra_fields: Annotated[dict[str, JsonValue], _Complete] = Field({}, alias=EXTRA_FIELDS)

    @field_validator(EXTRA_FIELDS)
    @classmethod
    def _are_further_fields(cls, value: JsonObject) -> JsonObject:
        for name in value:
            if name in JOB_FIELDS:
                raise ValueError(f"{name} is a field of the job: give it there")
        return value

    def body(self) -> JsonObject:
        values = self.model_dump(
            mode="json", by_alias=True, exclude_unset=True, exclude={EXTRA_FIELDS}
        )
        # None leaves a field out; but skills are sent unchanged.
        sent = {
            name: value for name, value in values.items() if value is not None or name == "skills"
        }
        return {**sent, **self.extra_fields}


_WIRE_NAMES = {
    attribute: wire_name(attribute)
    for attribute in JobCreate.model_fields
    if attribute != EXTRA_FIELDS
}
JOB_FIELDS = {**_WIRE_NAMES, **{name: name for name in _WIRE_NAMES.values()}}
"""The service's name of each field, by that name and in snake_case."""


class JobFields(TypedDict, total=False):
    """The fields of a :class:`JobCreate` under the service's names, to annotate a dictionary."""

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
    extra_fields: JsonObject


class JobRequest(_Payload):
    """A job to create: its property, its body, and a key that identifies it in later attempts."""

    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=None)

    property_id: Annotated[int | str, BeforeValidator(partial(parse_identifier, ""))]
    job: JobCreate
    key: Annotated[str, BeforeValidator(partial(parse_key, ""))] | None = None

    def request(self) -> ApiRequest:
        """Return the request that creates the job; its subject is what to look the job up by."""
        subject = {"propertyID": self.property_id}
        if self.job.customer_reference:
            subject["customerReference"] = self.job.customer_reference
        return ApiRequest(
            CREATE_JOB.method,
            CREATE_JOB.path.format(propertyID=quote(str(self.property_id), safe="")),
            body=write_json(self.job.body()),
            subject=subject,
            is_versioned=CREATE_JOB.versioned,
            make_record=partial(read_job, self),
        )


def read_job(asked: JobRequest, values: Any, timezone: tzinfo) -> Job:
    """Make the record of a job of the response to its creation; refuse that of another property."""
    job = _read_created(CREATE_JOB, values, timezone)
    echoed_property: Any = job.property_id  # as received if it is not an integer
    is_given = echoed_property not in (None, "")
    if is_given and canonical_id(echoed_property) != canonical_id(asked.property_id):
        raise FsmResponseError(
            f"the response holds another job, {job.id}: its propertyID is "
            f"{repr(echoed_property)[:60]}"
        )
    sent = asked.job.customer_reference
    echoed = job.customer_reference
    is_changed = sent is not None and echoed is not None and echoed != sent
    if is_changed:  # it may have been normalised
        logger.warning("job %s has the customerReference %r, but %r was sent", job.id, echoed, sent)
    return job


def _read_created(endpoint: Endpoint[RecordT], values: Any, timezone: tzinfo) -> RecordT:
    """Make the record of what a request has created, which has a usable id."""
    record: Any = parse_record(values, endpoint.response, timezone)
    if record.id <= 0:
        raise FsmResponseError(f"the body has no usable 'id': {record.id}")
    return cast(RecordT, record)


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
        watched = info.data.get("object")
        for event_type in value:
            if watched and not re.fullmatch(rf"{watched}\.[^\s,]+", event_type):
                raise ValueError(
                    f"{event_type!r} is not of the form {watched}.<event>, as its object is "
                    f"{watched!r}"
                )
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
        if is_readable_on_the_way(parts):
            warn_once(logger, ("http", parts.netloc), HTTP_TARGET)
        return value

    def query(self) -> JsonObject:
        return self.model_dump(by_alias=True, exclude_none=True)

    @property
    def subject(self) -> JsonObject:
        return {"object": self.object, "eventTypes": self.event_types}

    @property
    def confidential(self) -> tuple[str, ...]:
        """The texts that no error may quote: the URL, and parts of it that may be tokens."""
        parts = urlsplit(self.target_url)
        tokens = [segment for segment in parts.path.split("/") if len(segment) >= TOKEN_LENGTH]
        queries = [parts.query] if parts.query else []
        return (self.target_url, *tokens, *queries)

    def request(self) -> ApiRequest:
        """Return the request that registers the webhook."""
        return ApiRequest.build(
            REGISTER_WEBHOOK.method,
            REGISTER_WEBHOOK.path,
            self.query(),
            subject=self.subject,
            confidential=self.confidential,
            is_versioned=REGISTER_WEBHOOK.versioned,
            make_record=partial(read_webhook, self),
        )


def read_webhook(asked: WebhookCreate, values: Any, timezone: tzinfo) -> Webhook:
    """Make the record of a webhook of the response to its registration.

    :raises FsmRegistrationError: if it was registered for another object or other event types.
    """
    webhook = _read_created(REGISTER_WEBHOOK, values, timezone)
    shown: Any = webhook.event_types  # as received if it is no list
    if shown is None:
        shown = asked.event_types
    if not isinstance(shown, list):
        shown = [shown]
    is_for_same_events = {str(event) for event in shown} == set(asked.event_types)
    is_of_same_object = webhook.object in (None, asked.object)
    if not (is_for_same_events and is_of_same_object):
        raise FsmRegistrationError(
            f"webhook {webhook.id} was not registered for {asked.object} "
            f"({', '.join(asked.event_types)}): delete it in the service",
            webhook.id,
        )
    return webhook


_OF_A_JOB = (
    f". What belongs in a job: {', '.join(dict.fromkeys(JOB_FIELDS.values()))}; what is not "
    f"specified goes under its {EXTRA_FIELDS}"
)
"""What a message says of the fields that there are; likewise ``_OF_A_WEBHOOK``."""
_OF_A_WEBHOOK = f". What belongs in a webhook: {', '.join(WebhookCreate.model_fields)}"
_UNKNOWN = "is not known here, or is given in both spellings, as userGroupID and user_group_id are"
_MESSAGES = {
    "string_pattern_mismatch": "should be an amount such as '120' or '99.50', as text or Decimal",
    "string_unicode": HALF_A_CHARACTER,
    "too_short": "is an empty list",
}


PayloadT = TypeVar("PayloadT", bound=_Payload)


def parse_payload(
    model: type[PayloadT],
    payload: PayloadT | Mapping[str, Any],
    what: str,
    names: Mapping[Any, str] = MappingProxyType({}),
) -> PayloadT:
    """Return ``payload`` as a ``model``.

    An FsmInputError names every invalid field, without its value.

    :param what: the caller's name for it, e.g. ``jobs[3]``, which starts each message; may be
        empty.
    :param names: the caller's names for fields, by their location in the model.
    """

    def place_of(location: Location) -> Location:
        if location in names:
            return (what, names[location])
        return (what, *location)

    known = _OF_A_WEBHOOK if model is WebhookCreate else _OF_A_JOB
    messages = {**_MESSAGES, "extra_forbidden": f"{_UNKNOWN}{known}"}
    try:
        return validate_with(model.model_validate, payload, place_of=place_of, messages=messages)
    except FsmInputError as error:
        raise FsmInputError(_said_once(error.message, known)) from None


def _said_once(text: str, clause: str) -> str:
    """Return a text that says a clause once, at its end."""
    return text.replace(clause, "") + clause if clause in text else text


def warn_of_empty_templates(asked: JobRequest) -> None:
    """Log which texts of a job, sent as they are, come from a template that found nothing."""
    for name in ("notes", "priority"):
        text = getattr(asked.job, name)
        if text in MISSING_AS_TEXT:
            problem = FOUND_NOTHING.format(text)
            logger.warning(
                "job.%s at property %s %s. It is sent as it is", name, asked.property_id, problem
            )


def parse_jobs(
    jobs: Iterable[Any], *, refuse_equal: bool = False
) -> list[tuple[JobRequest, ApiRequest]]:
    """Return each job as a model, with its request; the error names every invalid field.

    :param refuse_equal: refuse equal jobs without keys, as it is not known whether both are wanted.
    """
    checked = []
    problems = []
    by_key: dict[str, tuple[int, Any]] = {}
    first_of_content: dict[Any, int] = {}
    for index, job in enumerate(jobs):
        try:
            asked = parse_payload(JobRequest, job, f"jobs[{index}]")
        except FsmInputError as error:
            key = job.get("key") if isinstance(job, dict) else None
            shown_key = f" (key {key!r})" if key else ""
            problems.append(f"{error}{shown_key}")
            continue
        request = asked.request()
        checked.append((asked, request))
        content = (request.path, request.body)
        if asked.key is not None:
            first, first_content = by_key.setdefault(visible_text(asked.key), (index, content))
            if content != first_content:
                problems.append(
                    f"jobs[{index}].key: '{asked.key}' is the key of jobs[{first}], another job"
                )
        elif refuse_equal:
            first = first_of_content.setdefault(content, index)
            if first != index:
                problems.append(
                    f"jobs[{index}]: is equal to jobs[{first}]: leave one out, or give both keys"
                )
    if problems:
        raise FsmInputError(_said_once("\n".join(problems), _OF_A_JOB))
    return checked
