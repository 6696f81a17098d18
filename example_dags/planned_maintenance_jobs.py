"""A due list becomes jobs, each row once, and what came of each row is written beside the list.

The list is a CSV file on this machine or in any object storage that Airflow knows. It has the columns
``reference`` (unique in the list; the job's ``customerReference``), ``propertyID`` and ``due`` (a date),
and may have ``notes``, ``priority`` and ``quotedAmount``; others are ignored. A row is due on its day and
after it, until a run has claimed it. All rows are checked before anything is claimed or sent.

A run writes ``<run>.claims.csv`` before it creates jobs and ``<run>.outcomes.csv`` after, both into
``<list>.outcomes/``. What another run has claimed is left alone, unless its outcomes say ``rejected`` or
``not_created``. Where they say ``uncertain``, or nothing because the run died, the report names the run:
clear the one that died, or look in the service and write ``created`` or ``not_created`` into its outcomes.
The ids and the quoted amounts of created jobs are there for others to read: ``invoice_on_signoff`` does.

One run claims at a time, a backfill's too, so that no two claim the same row. With several workers, give a
list and a folder that all of them reach, such as ``s3://...``: a claim on the disk of one is not seen by
another, and the job would be created twice. The DAG starts paused, since it creates jobs.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    ObjectStoragePath,
    Param,
    dag,
    task,
)

from fsm_provider.operators.jobs import FsmCreateJobsOperator

NEEDED_COLUMNS = ("reference", "propertyID", "due")
JOB_COLUMNS = ("notes", "priority", "quotedAmount")
FILE_COLUMNS = ("reference", "propertyID", "outcome", "jobID", "quotedAmount", "link", "remark")
SHOWN_COLUMNS = ("reference", "propertyID", "outcome", "jobID", "remark")
FREE_AGAIN = ("rejected", "not_created")
CLAIMS, OUTCOMES = ".claims.csv", ".outcomes.csv"

Row = dict[str, Any]


def read_due_list(text: str) -> list[Row]:
    """Read a due list.

    :raises ValueError: naming the line and the column of the first mistake.
    """
    reader = csv.DictReader(io.StringIO(text), strict=True)
    lines: dict[str, int] = {}
    rows: list[Row] = []
    try:
        for column in NEEDED_COLUMNS:
            if column not in (reader.fieldnames or ()):
                raise ValueError(f"line 1: there is no column {column}")
        for row in reader:
            line = f"line {reader.line_num}"
            if None in row or None in row.values():
                raise ValueError(f"{line}: has not as many columns as line 1")
            row = {column: cell.strip() for column, cell in row.items()}
            for column in NEEDED_COLUMNS:
                if not row[column]:
                    raise ValueError(f"{line}, column {column}: is empty")
            first = lines.setdefault(row["reference"], reader.line_num)
            if first != reader.line_num:
                raise ValueError(f"{line}, column reference: {row['reference']} is on line {first} too")
            try:
                rows.append({**row, "due": date.fromisoformat(row["due"])})
            except ValueError:
                raise ValueError(f"{line}, column due: {row['due']!r} is no date like 2026-01-05") from None
    except csv.Error as error:
        raise ValueError(f"after line {reader.line_num}: {error}") from None
    return rows


def choose(rows: Iterable[Row], day: date, taken: dict[str, Row]) -> tuple[list[Row], list[Row]]:
    """Give the jobs to create for the rows due by ``day``, and what somebody has to look at instead."""
    due = [row for row in rows if row["due"] <= day]
    free = [row for row in due if row["reference"] not in taken]
    held = [
        report_row(row["reference"], row["propertyID"], **taken[row["reference"]])
        for row in due
        if row["reference"] in taken and taken[row["reference"]]["outcome"] != "created"
    ]
    return [job_of(row) for row in free], held


def job_of(row: Row) -> Row:
    """Give the row as FsmCreateJobsOperator takes it."""
    draft = {column: row[column] for column in JOB_COLUMNS if row.get(column)}
    return {
        "key": row["reference"],
        "property_id": row["propertyID"],
        "job": {"customerReference": row["reference"], **draft},
    }


def report_row(reference: str, property_id: str, outcome: str = "claimed", **more: Any) -> Row:
    """Give a row of the claims, the outcomes and the report."""
    empty = dict.fromkeys(FILE_COLUMNS)
    return {**empty, "reference": reference, "propertyID": property_id, "outcome": outcome, **more}


def taken_by_others(folder: ObjectStoragePath, run_id: str) -> dict[str, Row]:
    """Map each reference that another run has claimed, and not freed again, to what is known of it."""
    taken: dict[str, Row] = {}
    for claims in folder.glob(f"*{CLAIMS}"):
        run = unquote(claims.name.removesuffix(CLAIMS))
        latest = {
            row["reference"]: row for row in read_rows(claims) + read_rows(file_of(folder, run, OUTCOMES))
        }
        for reference, row in latest.items():
            if run != run_id and row["outcome"] not in FREE_AGAIN:
                taken[reference] = {"outcome": row["outcome"] or "claimed", "remark": f"see run {run}"}
    return taken


def file_of(folder: ObjectStoragePath, run_id: str, suffix: str) -> ObjectStoragePath:
    """Give a run's file; its name is the run's id, quoted, for that holds colons."""
    return folder / f"{quote(run_id, safe='')}{suffix}"


def read_rows(path: ObjectStoragePath) -> list[Row]:
    """Read a file of claims or outcomes, which need not exist."""
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")))) if path.exists() else []


def write_rows(path: ObjectStoragePath, rows: list[Row]) -> None:
    """Write rows into a file of claims or outcomes, in the place of those with the same references."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, FILE_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({row["reference"]: row for row in read_rows(path) + rows}.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue(), encoding="utf-8")


def print_table(rows: list[Row]) -> None:
    """Log rows of the report."""
    lines = [SHOWN_COLUMNS, *([str(row[column] or "") for column in SHOWN_COLUMNS] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def path_of(given: str) -> ObjectStoragePath:
    """Give a path or an address as a path; one that is relative begins beside this file."""
    return ObjectStoragePath(given if "://" in given else str(Path(__file__).parent / given))


def folder_of(params: dict[str, Any]) -> ObjectStoragePath:
    """Give the folder of claims and outcomes."""
    return path_of(params["outcomes"] or f"{params['due_list']}.outcomes")


@dag(
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "due_list": Param("data/planned_maintenance.csv", type="string", minLength=1, title="Due list"),
        "outcomes": Param("", type="string", title="Folder of the outcomes (default: beside the list)"),
        "due_on": Param(None, type=["null", "string"], format="date", title="Day (default: the run's)"),
        "max_jobs": Param(50, type="integer", minimum=1, title="Refuse to create more"),
        "dry_run": Param(False, type="boolean", title="Check and show only"),
    },
)
def planned_maintenance_jobs():
    @task(multiple_outputs=True)
    def choose_rows(params, run_id, dag_run, data_interval_end=None):
        """Read the list, and choose what is due and claimed by no other run."""
        given = params["due_on"]
        # A run by hand has no data interval since Airflow 3, and no run_after before it.
        day = date.fromisoformat(given) if given else (data_interval_end or dag_run.run_after).date()
        try:
            rows = read_due_list(path_of(params["due_list"]).read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise AirflowFailException(f"{params['due_list']}, {error}") from None
        jobs, held = choose(rows, day, taken_by_others(folder_of(params), run_id))
        print(f"Of {len(rows)} rows, {len(jobs)} are due by {day} and free, {len(held)} need a look")
        if held:
            print_table(held)
        return {"day": str(day), "jobs": jobs, "held": held}

    @task(max_active_tis_per_dag=1)
    def claim_rows(jobs, params, run_id):
        """Write down what this run is about to create."""
        if params["dry_run"]:
            raise AirflowSkipException("a dry run claims nothing")
        folder = folder_of(params)
        # Cleared, this runs again: meanwhile another run may have taken what this one did not create.
        if since := {job["key"] for job in jobs} & taken_by_others(folder, run_id).keys():
            raise AirflowFailException(f"other runs have {', '.join(sorted(since))}: clear choose_rows too")
        rows = [report_row(job["key"], job["property_id"]) for job in jobs]
        write_rows(file_of(folder, run_id, CLAIMS), rows)
        if (outcomes := file_of(folder, run_id, OUTCOMES)).exists():
            write_rows(outcomes, rows)
        return jobs

    @task
    def write_outcomes(jobs, outcomes, params, run_id):
        """Write down what came of it; nothing where the creation died, so that the claims stay."""
        if outcomes is None:
            return [
                report_row(job["key"], job["property_id"], remark="see the log of create_jobs")
                for job in jobs
            ]
        amounts = {job["key"]: job["job"].get("quotedAmount") for job in jobs}
        rows = [
            report_row(
                outcome["key"],
                outcome["propertyID"],
                outcome["outcome"],
                jobID=outcome["jobID"],
                quotedAmount=amounts[outcome["key"]],
                link=outcome["link"],
                remark=outcome["error"],
            )
            for outcome in outcomes
        ]
        write_rows(file_of(folder_of(params), run_id, OUTCOMES), rows)
        return rows

    @task
    def report(day, written, held):
        """Show what became of each row that was due."""
        rows = [*written, *held]
        print(f"Planned maintenance due by {day}:")
        print_table(rows)
        return {"day": day, "outcomes": dict(Counter(row["outcome"] for row in rows)), "rows": rows}

    chosen = choose_rows()
    # [START howto_operator_create_jobs]
    check_jobs = FsmCreateJobsOperator(
        task_id="check_jobs", jobs=chosen["jobs"], max_jobs="{{ params.max_jobs }}", dry_run=True
    )
    claimed = claim_rows(chosen["jobs"]).as_setup()
    create_jobs = FsmCreateJobsOperator(task_id="create_jobs", jobs=claimed)
    # A teardown runs also where the creation failed, and leaves it to the creation to fail the run.
    written = write_outcomes(claimed, create_jobs.output).as_teardown(setups=claimed)
    check_jobs >> claimed >> create_jobs >> written
    # [END howto_operator_create_jobs]
    report(chosen["day"], written, chosen["held"])


planned_maintenance_jobs()
