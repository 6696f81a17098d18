"""The responses of the service that is measured against: jobs, and complete forms, none alike."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from fsm_provider.testing.wire import form_record, job_record, timestamp

FORMS_PER_PAGE = 100
_FIRST_FORM_ID = 1_000_000
_FIRST_JOB_ID = 5_000_000
_STRIDE = 7_368_787
"""Prime, so that its multiples reach each form once."""
_URL = "https://api.example.com/v1"
_EPOCH = datetime(2026, 1, 5, 7, 30, tzinfo=UTC)
_STREETS = (
    "Station Road",
    "Victoria Terrace",
    "Mill Lane",
    "Orchard Close",
    "Queen's Drive",
    "Quay Street",
)
_TOWNS = (
    "Sheffield",
    "Leicester",
    "Gateshead",
    "Kilmarnock",
    "Aberystwyth",
    "Lisburn",
)
_PEOPLE = (
    "Aisha Khan",
    "Tomasz Nowak",
    "Siân Hughes",
    "George Okafor",
    "Niamh O'Neill",
    "Priya Patel",
)
_FORM_NAMES = (
    "Gas Safety Record",
    "Job Sign-off",
    "Warning Notice",
    "Boiler Service Checklist",
)
_WORK = (
    "Annual boiler service",
    "No hot water, tenant at home after 15:00",
    "Replace thermocouple",
    "Leak",
)


def sum_of_form_ids(first_page: int, stop_page: int) -> int:
    """Give the sum of the identifiers on the pages from ``first_page`` up to ``stop_page``."""
    numbers = range(first_page * FORMS_PER_PAGE, stop_page * FORMS_PER_PAGE)
    return sum(numbers) + len(numbers) * _FIRST_FORM_ID


def forms_of_page(page: int) -> list[bytes]:
    """Render the forms of a page: about 79 KB."""
    chance = random.Random(page)
    return [_render(_form(number, chance)) for number in numbers_of_page(page, 0)]


def numbers_of_page(page: int, stop_page: int, *, shuffled: bool = False) -> Iterable[int]:
    """Give the numbers of the forms of a page: ascending, or out of all pages up to a stop."""
    numbers = range(page * FORMS_PER_PAGE, (page + 1) * FORMS_PER_PAGE)
    if not shuffled:
        return numbers
    all_forms = stop_page * FORMS_PER_PAGE
    return [number * _STRIDE % all_forms for number in numbers]


def forms_by_now(start: int, interval: int) -> list[bytes]:
    """Render the forms that are completed: form n at ``start`` + n x ``interval`` ms."""
    ended = max(0, int(time.time() * 1000) - start) // interval
    forms: list[bytes] = []
    for number in range(1, ended + 1):
        form = _form(number, random.Random(number))
        completed_at = datetime.fromtimestamp((start + number * interval) / 1000, UTC)
        form["createdOnDateTime"] = timestamp(completed_at)
        form["lastUpdatedOnDateTime"] = timestamp(completed_at)
        forms.append(_render(form))
    return forms


def response(page: int, stop_page: int, forms: Iterable[bytes], total: int | None = None) -> bytes:
    """Put the forms of a page into a response; without a total, all pages are full."""
    has_more = page + 1 < stop_page
    if total is None:
        total = stop_page * FORMS_PER_PAGE
    server_time = _EPOCH + timedelta(days=60, milliseconds=page)
    opening = {
        "meta": {
            "totalRecords": str(total),
            "serverTime": timestamp(server_time),
        },
        "pagination": {
            "hasMore": "true" if has_more else "false",
            "nextCursor": str(page + 1) if has_more else "",
            "prevCursor": str(page - 1) if page else "",
        },
    }
    without_brace = _render(opening)[:-1]
    return b"".join((without_brace, b',"data":[', b",".join(forms), b"]}"))


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
    record = job_record(
        job_id(property_id),
        property_id,
        job_payload(property_id),
        base_url=_URL,
        now=_EPOCH + timedelta(minutes=property_id),
    )
    record["skills"] = [{"id": 1, "skill": "Gas"}, {"id": 2, "skill": "Oil"}]
    record["tags"] = ["landlord", f"batch-{property_id % 7}"]
    return _render(record)


def _form(number: int, chance: random.Random) -> dict[str, Any]:
    created = _EPOCH + timedelta(seconds=97 * number, milliseconds=chance.randrange(1000))
    form = form_record(
        _FIRST_FORM_ID + number,
        job_id=chance.randrange(10**5, 10**7),
        property_id=chance.randrange(10**4, 10**6),
        form_name=chance.choice(_FORM_NAMES),
        created=created,
        updated=created + timedelta(seconds=chance.randrange(90_000)),
        base_url=_URL,
    )
    form["createdByID"] = str(chance.randrange(1, 5000))
    form["createdByUser"] = chance.choice(_PEOPLE)
    form["formPDFURL"] += f"?signature={chance.getrandbits(256):064x}"
    work = chance.choice(_WORK)
    order = f"{chance.getrandbits(48):x}"
    form["jobDetails"] |= {
        "jobDescription": f"{work}; order {order}, ring tenant first",
        "jobAddressLine1": f"{chance.randrange(1, 300)} {chance.choice(_STREETS)}",
        "jobAddressLine2": f"Flat {chance.randrange(1, 60)}",
        "jobAddressLine3": f"Block {chance.randrange(1, 20)}",
        "jobTown": chance.choice(_TOWNS),
        "jobProvince": f"Province {chance.randrange(1, 20)}",
        "jobPostcode": f"S{chance.randrange(1, 75)} {chance.randrange(1, 9)}QB",
    }
    return form


def _render(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
