"""Find properties without a valid gas-safety record: overdue, due within two months, or missing.

The rule is that of Great Britain: the Gas Safety (Installation and Use) Regulations 1998, with
regulation 36A since 6 April 2018. A check is due 12 months after the last one. One that is made in
the two months before that deadline counts as made on the deadline, so that nobody loses days by
being early. An earlier or a late one counts on its own day. This is an example, and no legal
advice.

The DAG compares the records of each property in 26 months, which are two or more, with the
portfolio: a CSV file with the columns ``propertyID`` and ``address``, on this machine or in any
object storage that Airflow knows. It takes ``createdOnDateTime`` as the day of the check, because a
listing does not contain the answers of a form; ``form_answers`` reads them. It takes the oldest of
these records to count on its own day: if that was early itself, a deadline may be up to two months
off. For each day the DAG writes ``<day>.csv`` into ``<portfolio>.gaps/``. The task has a link to
the report of its last day.

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
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    ObjectStoragePath,
    Param,
    dag,
    task,
)

# report_link.py is beside this file, in whichever folder below Airflow's folder of DAGs.
sys.path.append(str(Path(__file__).parent))
from report_link import link_to_report, report_url

if TYPE_CHECKING:
    from fsm_provider.api import Form

MONTHS_READ = 26
MONTHS_VALID = 12
MONTHS_EARLY = 2
"""A check so long before its deadline counts as made on the deadline."""
COLUMNS = ("propertyID", "address", "gap", "due", "formID", "remark")
"""Columns of the CSV file."""
LEGACY = (
    "The service never lists legacy forms: a property that has only those is reported as missing."
)

Row = dict[str, Any]


def add_months(day: date, months: int) -> date:
    """Return the same day of another month, or the last day of a shorter one."""
    months_since_year_0 = day.year * 12 + (day.month - 1) + months
    year, month_from_0 = divmod(months_since_year_0, 12)
    month = month_from_0 + 1
    _, days_in_month = monthrange(year, month)
    return date(year, month, min(day.day, days_in_month))


def report_days(first: date, last: date) -> list[date]:
    """Return the first day, and the same day of each month up to the last."""
    months = (last.year - first.year) * 12 + last.month - first.month
    days = []
    for month in range(months + 1):
        day = add_months(first, month)
        if day <= last:
            days.append(day)
    return days


def interval_for(day: date) -> tuple[datetime, datetime]:
    """Return the 26 months before a day, as start and exclusive end."""
    return midnight(add_months(day, -MONTHS_READ)), midnight(day)


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def checks_per_property(
    forms: Iterable[Form], days: Iterable[date], form_name: str
) -> tuple[dict[date, dict[str, list[Form]]], list[Form]]:
    """Return the forms of each property in the interval of each day, the oldest first.

    Of several on one day, the last counts. Beside them, it returns the forms whose time or property
    cannot be parsed, for a person to check. It reads the forms once, in any order.
    """
    intervals = {day: interval_for(day) for day in days}
    checks: dict[date, dict[str, list[Form]]] = {day: {} for day in intervals}
    unreadable = []
    for form in forms:
        if form.form_name != form_name:
            continue
        created = form.created_on_date_time
        if not isinstance(created, datetime) or form.property_id is None:
            unreadable.append(form)
            continue
        property_id = str(form.property_id)
        for day, (start, end) in intervals.items():
            if not start <= created < end:
                continue
            known = checks[day].get(property_id, [])
            checks[day][property_id] = last_of_each_day([*known, form])
    return checks, unreadable


def last_of_each_day(forms: Iterable[Form]) -> list[Form]:
    """Return the last form of each day, the oldest first."""
    by_day = {}
    for form in sorted(forms, key=lambda form: form.created_on_date_time):
        by_day[checked_on(form)] = form
    return list(by_day.values())


def checked_on(form: Form) -> date:
    return form.created_on_date_time.astimezone(UTC).date()


def deadline_after(checks: Iterable[date]) -> date | None:
    """Return the day by which the next check is due; None if there was none.

    :param checks: days of checks, the oldest first.
    """
    deadline = None
    for check in checks:
        counts_on = check
        if deadline and add_months(deadline, -MONTHS_EARLY) <= check <= deadline:
            counts_on = deadline
        deadline = add_months(counts_on, MONTHS_VALID)
    return deadline


def judge_all(portfolio: Iterable[Row], checks: dict[str, list[Form]], day: date) -> list[Row]:
    """Return a row for each property: its record is missing, overdue, soon due or valid."""
    rows = []
    for listed in portfolio:
        forms = checks.get(listed["propertyID"], [])
        rows.append(judge(listed, forms, day))
    return rows


def judge(listed: Row, forms: list[Form], day: date) -> Row:
    """Return the row of a property, by its row in the portfolio and its forms."""
    row = dict.fromkeys(COLUMNS) | listed
    due = deadline_after(checked_on(form) for form in forms)
    if due is None:
        row["gap"] = "missing"
        row["remark"] = f"none in {MONTHS_READ} months; legacy forms are not listed"
        return row
    row["gap"] = gap_for(due, day)
    row["due"] = str(due)
    row["formID"] = forms[-1].id
    return row


def gap_for(due: date, day: date) -> str:
    """Return the state of a record on a day, if the next record is due on ``due``."""
    if due < day:
        return "overdue"
    if add_months(due, -MONTHS_EARLY) <= day:
        return "due"
    return "valid"


def gaps_for(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that need action."""
    return [row for row in rows if row["gap"] != "valid"]


def count_by_gap(rows: Iterable[Row]) -> dict[str, int]:
    """Count the properties of each kind that occurs."""
    return dict(Counter(row["gap"] for row in rows))


def parse_portfolio(text: str) -> list[Row]:
    """Parse a portfolio.

    :raises ValueError: naming the line that has no property, or one that is there twice.
    """
    reader = csv.DictReader(io.StringIO(text))
    rows: dict[str, Row] = {}
    for row in reader:
        property_id = (row.get("propertyID") or "").strip()
        if not property_id:
            raise ValueError(f"line {reader.line_num}: has no propertyID")
        if property_id in rows:
            raise ValueError(f"line {reader.line_num}: property {property_id} is there twice")
        rows[property_id] = {"propertyID": property_id, "address": row.get("address")}
    return list(rows.values())


def as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def path_for(location: str) -> ObjectStoragePath:
    """Parse a path or URI; a relative path starts at this file's folder."""
    if "://" in location:
        return ObjectStoragePath(location)
    return ObjectStoragePath(str(Path(__file__).parent / location))


def read_portfolio(location: str) -> list[Row]:
    """Read the portfolio; fail without a retry if a line of it is wrong."""
    text = path_for(location).read_text(encoding="utf-8-sig")
    try:
        return parse_portfolio(text)
    except ValueError as error:
        raise AirflowFailException(f"{location}, {error}") from None


def days_for(params: dict, own_day: date) -> list[date]:
    """Return the days to report on: those of the parameters, or the run's own."""
    first = own_day
    if params["first_day"]:
        first = date.fromisoformat(params["first_day"])
    last = first
    if params["last_day"]:
        last = date.fromisoformat(params["last_day"])
    days = report_days(first, last)
    if not days:
        raise AirflowFailException(f"last_day: {last} is before {first}")
    return days


def notes_for(unreadable_ids: list[Any]) -> list[str]:
    """Return what a reader of the page should know: which records it does not count."""
    notes = [LEGACY]
    if unreadable_ids:
        left_out = ", ".join(map(str, unreadable_ids))
        notes.append(f"Left out, as their time or property is not readable: forms {left_out}.")
    return notes


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
            "",
            type="string",
            title="Folder of the reports (default: beside the portfolio)",
        ),
        "served_at": Param(
            "",
            type="string",
            pattern="^(https?://.+)?$",
            title="URL of that folder, for the link",
        ),
        "form_name": Param(
            "Gas Safety Record",
            type="string",
            minLength=1,
            title="Name of the form",
        ),
        "first_day": Param(
            None,
            type=["null", "string"],
            format="date",
            title="From (default: the run's)",
        ),
        "last_day": Param(
            None,
            type=["null", "string"],
            format="date",
            title="To (default: the first)",
        ),
    },
)
def compliance_gap_report():
    @task
    def report(params, dag_run, data_interval_end=None):
        """List the forms once, and write the files of each day.

        Memory holds the forms of 26 months, for each day.
        """
        from fsm_provider.hooks.fsm import FsmHook

        portfolio = read_portfolio(params["portfolio"])
        # A manual run has no data interval since Airflow 3, and no run_after before it.
        own_day = (data_interval_end or dag_run.run_after).date()
        days = days_for(params, own_day)

        start, _ = interval_for(days[0])
        forms = FsmHook().client.list_forms(created_since=start)
        checks, unreadable = checks_per_property(forms, days, params["form_name"])
        unreadable_ids = [form.id for form in unreadable]
        notes = notes_for(unreadable_ids)
        print(*notes, sep="\n")

        folder = path_for(params["reports"] or f"{params['portfolio']}.gaps")
        folder.mkdir(parents=True, exist_ok=True)
        counts = {}
        for day in days:
            rows = judge_all(portfolio, checks[day], day)
            gaps = gaps_for(rows)
            file = folder / f"{day}.csv"
            file.write_text(as_csv(gaps), encoding="utf-8")
            print(f"As of {day}, {len(gaps)} of {len(portfolio)} properties: {file}")
            counts[str(day)] = count_by_gap(gaps)

        return {
            "gaps": counts,
            "unreadable": unreadable_ids,
            "note": LEGACY,
            # The link leads to the report of the last day.
            "url": report_url(file, params["served_at"]),
        }

    link_to_report(report())


compliance_gap_report()
