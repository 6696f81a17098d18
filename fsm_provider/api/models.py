"""The service's operations and records, as sections 2 and 4 of its specification describe them.

Attributes are in snake_case, with the service's names as aliases. Fields that the specification
does not show are kept.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    SecretStr,
    SerializeAsAny,
    StrictBool,
    ValidationInfo,
)
from pydantic_core import CoreSchema, core_schema

from fsm_provider.api.validation import to_integer

_ACRONYMS = {"id": "ID", "pdf": "PDF", "sla": "SLA", "url": "URL"}


def wire_name(attribute: str) -> str:
    """Return the service's name for an attribute: ``form_pdf_url`` into ``formPDFURL``."""
    first, *rest = attribute.split("_")
    # The service writes ``id`` by itself, but ``SLAType`` and ``propertyID``.
    name = first if first == "id" else _ACRONYMS.get(first, first)
    for word in rest:
        name += _ACRONYMS.get(word, word.capitalize())
    return name


def _either(expected: str, likely: CoreSchema, other: CoreSchema) -> GetPydanticSchema:
    """Refuse a value that neither schema accepts, before pydantic would convert it.

    :param expected: what a value should be, for the message.
    :param likely: what most values of responses are, as it is tried first.
    """
    any_choice = core_schema.union_schema([likely, other], mode="left_to_right")
    message = f"should be {expected}"
    checked = core_schema.custom_error_schema(any_choice, message, custom_error_message=message)

    def check_and_convert(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.chain_schema([checked, handler(source)])

    return GetPydanticSchema(check_and_convert)


_INTEGER = _either(
    "an integer",
    core_schema.int_schema(strict=True),
    core_schema.no_info_plain_validator_function(to_integer),
)
_TIME = _either(
    "an ISO 8601 time",
    core_schema.str_schema(
        pattern="^[0-9]{4}(-[0-9]{2}){2}.", strict=True, coerce_numbers_to_str=False
    ),
    core_schema.is_instance_schema(datetime),
)
# Any value is dumped as it is: pydantic would dump true in place of an integer as 1.
Integer = Annotated[SerializeAsAny[int], _INTEGER]
"""An integer, in any of the spellings of an identifier."""
Timestamp = Annotated[SerializeAsAny[AwareDatetime], _TIME]
"""A time with a zone, as a ``datetime`` or as ISO 8601 text."""


class Record(BaseModel):
    """A record that the service sends. Equal records dump to equal JSON, and back."""

    identity_field: ClassVar[str] = "id"
    """The attribute that identifies a record in a listing."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=wire_name,
        extra="allow",
        coerce_numbers_to_str=True,
        cache_strings="keys",
        defer_build=True,
    )

    if not TYPE_CHECKING:  # A type checker would take any attribute for one that is there.

        def __getattr__(self, name: str) -> Any:
            for attribute in type(self).model_fields:
                if wire_name(attribute) == name:
                    raise AttributeError(f"{name} is the service's name: here it is {attribute}")
            return super().__getattr__(name)

    def as_json(self) -> dict[str, Any]:
        """Return the record as JSON values under the service's names.

        A value of an unexpected type is as it was received.
        """
        return self.model_dump(mode="json", by_alias=True, warnings=False)


RecordT = TypeVar("RecordT", bound=Record)


class ValueOption(Record):
    """A selectable value of an asset dynamic field (section 2.1)."""

    id: Integer | None = None
    name: str | None = None


class Usage(Record):
    """Where an asset dynamic field is used (section 2.1)."""

    scope: Literal["standard", "assetType", "assetGroup"] | None = None
    field_key: str | None = None
    field_description: str | None = None
    asset_type_id: Integer | None = None
    asset_type_description: str | None = None
    asset_group_id: Integer | None = None
    asset_group_description: str | None = None


class AssetDynamicField(Record):
    """An element of ``data`` in the asset dynamic field listing (section 2.1)."""

    identity_field = "dynamic_field_id"

    dynamic_field_id: Integer
    dynamic_field_name: str | None = None
    used_by: list[Usage] | None = None
    values: list[ValueOption] | None = None


class _Contact(Record):
    full_name: str | None = None
    mobile: str | None = None
    telephone: str | None = None
    email: str | None = None


class CustomerContact(_Contact):
    contact_id: Integer | None = None


class SiteContact(_Contact):
    site_contact_id: Integer | None = None


class Skill(Record):
    id: Integer | None = None
    skill: str | None = None


class AssignedUser(Record):
    id: Integer | None = None
    full_name: str | None = None


class Completed(Record):
    completed_by_id: Integer | None = None
    completed_by_user: str | None = None
    completed_by_type: str | None = None
    completed_on_date_time: Timestamp | None = None


class Closed(Record):
    closed_by_id: Integer | None = None
    closed_by_user: str | None = None
    closed_by_type: str | None = None
    closed_on_date_time: Timestamp | None = None
    closed_outcome: str | None = None
    foc_reason: str | None = None
    foc_note: str | None = None
    abort_reason: str | None = None
    abort_note: str | None = None


class JobLinks(Record):
    self: str | None = None
    property: str | None = None
    appointments: str | None = None


class Job(Record):
    """A job, as its creation returns it (section 2.2)."""

    id: Integer
    created_on_date_time: Timestamp | None = None
    created_by_type: str | None = None
    created_by_user_id: Integer | None = None
    created_by_user: str | None = None
    last_updated_on_date_time: Timestamp | None = None
    property_id: Integer | None = None
    customer_contact_id: str | None = None
    customer_contact: CustomerContact | None = None
    site_contact_id: str | None = None
    site_contact: SiteContact | None = None
    description: str | None = None
    settings_job_description_id: str | None = None
    notes: str | None = None
    job_type: Integer | None = None
    service_reminder_instance1_id: Integer | None = None
    service_reminder_instance2_id: Integer | None = None
    service_reminder_instance3_id: Integer | None = None
    service_reminder_instance1_name: str | None = None
    service_reminder_instance2_name: str | None = None
    service_reminder_instance3_name: str | None = None
    skills: list[Skill] | None = None
    pipeline_id: Integer | None = None
    pipeline_name: str | None = None
    stage_id: Integer | None = None
    stage_name: str | None = None
    users_currently_assigned_to_job: list[AssignedUser] | None = None
    contract_id: Integer | None = None
    has_related_recall: StrictBool | None = None
    recall_of_parent_job_id: Integer | None = None
    blame_user_id: Integer | None = None
    blame_user: str | None = None
    job_reported_date_time: Timestamp | None = None
    expected_onsite_date_time: Timestamp | None = None
    expected_completion_date_time: Timestamp | None = None
    tags: list[str] | None = None
    customer_reference: str | None = None
    quoted_amount: str | None = None
    priority: str | None = None
    business_unit_id: Integer | None = None
    business_unit: str | None = None
    user_group_id: Integer | None = None
    user_group: str | None = None
    status: str | None = None
    completed: Completed | None = None
    closed: Closed | None = None
    is_job_on_hold: StrictBool | None = None
    on_hold_reason_id: Integer | None = None
    on_hold_reason_description: str | None = None
    after_sales_care_feedback: str | None = None
    after_sales_care_comments: str | None = None
    has_sla: StrictBool | None = None
    sla_type: str | None = None
    sla_status: str | None = None
    links: JobLinks | None = None


class JobDetails(Record):
    job_id: Integer | None = None
    job_description: str | None = None
    job_address_line1: str | None = None
    job_address_line2: str | None = None
    job_address_line3: str | None = None
    job_town: str | None = None
    job_province: str | None = None
    job_postcode: str | None = None


class FormLinks(Record):
    property: str | None = None
    job: str | None = None


class Form(Record):
    """A completed custom form, an element of ``data`` in the form listing (section 2.3)."""

    id: Integer
    created_on_date_time: Timestamp | None = None
    last_updated_on_date_time: Timestamp | None = None
    created_by_type: str | None = None
    created_by_id: str | None = None
    created_by_user: str | None = None
    property_id: str | None = None
    job_details: JobDetails | None = None
    form_name: str | None = None
    form_pdf_url: str | None = Field(default=None, repr=False)
    links: FormLinks | None = None


class Webhook(Record):
    """A webhook registration (section 2.4). A dump has the fields known to be no secret."""

    id: Integer
    description: str | None = None
    object: str | None = None
    event_types: list[str] | None = None
    target_url: str | None = Field(default=None, repr=False)
    signing_secret: Annotated[SecretStr, BeforeValidator(str)] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the registration as JSON values, without its secret and without unknown fields."""
        shown = type(self).model_fields.keys() - {"signing_secret"}
        return self.model_dump(mode="json", by_alias=True, include=shown, warnings=False)


def _in_server_timezone(timestamp: datetime, info: ValidationInfo) -> datetime:
    if timestamp.tzinfo is not None:
        return timestamp
    context = info.context or {}
    return timestamp.replace(tzinfo=context.get("timezone", UTC))


class Meta(Record):
    """A listing's ``meta`` (section 2.5).

    A time without a zone is in the ``timezone`` of the validation's context, or else in UTC.
    """

    server_time: Annotated[datetime, AfterValidator(_in_server_timezone)] | None = None
    total_records: str | None = None


class Pagination(Record):
    """A listing's ``pagination`` (section 2.5), unconverted, as listings use different types."""

    has_more: Any = None
    next_cursor: Any = None
    prev_cursor: Any = None


ItemT = TypeVar("ItemT")


class Page(Record, Generic[ItemT]):
    """One response of a listing (section 2.5)."""

    meta: Meta | None = None
    pagination: Pagination | None = None
    data: list[ItemT]


class Endpoint(NamedTuple, Generic[RecordT]):
    """One operation of section 4.

    :ivar path: below the base URL; ``{propertyID}`` is to be replaced.
    :ivar response: the class of a listing's elements, or of the complete body.
    :ivar versioned: whether the request has the header ``X-API-VERSION`` (section 9).
    """

    method: str
    path: str
    response: type[RecordT]
    versioned: bool = False


LIST_ASSET_DYNAMIC_FIELDS = Endpoint("GET", "/assetDynamicFieldValues", AssetDynamicField)
CREATE_JOB = Endpoint("POST", "/properties/{propertyID}/jobs", Job, versioned=True)
LIST_FORMS = Endpoint("GET", "/forms", Form)
REGISTER_WEBHOOK = Endpoint("POST", "/settings/webhooks", Webhook)
