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
off. The report is the file ``<day>.csv``, in ``<portfolio>.gaps/`` if no folder is named.

The service never lists legacy forms: a property whose records are legacy forms is reported as
missing.

A scheduled run, including one of ``airflow backfill``, reports as of its own day, from the forms of
``[start, end)``. The service has only a lower bound, so the DAG applies the upper bound itself. The
DAG starts paused, because its portfolio is only an example.
"""

from __future__ import annotations

import csv
import io
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

if TYPE_CHECKING:
    from fsm_provider.api import Form

MONTHS_READ = 26
MONTHS_VALID = 12
MONTHS_EARLY = 2
"""A check so long before its deadline counts as made on the deadline."""
COLUMNS = ("propertyID", "address", "gap", "due", "formID", "remark")
"""Columns of the CSV file."""

Row = dict[str, Any]


def add_months(day: date, months: int) -> date:
    """Return the same day of another month, or the last day of a shorter one."""
    months_since_year_0 = day.year * 12 + (day.month - 1) + months
    year, month_from_0 = divmod(months_since_year_0, 12)
    month = month_from_0 + 1
    _, days_in_month = monthrange(year, month)
    return date(year, month, min(day.day, days_in_month))


def interval_for(day: date) -> tuple[datetime, datetime]:
    """Return the 26 months before a day, as start and exclusive end."""
    first_day = add_months(day, -MONTHS_READ)
    return datetime.combine(first_day, time(), UTC), datetime.combine(day, time(), UTC)


def checks_per_property(
    forms: Iterable[Form], day: date, form_name: str
) -> tuple[dict[str, list[Form]], list[Any]]:
    """Return the forms of each property in the interval of a day, the oldest first.

    Of several on one day, the last counts. Beside them, it returns the ids of the forms whose time
    or property cannot be parsed, for a person to check.
    """
    start, end = interval_for(day)
    checks: dict[str, list[Form]] = {}
    unreadable = []
    for form in forms:
        if form.form_name != form_name:
            continue
        created = form.created_on_date_time
        if not isinstance(created, datetime) or form.property_id is None:
            unreadable.append(form.id)
        elif start <= created < end:
            known = checks.get(str(form.property_id), [])
            checks[str(form.property_id)] = last_of_each_day([*known, form])
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


def find_gaps(portfolio: Iterable[Row], checks: dict[str, list[Form]], day: date) -> list[Row]:
    """Return a row for each property whose record is missing, overdue or soon due."""
    gaps = []
    for listed in portfolio:
        forms = checks.get(listed["propertyID"], [])
        row = judge(listed, forms, day)
        if row["gap"] != "valid":
            gaps.append(row)
    return gaps


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
        "form_name": Param(
            "Gas Safety Record", type="string", minLength=1, title="Name of the form"
        ),
        "day": Param(
            None, type=["null", "string"], format="date", title="Day (default: the run's)"
        ),
    },
)
def compliance_gap_report():
    @task
    def report(params, dag_run, data_interval_end=None):
        """List the forms, and write the file of the day; memory holds the forms of 26 months."""
        from fsm_provider.hooks.fsm import FsmHook

        portfolio = read_portfolio(params["portfolio"])
        # A manual run has no data interval since Airflow 3, and no run_after before it.
        own_day = (data_interval_end or dag_run.run_after).date()
        day = date.fromisoformat(params["day"]) if params["day"] else own_day

        start, _ = interval_for(day)
        forms = FsmHook().client.list_forms(created_since=start)
        checks, unreadable = checks_per_property(forms, day, params["form_name"])
        print("Legacy forms are never listed: a property that has only those is missing here.")
        if unreadable:
            print(f"Left out, as their time or property is not readable: forms {unreadable}")

        gaps = find_gaps(portfolio, checks, day)
        folder = path_for(params["reports"] or f"{params['portfolio']}.gaps")
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{day}.csv"
        file.write_text(as_csv(gaps), encoding="utf-8")
        print(f"As of {day}, {len(gaps)} of {len(portfolio)} properties: {file}")
        return {
            "gaps": dict(Counter(row["gap"] for row in gaps)),
            "unreadable": unreadable,
            "file": str(file),
        }

    report()


compliance_gap_report()
