"""The responses of the service that is measured against: pages of complete forms, no two alike, and jobs."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

FORMS_PER_PAGE = 100
_FIRST_FORM_ID = 1_000_000
_FIRST_JOB_ID = 5_000_000
_STRIDE = 7_368_787
"""Prime, so that its multiples reach each form once."""
_EPOCH = datetime(2026, 1, 5, 7, 30, tzinfo=UTC)
_STREETS = ("Station Road", "Victoria Terrace", "Mill Lane", "Orchard Close", "Queen's Drive", "Quay Street")
_TOWNS = ("Sheffield", "Leicester", "Gateshead", "Kilmarnock", "Aberystwyth", "Lisburn")
_PROVINCES = ("South Yorkshire", "Leicestershire", "Tyne and Wear", "East Ayrshire", "Ceredigion", "Antrim")
_PEOPLE = ("Aisha Khan", "Tomasz Nowak", "Siân Hughes", "George Okafor", "Niamh O'Neill", "Priya Patel")
_FORM_NAMES = ("Gas Safety Record", "Job Sign-off", "Warning Notice", "Boiler Service Checklist")
_WORK = ("Annual boiler service", "No hot water, tenant at home after 15:00", "Replace thermocouple", "Leak")


def sum_of_form_ids(first_page: int, stop_page: int) -> int:
    """Give the sum of the identifiers on the pages from ``first_page`` up to ``stop_page``."""
    return sum(
        range(
            _FIRST_FORM_ID + first_page * FORMS_PER_PAGE,
            _FIRST_FORM_ID + stop_page * FORMS_PER_PAGE,
        )
    )


def forms_of_page(page: int) -> list[bytes]:
    """Render the forms of a page: about 79 KB."""
    chance = random.Random(page)
    return [_render(_form(number, chance)) for number in numbers_of_page(page, 0)]


def numbers_of_page(page: int, stop_page: int, *, shuffled: bool = False) -> Iterable[int]:
    """Give the numbers of the forms of a page: ascending, or scattered over all pages up to ``stop_page``."""
    numbers = range(page * FORMS_PER_PAGE, (page + 1) * FORMS_PER_PAGE)
    return [number * _STRIDE % (stop_page * FORMS_PER_PAGE) for number in numbers] if shuffled else numbers


def forms_by_now(start: int, every: int, numbers: Iterable[int] | None) -> list[bytes]:
    """Render the completed forms of those jobs, or of all: job n at ``start`` + n x ``every`` ms."""
    ended = max(0, int(time.time() * 1000) - start) // every
    asked = range(1, ended + 1) if numbers is None else numbers
    return [_completed(number, start + number * every) for number in asked if 0 < number <= ended]


def response(page: int, stop_page: int, forms: Iterable[bytes]) -> bytes:
    """Put the forms of a page into a response."""
    more = page + 1 < stop_page
    opening = {
        "meta": {
            "totalRecords": str(stop_page * FORMS_PER_PAGE),
            "serverTime": _time(_EPOCH + timedelta(days=60, milliseconds=page)),
        },
        "pagination": {
            "hasMore": "true" if more else "false",
            "nextCursor": str(page + 1) if more else "",
            "prevCursor": str(page - 1) if page else "",
        },
    }
    return b"".join((_render(opening)[:-1], b',"data":[', b",".join(forms), b"]}"))


def job_id(property_id: int) -> int:
    """Give the identifier of the job that is created on a property."""
    return _FIRST_JOB_ID + property_id


def job_payload(property_id: int) -> dict[str, Any]:
    """Make the body of a job's creation."""
    return {
        "customerReference": f"PO-{property_id:06}",
        "notes": "Ring first. Key safe by the back door; the boiler is in the loft.",
        "quotedAmount": f"{100 + property_id % 50}.00",
        "priority": "Important",
        "businessUnitID": 3,
        "userGroupID": 12,
    }


def job(property_id: int) -> bytes:
    """Render the job that is created on a property."""
    chance = random.Random(property_id)
    at = _EPOCH + timedelta(minutes=property_id)
    contact = {"fullName": chance.choice(_PEOPLE), "mobile": f"07{chance.randrange(10**9):09}"}
    contact |= {"telephone": f"01142{chance.randrange(10**6):06}", "email": f"c{property_id}@example.org"}
    reminders: dict[str, Any] = {f"serviceReminderInstance{n}ID": chance.randrange(10**5) for n in (1, 2, 3)}
    reminders |= {f"serviceReminderInstance{n}Name": f"Service {n}" for n in (1, 2, 3)}
    dates = ("jobReportedDateTime", "expectedOnsiteDateTime", "expectedCompletionDateTime")
    record = {
        "id": job_id(property_id),
        "createdOnDateTime": _time(at),
        "createdByType": "user",
        "createdByUserID": 17,
        "createdByUser": chance.choice(_PEOPLE),
        "lastUpdatedOnDateTime": _time(at),
        "propertyID": property_id,
        "customerContactID": str(chance.randrange(10**5)),
        "customerContact": {"contactID": chance.randrange(10**5), **contact},
        "siteContactID": str(chance.randrange(10**5)),
        "siteContact": {"siteContactID": chance.randrange(10**5), **contact},
        "description": chance.choice(_WORK),
        "settingsJobDescriptionID": "42",
        "jobType": 1,
        **reminders,
        "skills": [{"id": 1, "skill": "Gas"}, {"id": 2, "skill": "Oil"}],
        "pipelineID": 2,
        "pipelineName": "Reactive",
        "stageID": 7,
        "stageName": "To be scheduled",
        "usersCurrentlyAssignedToJob": [{"id": 31, "fullName": chance.choice(_PEOPLE)}],
        "contractID": chance.randrange(10**4),
        "hasRelatedRecall": False,
        "recallOfParentJobID": None,
        "blameUserID": None,
        "blameUser": None,
        **{name: _time(at + timedelta(days=days)) for days, name in enumerate(dates)},
        "tags": ["landlord", f"batch-{property_id % 7}"],
        **job_payload(property_id),
        "businessUnit": "Heating North",
        "userGroup": "Gas engineers",
        "status": "Open",
        "completed": dict.fromkeys(
            ("completedByID", "completedByUser", "completedByType", "completedOnDateTime")
        ),
        "closed": dict.fromkeys(
            ("closedByID", "closedByUser", "closedByType", "closedOnDateTime", "closedOutcome", "focReason")
        ),
        "isJobOnHold": False,
        "onHoldReasonID": None,
        "onHoldReasonDescription": None,
        "afterSalesCareFeedback": None,
        "afterSalesCareComments": None,
        "hasSLA": True,
        "SLAType": "24 hours",
        "SLAStatus": "Within",
        "links": {
            "self": f"https://api.example.com/v1/jobs/{job_id(property_id)}",
            "property": f"https://api.example.com/v1/properties/{property_id}",
            "appointments": f"https://api.example.com/v1/jobs/{job_id(property_id)}/appointments",
        },
    }
    return _render(record)


@cache
def _completed(number: int, time_ms: int) -> bytes:
    form = _form(number, random.Random(number))
    at = _time(datetime.fromtimestamp(time_ms / 1000, UTC))
    form["jobDetails"]["jobID"] = number
    return _render(form | {"createdOnDateTime": at, "lastUpdatedOnDateTime": at})


def _form(number: int, chance: random.Random) -> dict[str, Any]:
    created = _EPOCH + timedelta(seconds=97 * number, milliseconds=chance.randrange(1000))
    updated = created + timedelta(seconds=chance.randrange(90_000))
    property_id, job_number = chance.randrange(10**4, 10**6), chance.randrange(10**5, 10**7)
    place = chance.randrange(len(_TOWNS))
    form_id = _FIRST_FORM_ID + number
    return {
        "id": form_id,
        "createdOnDateTime": _time(created),
        "lastUpdatedOnDateTime": _time(updated),
        "createdByType": chance.choice(("user", "customer")),
        "createdByID": str(chance.randrange(1, 5000)),
        "createdByUser": chance.choice(_PEOPLE),
        "propertyID": str(property_id),
        "jobDetails": {
            "jobID": job_number,
            "jobDescription": f"{chance.choice(_WORK)}; order {chance.getrandbits(48):x}, ring tenant first",
            "jobAddressLine1": f"{chance.randrange(1, 300)} {chance.choice(_STREETS)}",
            "jobAddressLine2": f"Flat {chance.randrange(1, 60)}",
            "jobAddressLine3": f"Block {chance.randrange(1, 20)}",
            "jobTown": _TOWNS[place],
            "jobProvince": _PROVINCES[place],
            "jobPostcode": f"S{chance.randrange(1, 75)} {chance.randrange(1, 9)}QB",
        },
        "formName": chance.choice(_FORM_NAMES),
        "formPDFURL": f"https://files.example.com/forms/{form_id}.pdf?signature={chance.getrandbits(256):064x}",
        "links": {
            "property": f"https://api.example.com/v1/properties/{property_id}",
            "job": f"https://api.example.com/v1/jobs/{job_number}",
        },
    }


def _time(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _render(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
