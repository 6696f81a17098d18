"""Which properties have no valid gas-safety record: overdue, due within 60 days, or missing.

The latest record of each property in the last 13 months is held against the portfolio, a CSV file with the
columns ``propertyID`` and ``address``, on this machine or in any object storage that Airflow knows. A record
is valid for a year from ``createdOnDateTime``, which is taken for the day of the check: a listing does not
carry the answers of a form. For each day ``<day>.csv`` is written into ``<portfolio>.gaps/``.

The service never lists legacy forms: a property whose records are legacy forms is reported as missing.

A scheduled run, also of ``airflow backfill``, reports as of its own day, from the forms of ``[start, end)``:
the service has a lower bound only, so the upper one is kept here. A backfill of years would list the same
forms once a month of it. A run by hand from ``first_day`` to ``last_day`` reports on that day of each month
out of one listing. Starts paused, since the portfolio that ships is an example.
"""

from __future__ import annotations

import csv
import io
from calendar import monthrange
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, ObjectStoragePath, Param, dag, task

if TYPE_CHECKING:
    from fsm_provider.api import Form

MONTHS_READ, MONTHS_VALID, DUE_WITHIN = 13, 12, timedelta(days=60)
COLUMNS = ("propertyID", "address", "gap", "due", "formID", "remark")
LEGACY = "The service never lists legacy forms: a property that has only those is reported as missing."

Row = dict[str, Any]


def add_months(day: date, months: int) -> date:
    """Give the same day of another month, or the last of a shorter one."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))


def report_days(first: date, last: date) -> list[date]:
    """Give the first day and the same day of each month up to the last."""
    months = (last.year - first.year) * 12 + last.month - first.month
    return [day for month in range(months + 1) if (day := add_months(first, month)) <= last]


def interval_of(day: date) -> tuple[datetime, datetime]:
    """Give the 13 months before a day: from a time, and up to another one that is not of it."""
    return midnight(add_months(day, -MONTHS_READ)), midnight(day)


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def latest_per_property(
    forms: Iterable[Form], days: Iterable[date], form_name: str
) -> tuple[dict[date, dict[str, Form]], list[Form]]:
    """Give the latest form of each property in the interval of each day, in one pass over any order.

    Beside them, the forms whose time or property cannot be read: a person has to look at those.
    """
    intervals = {day: interval_of(day) for day in days}
    latest: dict[date, dict[str, Form]] = {day: {} for day in intervals}
    unreadable = []
    for form in forms:
        if form.form_name != form_name:
            continue
        created = form.created_on_date_time
        if not isinstance(created, datetime) or form.property_id is None:
            unreadable.append(form)
            continue
        for day, (start, end) in intervals.items():
            known = latest[day].get(str(form.property_id))
            if start <= created < end and (known is None or known.created_on_date_time < created):
                latest[day][str(form.property_id)] = form
    return latest, unreadable


def find_gaps(portfolio: Iterable[Row], latest: dict[str, Form], day: date) -> list[Row]:
    """Give a row for each property of the portfolio whose record is missing, overdue or soon due."""
    return [row for known in portfolio if (row := judge(known, latest.get(known["propertyID"]), day))]


def judge(known: Row, form: Form | None, day: date) -> Row | None:
    row = {**dict.fromkeys(COLUMNS), **known}
    if form is None:
        return {
            **row,
            "gap": "missing",
            "remark": f"none in {MONTHS_READ} months; legacy forms are not listed",
        }
    due = add_months(form.created_on_date_time.astimezone(UTC).date(), MONTHS_VALID)
    if due > day + DUE_WITHIN:
        return None
    return {**row, "gap": "overdue" if due < day else "due", "due": str(due), "formID": form.id}


def read_portfolio(text: str) -> list[Row]:
    """Read a portfolio.

    :raises ValueError: naming the line that has no property, or one that is there twice.
    """
    reader = csv.DictReader(io.StringIO(text))
    rows: dict[str, Row] = {}
    for row in reader:
        number = (row.get("propertyID") or "").strip()
        if not number:
            raise ValueError(f"line {reader.line_num}: has no propertyID")
        if number in rows:
            raise ValueError(f"line {reader.line_num}: property {number} is there twice")
        rows[number] = {"propertyID": number, "address": row.get("address")}
    return list(rows.values())


def as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def path_of(given: str) -> ObjectStoragePath:
    """Give a path or an address as a path; one that is relative begins beside this file."""
    return ObjectStoragePath(given if "://" in given else str(Path(__file__).parent / given))


@dag(
    schedule="@monthly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "portfolio": Param("data/portfolio.csv", type="string", minLength=1, title="Portfolio"),
        "reports": Param("", type="string", title="Folder of the reports (default: beside the portfolio)"),
        "form_name": Param("Gas Safety Record", type="string", minLength=1, title="Name of the form"),
        "first_day": Param(None, type=["null", "string"], format="date", title="From (default: the run's)"),
        "last_day": Param(None, type=["null", "string"], format="date", title="To (default: the first)"),
    },
)
def compliance_gap_report():
    @task
    def report(params, dag_run, data_interval_end=None):
        """List once, and report on each day; no more than a form for each property and day is kept."""
        from fsm_provider.hooks.fsm import FsmHook

        try:
            portfolio = read_portfolio(path_of(params["portfolio"]).read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise AirflowFailException(f"{params['portfolio']}, {error}") from None
        # A run by hand has no data interval since Airflow 3, and no run_after before it.
        own_day = (data_interval_end or dag_run.run_after).date()
        first = date.fromisoformat(params["first_day"]) if params["first_day"] else own_day
        last = date.fromisoformat(params["last_day"]) if params["last_day"] else first
        days = report_days(first, last)
        if not days:
            raise AirflowFailException(f"last_day: {last} is before {first}")
        forms = FsmHook().list_forms(created_since=interval_of(first)[0])
        latest, unreadable = latest_per_property(forms, days, params["form_name"])

        folder = path_of(params["reports"] or f"{params['portfolio']}.gaps")
        folder.mkdir(parents=True, exist_ok=True)
        print(LEGACY)
        if unreadable:
            print(f"Left out, as their time or property is not readable: {[form.id for form in unreadable]}")
        counts = {}
        for day in days:
            rows = find_gaps(portfolio, latest[day], day)
            (folder / f"{day}.csv").write_text(as_csv(rows), encoding="utf-8")
            print(f"As of {day}, {len(rows)} of {len(portfolio)} properties:\n{as_csv(rows)}")
            counts[str(day)] = dict(Counter(row["gap"] for row in rows))
        return {"gaps": counts, "unreadable": [form.id for form in unreadable], "note": LEGACY}

    report()


compliance_gap_report()
