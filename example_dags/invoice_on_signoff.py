"""Turn each signed-off job into one draft invoice over the amount that was quoted for it.

A listing of forms contains no amount, and the service cannot look a job up. So the amounts come
from the due list of ``planned_maintenance_jobs``, and the ids of the jobs from the ledger in the
database that ``state_conn_id`` of the connection ``fsm_default`` names: ``look_up_jobs`` is a dry
run and sends nothing. A row that has changed since its job was created is not that job's any more.

A draft invoice is a file, ``job=<id>.json``, on this machine or in any object storage that Airflow
knows: a job has one name, so it has one draft, whichever run or form comes again. A draft that is
there is left alone. So the accounting system has to copy the files, not to take them away. What
cannot be invoiced is printed by each run: a job that is not in the due list, or has no amount.

Each run lists what was updated in the last days; after a longer pause, trigger one with more days.
With several workers, use folders that all of them can reach, such as ``s3://...``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import ObjectStoragePath, Param, dag, task

from fsm_provider.api.job_rows import jobs_from_rows
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.jobs import FsmCreateJobsOperator
from fsm_provider.storage import AtomicFiles

COLUMNS = {
    "customerReference": "reference",
    "notes": "notes",
    "priority": "priority",
    "quotedAmount": "quotedAmount",
}
"""The column of each field of a job."""

Row = dict[str, Any]


def jobs_in(text: str) -> list[Row]:
    """Return the jobs of a due list, as ``planned_maintenance_jobs`` sends them."""
    # A column that the list does not have is empty in each row.
    empty_row = dict.fromkeys(("notes", "priority", "quotedAmount"))
    reader = csv.DictReader(io.StringIO(text), strict=True)
    rows = [empty_row | row for row in reader]
    return jobs_from_rows(rows, key="reference", property_id="propertyID", map=COLUMNS)


def created_jobs(jobs: list[Row], outcomes: Iterable[Row]) -> dict[str, Row]:
    """Return the fields of the jobs that were created, by their ids."""
    created = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome["jobID"]:
            created[str(outcome["jobID"])] = job["job"]
    return created


def decide(forms: Iterable[Row], created: dict[str, Row]) -> tuple[list[Row], list[str]]:
    """Return the drafts of sign-off forms, and why the other forms have none.

    Of two forms of a job, the older makes the draft.
    """
    drafts: dict[str, Row] = {}
    held = []
    for form in sorted(forms, key=oldest_first):
        job_id = str(form["jobID"])
        if job_id not in created:
            held.append(f"form {form['id']}: job {job_id} is not in the due list")
        elif Decimal(created[job_id].get("quotedAmount", "0")) <= 0:
            held.append(f"form {form['id']}: job {job_id} has no amount in the due list")
        elif job_id not in drafts:
            drafts[job_id] = draft_for(form, created[job_id])
    return list(drafts.values()), held


def oldest_first(form: Row) -> tuple[str, Any]:
    """Return what forms are sorted by."""
    return form["createdOnDateTime"] or "", form["id"]


def draft_for(form: Row, job: Row) -> Row:
    """Return the draft invoice of a job."""
    return {
        "status": "draft",
        "jobID": form["jobID"],
        "propertyID": form["propertyID"],
        "customerReference": job["customerReference"],
        "amount": job["quotedAmount"],
        "formID": form["id"],
        "signedOffOn": form["createdOnDateTime"],
    }


def draft_name(job_id: Any) -> str:
    """Return the file name of a job's draft; an identifier may be any text."""
    return f"job={quote(str(job_id), safe='')}.json"


def path_for(location: str) -> ObjectStoragePath:
    """Parse a path or URI; a relative path starts at this file's folder."""
    if "://" in location:
        return ObjectStoragePath(location)
    return ObjectStoragePath(str(Path(__file__).parent / location))


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "due_list": Param(
            "data/planned_maintenance.csv", type="string", minLength=1, title="Due list"
        ),
        "invoices": Param(
            "data/invoices", type="string", minLength=1, title="Folder of the drafts"
        ),
        "form_name": Param("Job Sign-off", type="string", minLength=1, title="Name of the form"),
        "days": Param(8, type="integer", minimum=1, title="Days to go back: phones sync late"),
    },
)
def invoice_on_signoff():
    @task
    def begin(params):
        """Return the time from which the run lists."""
        since = datetime.now(UTC) - timedelta(days=params["days"])
        return since.isoformat()

    @task
    def read_due_list(params):
        """Return the jobs of the due list."""
        return jobs_in(path_for(params["due_list"]).read_text(encoding="utf-8-sig"))

    @task
    def draft_invoices(listed, due_list, outcomes, params, **context):
        """Write the drafts that are not there yet; print what cannot be invoiced."""
        forms = [form for form in listed if form["formName"] == params["form_name"]]
        drafts, held = decide(forms, created_jobs(due_list, outcomes))
        written = []
        # A file is complete or not there.
        with AtomicFiles(path_for(params["invoices"]), context) as files:
            for draft in drafts:
                name = draft_name(draft["jobID"])
                if not (files.folder / name).exists():
                    files.store(name, [json.dumps(draft, indent=1).encode()])
                    written.append(draft)
        print(f"{len(written)} drafted, {len(held)} held", *held, sep="\n")
        return {"drafted": written, "held": held}

    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begin())
    due_list = read_due_list()
    look_up_jobs = FsmCreateJobsOperator(
        task_id="look_up_jobs",
        jobs=due_list,
        once_per="key",
        dry_run=True,
    )
    draft_invoices(list_forms.output, due_list, look_up_jobs.output)


invoice_on_signoff()
