"""Turn a due list into jobs, each row once, and write the outcome of each row beside the list.

The list is a CSV file on this machine or in any object storage that Airflow knows. It has the columns
``reference`` (unique in the list; the job's ``customerReference``), ``propertyID`` and ``due`` (a date), and
may have ``notes``, ``priority`` and ``quotedAmount``; other columns are ignored. A row is due on its day and
after it, until a run has claimed it. All rows are checked before the first is claimed or sent.

``create_jobs`` writes ``<run>~<mark>.claims.csv`` before it creates jobs, even if it alone is cleared.
``write_outcomes`` writes ``<run>~<mark>.outcomes.csv`` afterwards. Both files are in ``<list>.outcomes/``.
Airflow keeps the mark beside the run's ledger. A run that is cleared finds both again. A run that is deleted
and triggered again under its id finds neither, and is another run; before Airflow 3.3 it finds both.

- ``created`` is never replaced, and its row is never sent again.
- ``not_created`` and ``rejected`` free a row for other runs, except ``rejected`` by HTTP 409: a job that
  exists may be the reason.
- Any other outcome, or none because the run died, holds the row, and the report names the run. Clear the run
  that died, or look in the service and write ``created`` or ``not_created`` into its outcomes. If you
  cleared ``create_jobs`` alone, clear ``write_outcomes`` afterwards.

The outcomes also contain the ids and quoted amounts of created jobs; ``invoice_on_signoff`` reads them.

One run claims at a time, including runs of a backfill, so that no two claim the same row. With several
workers, use a list and a folder that all of them can reach, such as ``s3://...``: one worker does not see a
claim on the disk of another, and would create the job twice. The DAG starts paused, because it creates jobs.
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
from uuid import uuid4

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    ObjectStoragePath,
    Param,
    dag,
    get_current_context,
    task,
)

from fsm_provider.compat import never_expire
from fsm_provider.operators.jobs import FsmCreateJobsOperator
from fsm_provider.state.variable_store import state_store_for
from fsm_provider.storage.atomic_files import AtomicFiles

NEEDED_COLUMNS = ("reference", "propertyID", "due")
JOB_COLUMNS = ("notes", "priority", "quotedAmount")
FILE_COLUMNS = ("reference", "propertyID", "outcome", "jobID", "quotedAmount", "link", "remark")
SHOWN_COLUMNS = ("reference", "propertyID", "outcome", "jobID", "remark")
NO_OUTCOME = "see the log of create_jobs"
CLAIMS, OUTCOMES = ".claims.csv", ".outcomes.csv"

Row = dict[str, Any]


def parse_due_list(text: str) -> list[Row]:
    """Parse a due list.

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
                raise ValueError(f"{line}: does not have as many columns as line 1")
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
                raise ValueError(
                    f"{line}, column due: {row['due']!r} is not a date like 2026-01-05"
                ) from None
    except csv.Error as error:
        raise ValueError(f"after line {reader.line_num}: {error}") from None
    return rows


def choose(rows: Iterable[Row], day: date, taken: dict[str, Row]) -> tuple[list[Row], list[Row]]:
    """Return the jobs to create for the rows due by ``day``, and the rows that a person has to check."""
    due = [row for row in rows if row["due"] <= day]
    free = [row for row in due if row["reference"] not in taken]
    held = [
        report_row(row["reference"], row["propertyID"], **taken[row["reference"]])
        for row in due
        if row["reference"] in taken and taken[row["reference"]]["outcome"] != "created"
    ]
    return [job_for(row) for row in free], held


def job_for(row: Row) -> Row:
    """Return the row as FsmCreateJobsOperator expects it."""
    fields = {column: row[column] for column in JOB_COLUMNS if row.get(column)}
    return {
        "key": row["reference"],
        "property_id": row["propertyID"],
        "job": {"customerReference": row["reference"], **fields},
    }


def report_row(reference: str, property_id: str, outcome: str = "claimed", **more: Any) -> Row:
    """Make a row of the claims, the outcomes and the report."""
    empty = dict.fromkeys(FILE_COLUMNS)
    return {**empty, "reference": reference, "propertyID": property_id, "outcome": outcome, **more}


def claimant_for(context: Any) -> str:
    """Name a run by its id and a mark, which is deleted with the run's ledger."""
    store = state_store_for(context)
    mark = store.get("mark", uuid4().hex[:8])
    store.set("mark", mark, retention=never_expire())
    return f"{context['run_id']}~{mark}"


def taken_from(folder: ObjectStoragePath, claimant: str) -> dict[str, Row]:
    """Map each reference that a claimant must not send to its outcome.

    It may send its own claims until they are created: its ledger knows what was sent.
    """
    taken: dict[str, Row] = {}
    for claims in folder.glob(f"*{CLAIMS}"):
        other = unquote(claims.name.removesuffix(CLAIMS))
        for reference, row in rows_for(folder, other).items():
            if row["outcome"] == "created" or not (other == claimant or is_free_again(row)):
                taken[reference] = {"outcome": row["outcome"] or "claimed", "remark": f"see run {other}"}
    return taken


def is_free_again(row: Row) -> bool:
    """Return whether a claim certainly created no job."""
    return row["outcome"] == "not_created" or (
        row["outcome"] == "rejected" and " 409" not in (row.get("remark") or "")
    )


def file_for(folder: ObjectStoragePath, claimant: str, suffix: str) -> ObjectStoragePath:
    """Return a claimant's file; its name is quoted, since a run's id contains colons."""
    return folder / f"{quote(claimant, safe='')}{suffix}"


def rows_for(folder: ObjectStoragePath, claimant: str) -> dict[str, Row]:
    """Map each reference of a claimant to its latest row."""
    files = [file_for(folder, claimant, suffix) for suffix in (CLAIMS, OUTCOMES)]
    return {row["reference"]: row for file in files for row in read_rows(file)}


def read_rows(path: ObjectStoragePath) -> list[Row]:
    """Read a file of claims or outcomes, which need not exist."""
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")))) if path.exists() else []


def write_rows(path: ObjectStoragePath, rows: list[Row]) -> None:
    """Write rows into a file of claims or outcomes, replacing those with the same references.

    Rows that are created stay unchanged.
    """
    if not rows:
        return
    known = read_rows(path)
    created = [row for row in known if row["outcome"] == "created"]
    text = io.StringIO()
    writer = csv.DictWriter(text, FILE_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({row["reference"]: row for row in [*known, *rows, *created]}.values())
    with AtomicFiles(path.parent, None) as files:
        files.store(path.name, [text.getvalue().encode()])


def claim(jobs: list[Row], folder: ObjectStoragePath, claimant: str) -> list[Row]:
    """Record which jobs a run is about to create: those not created since they were chosen.

    :raises AirflowFailException: if another run has claimed one since.
    """
    taken = taken_from(folder, claimant)
    jobs = [job for job in jobs if taken.get(job["key"], {}).get("outcome") != "created"]
    if since := {job["key"] for job in jobs} & taken.keys():
        raise AirflowFailException(f"claimed already: {', '.join(sorted(since))}: clear choose_rows too")
    rows = [report_row(job["key"], job["property_id"], remark=NO_OUTCOME) for job in jobs]
    write_rows(file_for(folder, claimant, CLAIMS), rows)
    if (outcomes := file_for(folder, claimant, OUTCOMES)).exists():
        write_rows(outcomes, rows)
    return jobs


class CreateClaimedJobs(FsmCreateJobsOperator):
    """Claims the rows in the task that creates the jobs, since it may be cleared alone."""

    def execute(self, context: Any) -> Any:
        """Claim, and create."""
        params = context["params"]
        if params["dry_run"]:
            raise AirflowSkipException("a dry run claims nothing")
        claimant = context["ti"].xcom_pull(task_ids="choose_rows", key="claimant")
        self.jobs = claim(self.jobs, folder_for(params), claimant)
        return super().execute(context)


def print_table(rows: list[Row]) -> None:
    """Log rows of the report."""
    lines = [SHOWN_COLUMNS, *([str(row[column] or "") for column in SHOWN_COLUMNS] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def path_for(given: str) -> ObjectStoragePath:
    """Parse a path or URI; a relative path starts at this file's folder."""
    return ObjectStoragePath(given if "://" in given else str(Path(__file__).parent / given))


def folder_for(params: dict[str, Any]) -> ObjectStoragePath:
    """Return the folder of claims and outcomes."""
    return path_for(params["outcomes"] or f"{params['due_list']}.outcomes")


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
    def choose_rows(params, dag_run, data_interval_end=None):
        """Read the list, and choose the rows that are due and claimed by no other run."""
        given = params["due_on"]
        # A manual run has no data interval since Airflow 3, and no run_after before it.
        day = date.fromisoformat(given) if given else (data_interval_end or dag_run.run_after).date()
        try:
            rows = parse_due_list(path_for(params["due_list"]).read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise AirflowFailException(f"{params['due_list']}, {error}") from None
        claimant = claimant_for(get_current_context())
        jobs, held = choose(rows, day, taken_from(folder_for(params), claimant))
        print(f"Of {len(rows)} rows, {len(jobs)} are due by {day} and free, {len(held)} need a check")
        if held:
            print_table(held)
        return {"day": str(day), "claimant": claimant, "jobs": jobs, "held": held}

    @task
    def write_outcomes(jobs, outcomes, claimant, params):
        """Write the outcomes; none if the creation died, so that the claims stay."""
        folder = folder_for(params)
        amounts = {job["key"]: job["job"].get("quotedAmount") for job in jobs}
        rows = [
            report_row(
                outcome["key"],
                outcome["propertyID"],
                outcome["outcome"].replace("existing", "created"),
                jobID=outcome["jobID"],
                quotedAmount=amounts[outcome["key"]],
                link=outcome["link"],
                remark=outcome["error"],
            )
            for outcome in outcomes or ()
        ]
        write_rows(file_for(folder, claimant, OUTCOMES), rows)
        return list(rows_for(folder, claimant).values())

    @task
    def report(day, written, held):
        """Print the outcome of each row that was due."""
        rows = list({row["reference"]: row for row in [*written, *held]}.values())
        print(f"Planned maintenance due by {day}:")
        print_table(rows)
        return {"day": day, "outcomes": dict(Counter(row["outcome"] for row in rows)), "rows": rows}

    chosen = choose_rows().as_setup()
    # [START howto_operator_create_jobs]
    check_jobs = FsmCreateJobsOperator(
        task_id="check_jobs", jobs=chosen["jobs"], max_jobs="{{ params.max_jobs }}", dry_run=True
    )
    create_jobs = CreateClaimedJobs(task_id="create_jobs", jobs=chosen["jobs"], max_active_tis_per_dag=1)
    # A teardown runs even if the creation failed, and does not decide the state of the run.
    written = write_outcomes(chosen["jobs"], create_jobs.output, chosen["claimant"]).as_teardown(
        setups=chosen
    )
    check_jobs >> create_jobs >> written
    # [END howto_operator_create_jobs]
    report(chosen["day"], written, chosen["held"])


planned_maintenance_jobs()
