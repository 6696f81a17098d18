"""The service's JSON: records with all fields of the specification, and a listing's envelope."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from fsm_provider.testing.listing import Page
from fsm_provider.testing.settings import Dialect

Record: TypeAlias = dict[str, Any]
ListingKind: TypeAlias = Literal["assets", "forms"]

ENGINEER = "Field engineer"
WEBHOOK_OBJECTS = ("properties", "assets", "contracts", "opportunities", "jobs", "appointments")

JOB_BODY_TYPES: Mapping[str, type] = {
    "customerContactID": str,
    "siteContactID": str,
    "settingsJobDescriptionID": str,
    "notes": str,
    "serviceReminderInstance1ID": int,
    "serviceReminderInstance2ID": int,
    "serviceReminderInstance3ID": int,
    "customerReference": str,
    "quotedAmount": str,
    "priority": str,
    "businessUnitID": int,
    "userGroupID": int,
}


def truncate_to_milliseconds(time: datetime) -> datetime:
    """Truncate an aware time to the service's precision."""
    if time.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone")
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def timestamp(time: datetime) -> str:
    """Format a time as the service does: UTC, milliseconds and ``Z``."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_integer(text: str) -> bool:
    """Return whether a text is up to 18 digits; Python refuses to parse thousands of them."""
    return re.fullmatch(r"[0-9]{1,18}", text) is not None


def is_skill(value: Any) -> bool:
    """Return whether a value is an element of a job's ``skills``."""
    return (
        isinstance(value, dict)
        and type(value.get("id")) is int
        and isinstance(value.get("skill"), str)
    )


def contact(id_name: str, contact_id: str) -> Record:
    """Make the contact object for a contact identifier."""
    number = int(contact_id) if is_integer(contact_id) else 0
    return {
        id_name: number,
        "fullName": "",
        "mobile": "",
        "telephone": "",
        "email": "",
    }


def job_record(
    job_id: int, property_id: int, body: Mapping[str, Any], *, base_url: str, now: datetime
) -> Record:
    """Make the job that a request body creates.

    Fields that are not given are empty: ``""``, ``0``, ``[]``, ``False``. Only the times of
    completion and closure are None. Unknown fields of the request are copied, unless the service
    sets them. The specification does not show ``skills`` in a request: elements that look like a
    job's are copied.
    """
    customer_contact_id = body.get("customerContactID", "")
    site_contact_id = body.get("siteContactID", "")
    url = f"{base_url}/jobs/{job_id}"
    record: Record = {
        "id": job_id,
        "createdOnDateTime": timestamp(now),
        "createdByType": "User",
        "createdByUserID": 1,
        "createdByUser": "API user",
        "lastUpdatedOnDateTime": timestamp(now),
        "propertyID": property_id,
        "customerContactID": customer_contact_id,
        "customerContact": contact("contactID", customer_contact_id),
        "siteContactID": site_contact_id,
        "siteContact": contact("siteContactID", site_contact_id),
        "description": "",
        "settingsJobDescriptionID": body.get("settingsJobDescriptionID", ""),
        "notes": body.get("notes", ""),
        "jobType": 1,
        "skills": _skills_in(body),
        "pipelineID": 1,
        "pipelineName": "Jobs",
        "stageID": 1,
        "stageName": "New",
        "usersCurrentlyAssignedToJob": [],
        "contractID": 0,
        "hasRelatedRecall": False,
        "recallOfParentJobID": 0,
        "blameUserID": 0,
        "blameUser": "",
        "jobReportedDateTime": timestamp(now),
        "expectedOnsiteDateTime": timestamp(now + timedelta(days=1)),
        "expectedCompletionDateTime": timestamp(now + timedelta(days=2)),
        "tags": [],
        "customerReference": body.get("customerReference", ""),
        "quotedAmount": body.get("quotedAmount", ""),
        "priority": body.get("priority", "Not_Important"),
        "businessUnitID": body.get("businessUnitID", 0),
        "businessUnit": "",
        "userGroupID": body.get("userGroupID", 0),
        "userGroup": "",
        "status": "Open",
        "completed": {
            "completedByID": 0,
            "completedByUser": "",
            "completedByType": "",
            "completedOnDateTime": None,
        },
        "closed": {
            "closedByID": 0,
            "closedByUser": "",
            "closedByType": "",
            "closedOnDateTime": None,
            "closedOutcome": "",
            "focReason": "",
            "focNote": "",
            "abortReason": "",
            "abortNote": "",
        },
        "isJobOnHold": False,
        "onHoldReasonID": 0,
        "onHoldReasonDescription": "",
        "afterSalesCareFeedback": "",
        "afterSalesCareComments": "",
        "hasSLA": False,
        "SLAType": "",
        "SLAStatus": "",
        "links": {
            "self": url,
            "property": f"{base_url}/properties/{property_id}",
            "appointments": f"{url}/appointments",
        },
    }
    for number in (1, 2, 3):
        name = f"serviceReminderInstance{number}"
        record[f"{name}ID"] = body.get(f"{name}ID", 0)
        record[f"{name}Name"] = ""
    return {**body, **record}


def _skills_in(body: Mapping[str, Any]) -> list[Any]:
    skills = body.get("skills")
    if not isinstance(skills, list):
        return []
    return [skill for skill in skills if is_skill(skill)]


def form_record(
    form_id: int,
    *,
    job_id: int,
    property_id: int,
    form_name: str,
    created: datetime,
    updated: datetime,
    base_url: str,
) -> Record:
    """Make a form with every field of the specification."""
    return {
        "id": form_id,
        "createdOnDateTime": timestamp(created),
        "lastUpdatedOnDateTime": timestamp(updated),
        "createdByType": "User",
        "createdByID": "1",
        "createdByUser": ENGINEER,
        "propertyID": str(property_id),
        "jobDetails": {
            "jobID": job_id,
            "jobDescription": "Annual service",
            "jobAddressLine1": f"{property_id} High Street",
            "jobAddressLine2": "",
            "jobAddressLine3": "",
            "jobTown": "Anytown",
            "jobProvince": "Anyshire",
            "jobPostcode": "AN1 1AA",
        },
        "formName": form_name,
        "formPDFURL": f"{base_url}/forms/{form_id}/pdf",
        "links": {
            "property": f"{base_url}/properties/{property_id}",
            "job": f"{base_url}/jobs/{job_id}",
        },
    }


def asset_dynamic_field_record(
    field_id: int, name: str, values: Sequence[str], used_by: Sequence[Mapping[str, Any]]
) -> Record:
    """Make an asset dynamic field; its values are numbered from 1."""
    return {
        "dynamicFieldID": field_id,
        "dynamicFieldName": name,
        "usedBy": [dict(usage) for usage in used_by],
        "values": [{"id": number, "name": value} for number, value in enumerate(values, start=1)],
    }


def webhook_record(webhook_id: int, fields: Mapping[str, Any]) -> Record:
    """Make a webhook registration, with a new signing secret unless the fields have one."""
    secret = f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
    return {"id": webhook_id, "signingSecret": secret, **fields}


def paginates_in_strings(kind: ListingKind, dialect: Dialect) -> bool:
    """Return whether a listing writes its pagination fields as strings."""
    return dialect == "string" or (dialect == "specified" and kind == "forms")


def envelope(
    kind: ListingKind, page: Page[Any], data: list[Record], *, dialect: Dialect, now: datetime
) -> Record:
    """Wrap the records of a page, with the pagination fields in the dialect.

    :param now: in the time zone of the asset listing.
    """
    has_more = page.next_cursor is not None
    pagination: Record = {
        "hasMore": has_more,
        "nextCursor": page.next_cursor,
        "prevCursor": page.prev_cursor,
    }
    if paginates_in_strings(kind, dialect):
        pagination["hasMore"] = "true" if has_more else "false"
        if page.next_cursor is None:
            pagination["nextCursor"] = ""
        if page.prev_cursor is None:
            pagination["prevCursor"] = ""

    if kind == "forms":
        meta = {"totalRecords": str(page.total), "serverTime": timestamp(now)}
    else:
        meta = {"serverTime": f"{now:%Y-%m-%d %H:%M:%S}"}
    return {"meta": meta, "pagination": pagination, "data": data}
