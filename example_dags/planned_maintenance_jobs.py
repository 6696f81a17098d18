"""Turn a due list into jobs, each row once, whichever run asks.

The list is a CSV file, here or in any object storage. It has the columns ``reference`` (unique; the
job's ``customerReference``), ``propertyID`` and ``due`` (a date), and may have ``notes``,
``priority`` and ``quotedAmount``. A row is due on its day and after it. All rows are checked before
the first is sent.

The setting ``state_conn_id`` of the connection ``fsm_default`` names a connection to a SQL
database, such as SQLite, which records each reference that is sent. No run sends it again: not at
the same time, not after a clear, not if the run is deleted and triggered again. ``report`` prints
the outcome of each due row:

- ``created`` or ``existing``: the job exists. For ``existing``, the report names the task that
  created it.
- ``rejected`` or ``not_created``: the run fails, unless ``fail_on`` is another; the next one sends
  it again. If the row has changed since its job was created, no run sends it: restore the row, or
  give it another reference.
- ``uncertain``: the job may exist. Each run fails, and none sends the row again until a person has
  looked for the reference in the service, and runs ``python -m fsm_provider ledger settle
  PM-2026-0001`` with ``--job-id 4711`` or ``--not-created``, and ``--why "looked in the app"``.
"""

import csv
import io
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    ObjectStoragePath,
    Param,
    dag,
    task,
)

from fsm_provider.api.job_rows import jobs_from_rows
from fsm_provider.operators.jobs import FsmCreateJobsOperator, outcomes_as_text

OPTIONAL = ("notes", "priority", "quotedAmount")
"""Columns that the list may have."""
COLUMNS = {
    "customerReference": "reference",
    "notes": "notes",
    "priority": "priority",
    "quotedAmount": "quotedAmount",
}
"""The column of each field of a job."""


def due_jobs(text: str, day: date) -> list[dict]:
    """Return the jobs of a due list that are due by ``day``.

    :raises AirflowFailException: with all mistakes that are in the list.
    """
    rows = []
    jobs = []
    problems = []
    try:
        rows = rows_in(text)
        jobs = jobs_from_rows(rows, key="reference", property_id="propertyID", map=COLUMNS)
    except (csv.Error, ValueError) as error:
        problems.append(str(error))
    for number, row in enumerate(rows, 1):
        problems.extend(problems_in(number, row))
    if problems:
        raise AirflowFailException("\n".join(problems))

    due = []
    for row, job in zip(rows, jobs, strict=True):
        is_due = due_date(row) <= day
        if is_due:
            due.append(job)
    return due


def rows_in(text: str) -> list[dict]:
    """Return the rows of a due list; a column that the list may lack is empty then."""
    empty_row = dict.fromkeys(OPTIONAL)
    reader = csv.DictReader(io.StringIO(text), strict=True)
    return [empty_row | row for row in reader]


def problems_in(number: int, row: dict) -> list[str]:
    """Return what is wrong with a row, beside what ``jobs_from_rows`` checks."""
    problems = []
    # A quote that is closed rows later makes one row, and one job, of them all.
    if any("\n" in (row[column] or "") for column in OPTIONAL):
        problems.append(
            f"row {number}: has a line break: is a quote not closed? Write notes on one line"
        )
    try:
        due_date(row)
    except ValueError:
        problems.append(
            f"row {number}: due: should be a date such as 2026-01-05, not {row.get('due')!r}"
        )
    return problems


def due_date(row: dict) -> date:
    """Return the day from which a row is due.

    :raises ValueError: if it has none, or something else.
    """
    text = row.get("due") or ""
    return date.fromisoformat(text.strip())


def path_for(location: str) -> ObjectStoragePath:
    """Parse a path or URI; a relative path starts at this file's folder."""
    if "://" in location:
        return ObjectStoragePath(location)
    return ObjectStoragePath(str(Path(__file__).parent / location))


@dag(
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "due_list": Param(
            "data/planned_maintenance.csv", type="string", minLength=1, title="Due list"
        ),
        "due_on": Param(
            None, type=["null", "string"], format="date", title="Day (default: the run's)"
        ),
        "max_jobs": Param(50, type="integer", minimum=1, title="Refuse to create more"),
        "dry_run": Param(False, type="boolean", title="Check and show only"),
        "fail_on": Param(
            "any", enum=["any", "uncertain", "all", "none"], title="Outcomes that fail the run"
        ),
    },
)
def planned_maintenance_jobs():
    @task
    def choose_rows(params, dag_run, data_interval_end=None):
        """Return the jobs of the rows that are due."""
        # A manual run has no data interval since Airflow 3, and no run_after before it.
        own_day = (data_interval_end or dag_run.run_after).date()
        day = date.fromisoformat(params["due_on"]) if params["due_on"] else own_day
        text = path_for(params["due_list"]).read_text(encoding="utf-8-sig")
        return due_jobs(text, day)

    @task
    def report(outcomes):
        """Print the outcome of each row; return how many rows have each outcome."""
        print(outcomes_as_text(outcomes))
        # There are none if the creation failed before the first row.
        return dict(Counter(outcome["outcome"] for outcome in outcomes or ()))

    # The setup of the report below, which is a teardown: without rows there is nothing to report.
    jobs = choose_rows().as_setup()
    # [START howto_operator_create_jobs]
    create_jobs = FsmCreateJobsOperator(
        task_id="create_jobs",
        jobs=jobs,
        once_per="key",
        max_jobs="{{ params.max_jobs }}",
        dry_run="{{ params.dry_run }}",
        fail_on="{{ params.fail_on }}",
    )
    # A teardown runs even if the creation failed, and does not decide the state of the run.
    report(create_jobs.output).as_teardown(setups=jobs)
    # [END howto_operator_create_jobs]


planned_maintenance_jobs()
