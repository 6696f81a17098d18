"""Find properties without a valid gas-safety record: overdue, due within 60 days, or missing.

The DAG compares the latest record of each property in the last 13 months with the portfolio: a CSV
file with the columns ``propertyID`` and ``address``, on this machine or in any object storage that
Airflow knows. A record is valid for a year from ``createdOnDateTime``. The DAG takes that as the
day of the check, because a listing does not contain the answers of a form. For each day it writes
``<day>.csv`` and ``<day>.html``, a page with a chart, into ``<portfolio>.gaps/``. The task has a
link to the page of its last day.

The service never lists legacy forms: a property whose records are legacy forms is reported as
missing.

A scheduled run, including one of ``airflow backfill``, reports as of its own day, from the forms of
``[start, end)``. The service has only a lower bound, so the DAG applies the upper bound itself. A
backfill of years would list the same forms for each month. Instead, a manual run from ``first_day``
to ``last_day`` reports on that day of each month, with one listing. The DAG starts paused, because
its portfolio is only an example.
"""

from __future__ import annotations

import csv
import io
import sys
from calendar import monthrange
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    ObjectStoragePath,
    Param,
    dag,
    task,
)

sys.path.append(str(Path(__file__).parent))  # wherever in the folder of DAGs it is
from report_page import Chart, Headline, Page, Table, Tone, link_to_report, report_url

if TYPE_CHECKING:
    from fsm_provider.api import Form

MONTHS_READ, MONTHS_VALID, DUE_WITHIN = 13, 12, timedelta(days=60)
COLUMNS = ("propertyID", "address", "gap", "due", "formID", "remark")
KINDS: dict[str, tuple[str, Tone]] = {
    "missing": ("missing", "unknown"),
    "overdue": ("overdue", "bad"),
    "due": (f"due within {DUE_WITHIN.days} days", "notice"),
    "valid": ("valid", "good"),
}
"""Label and tone on the page of each kind of property."""
LEGACY = (
    "The service never lists legacy forms: a property that has only those is reported as missing."
)

Row = dict[str, Any]


def add_months(day: date, months: int) -> date:
    """Return the same day of another month, or the last day of a shorter one."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))


def report_days(first: date, last: date) -> list[date]:
    """Return the first day, and the same day of each month up to the last."""
    months = (last.year - first.year) * 12 + last.month - first.month
    return [day for month in range(months + 1) if (day := add_months(first, month)) <= last]


def interval_for(day: date) -> tuple[datetime, datetime]:
    """Return the 13 months before a day, as start and exclusive end."""
    return midnight(add_months(day, -MONTHS_READ)), midnight(day)


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def latest_per_property(
    forms: Iterable[Form], days: Iterable[date], form_name: str
) -> tuple[dict[date, dict[str, Form]], list[Form]]:
    """Return the latest form of each property in the interval of each day, in one pass over any
    order.

    Beside them, the forms whose time or property cannot be parsed, for a person to check.
    """
    intervals = {day: interval_for(day) for day in days}
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


def judge_all(portfolio: Iterable[Row], latest: dict[str, Form], day: date) -> list[Row]:
    """Return a row for each property of the portfolio: its record is missing, overdue, soon due or
    valid.
    """
    return [judge(known, latest.get(known["propertyID"]), day) for known in portfolio]


def judge(known: Row, form: Form | None, day: date) -> Row:
    row = {**dict.fromkeys(COLUMNS), **known}
    if form is None:
        return {
            **row,
            "gap": "missing",
            "remark": f"none in {MONTHS_READ} months; legacy forms are not listed",
        }
    due = add_months(form.created_on_date_time.astimezone(UTC).date(), MONTHS_VALID)
    gap = "overdue" if due < day else "due" if due <= day + DUE_WITHIN else "valid"
    return {**row, "gap": gap, "due": str(due), "formID": form.id}


def gaps_for(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that need action."""
    return [row for row in rows if row["gap"] != "valid"]


def page_for(rows: list[Row], day: date, notes: list[str]) -> Page:
    """Make the page: when records run out, and the gaps, the longest overdue first."""
    counts = Counter(row["gap"] for row in rows)
    gaps = sorted(gaps_for(rows), key=lambda row: row["due"] or "9")
    return Page(
        title=f"Gas-safety records, {day:%-d %B %Y}",
        about=f"{len(gaps)} of {len(rows)} properties need a record now or within {DUE_WITHIN.days} days.",
        headlines=[Headline(counts[kind], label, tone) for kind, (label, tone) in KINDS.items()],
        chart=Chart(
            title="When records run out", series=dict(KINDS.values()), bars=bars_for(rows, day)
        ),
        tables=[
            Table(
                title="What to act on",
                columns=("Record", "Due", "Property", "Address", "Last form"),
                rows=[
                    [
                        KINDS[row["gap"]][0],
                        *(row[column] for column in ("due", "propertyID", "address", "formID")),
                    ]
                    for row in gaps
                ],
                none="Every property has a record that is valid beyond that.",
                tones=dict(KINDS.values()),
            )
        ],
        notes=notes,
    )


def bars_for(rows: list[Row], day: date) -> list[tuple[str, list[int]]]:
    """Count the properties of each kind: missing, overdue, and by the month in which the record
    runs out.
    """
    months = [f"{add_months(day.replace(day=1), month):%B %Y}" for month in range(MONTHS_VALID + 1)]
    bars = {label: dict.fromkeys(KINDS, 0) for label in ("Missing", "Overdue", *months)}
    for row in rows:
        known = row["gap"].capitalize()
        label = known if known in bars else f"{date.fromisoformat(row['due']):%B %Y}"
        bars[label][row["gap"]] += 1
    return [(label, list(counts.values())) for label, counts in bars.items()]


def parse_portfolio(text: str) -> list[Row]:
    """Parse a portfolio.

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


def path_for(given: str) -> ObjectStoragePath:
    """Parse a path or URI; a relative path starts at this file's folder."""
    return ObjectStoragePath(given if "://" in given else str(Path(__file__).parent / given))


@dag(
    schedule="@monthly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "portfolio": Param("data/portfolio.csv", type="string", minLength=1, title="Portfolio"),
        "reports": Param(
            "", type="string", title="Folder of the reports (default: beside the portfolio)"
        ),
        "served_at": Param(
            "", type="string", pattern="^(https?://.+)?$", title="URL of that folder, for the link"
        ),
        "form_name": Param(
            "Gas Safety Record", type="string", minLength=1, title="Name of the form"
        ),
        "first_day": Param(
            None, type=["null", "string"], format="date", title="From (default: the run's)"
        ),
        "last_day": Param(
            None, type=["null", "string"], format="date", title="To (default: the first)"
        ),
    },
)
def compliance_gap_report():
    @task
    def report(params, dag_run, data_interval_end=None):
        """List once, and report on each day; memory holds at most one form for each property and
        day.
        """
        from fsm_provider.hooks.fsm import FsmHook

        try:
            portfolio = parse_portfolio(
                path_for(params["portfolio"]).read_text(encoding="utf-8-sig")
            )
        except ValueError as error:
            raise AirflowFailException(f"{params['portfolio']}, {error}") from None
        # A manual run has no data interval since Airflow 3, and no run_after before it.
        own_day = (data_interval_end or dag_run.run_after).date()
        first = date.fromisoformat(params["first_day"]) if params["first_day"] else own_day
        last = date.fromisoformat(params["last_day"]) if params["last_day"] else first
        days = report_days(first, last)
        if not days:
            raise AirflowFailException(f"last_day: {last} is before {first}")
        forms = FsmHook().list_forms(created_since=interval_for(first)[0])
        latest, unreadable = latest_per_property(forms, days, params["form_name"])

        folder = path_for(params["reports"] or f"{params['portfolio']}.gaps")
        folder.mkdir(parents=True, exist_ok=True)
        notes = [LEGACY]
        if unreadable:
            left_out = ", ".join(str(form.id) for form in unreadable)
            notes.append(f"Left out, as their time or property is not readable: forms {left_out}.")
        print(*notes, sep="\n")
        counts = {}
        for day in days:
            rows = judge_all(portfolio, latest[day], day)
            gaps = gaps_for(rows)
            (folder / f"{day}.csv").write_text(as_csv(gaps), encoding="utf-8")
            page = folder / f"{day}.html"
            page_for(rows, day, notes).write(page)
            print(f"As of {day}, {len(gaps)} of {len(portfolio)} properties: {page}")
            counts[str(day)] = dict(Counter(row["gap"] for row in gaps))
        return {
            "gaps": counts,
            "unreadable": [form.id for form in unreadable],
            "note": LEGACY,
            "page": report_url(page, params["served_at"]),
        }

    link_to_report(report())


compliance_gap_report()
