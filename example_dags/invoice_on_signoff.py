"""Turn each signed-off job into one draft invoice over the amount that was quoted for it.

A listing of forms contains no amount, and the service cannot look a job up. So the amounts come
from the due list of ``planned_maintenance_jobs``, and the ids of the jobs from the ledger in the
database that ``state_conn_id`` of the connection ``fsm_default`` names: ``look_up_jobs`` is a dry
run and sends nothing. A row that has changed since its job was created is not that job's any more.
So an amount that is agreed, or corrected, after that goes into a column of its own,
``agreedAmount``, which is sent to nobody and counts.

A draft invoice is a file, ``job=<id>.json``, on this machine or in any object storage that Airflow
knows. The accounting system may take it away. ``records/job=<id>.json`` stays: a job that has one
gets no other draft invoice, whichever run or form comes again. A form that leads to no draft
invoice is kept as ``held/job=<id>,form=<id>.json`` with the reason, and reported when it is new:

- The job was created for no row of the due list as it is now, or the row has no amount above zero.
  Each run checks again.
- The job already has a draft invoice, for another sign-off form. Delete the file once somebody has
  checked.
- A run was stopped while it wrote the draft invoice, and there is none: either it was never
  written, or it is already taken away. If the accounting system has it, move
  ``begun/job=<id>.json`` into ``records/``, else to the drafts.

Each run lists what was updated since the last run that *succeeded*, less a look-back for phones
that sync late. No event starts it: an event that comes while a DAG is paused or at
``max_active_runs`` waits for the next event, and so would an invoice. The time of the last run is
in an Airflow Variable named like the DAG; the last task writes it. The DAG allows one run at a
time, so do not backfill it. It starts paused: until a run has succeeded, each begins one look-back
before itself. With several workers, use folders that all of them can reach, such as ``s3://...``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Container, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import ObjectStoragePath, Param, Variable, dag, task

from fsm_provider.api.job_rows import jobs_from_rows
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.jobs import FsmCreateJobsOperator
from fsm_provider.storage import AtomicFiles

VARIABLE = "invoice_on_signoff"

Row = dict[str, Any]


def jobs_in(text: str, amount_column: str = "quotedAmount") -> list[Row]:
    """Return the jobs of a due list, as ``planned_maintenance_jobs`` sends them.

    :param amount_column: the column of the amounts.
    """
    columns = {
        "customerReference": "reference",
        "notes": "notes",
        "priority": "priority",
        "quotedAmount": amount_column,
    }
    # A column that the list does not have is empty in each row.
    empty_row = dict.fromkeys(("notes", "priority", "quotedAmount", amount_column))
    reader = csv.DictReader(io.StringIO(text), strict=True)
    rows = [empty_row | row for row in reader]
    return jobs_from_rows(rows, key="reference", property_id="propertyID", map=columns)


def created_jobs(due_list: dict[str, list[Row]], outcomes: Iterable[Row]) -> dict[str, Row]:
    """Return the jobs that were created, by their ids, and what they were created with."""
    created = {}
    rows = zip(due_list["jobs"], due_list["agreed"], outcomes, strict=True)
    for quoted, agreed, outcome in rows:
        if outcome["jobID"]:
            # An agreed amount takes the place of the quoted one.
            created[str(outcome["jobID"])] = quoted["job"] | agreed["job"]
    return created


def forms_to_decide(held: list[Row], listed: list[Row], form_name: str) -> list[Row]:
    """Return the forms that were held, and the sign-off forms of the listing."""
    forms = {form["id"]: form for form in held}
    for form in listed:
        if form["formName"] == form_name:
            # If the form was held, the listed version of it is newer.
            forms[form["id"]] = form
    return list(forms.values())


def decide(
    forms: Iterable[Row],
    invoiced: dict[str, Any],
    created: dict[str, Row],
    begun: Container[str] = (),
) -> tuple[list[Row], list[Row]]:
    """Return the drafts to write, and the forms without a draft, each with the reason.

    :param forms: sign-off forms; of two on a job, the older makes the draft.
    :param invoiced: jobs that have a draft, and the form that made it.
    :param created: jobs that were created, and what they were created with.
    :param begun: jobs whose draft may or may not have been written.
    """
    invoiced = dict(invoiced)
    drafts = []
    held = []
    for form in sorted(forms, key=oldest_first):
        job_id = str(form["jobID"])
        if invoiced.get(job_id) == form["id"]:
            # This form made the draft.
            continue
        reason = reason_to_hold(job_id, invoiced, created, begun)
        if reason:
            held.append({**form, "reason": reason})
        else:
            drafts.append(draft_for(form, created[job_id]))
            invoiced[job_id] = form["id"]
    return drafts, held


def oldest_first(form: Row) -> tuple[str, Any]:
    """Return what forms are sorted by."""
    return form["createdOnDateTime"] or "", form["id"]


def reason_to_hold(
    job_id: str, invoiced: dict[str, Any], created: dict[str, Row], begun: Container[str]
) -> str | None:
    """Return why a form of a job makes no draft; None if it makes one."""
    if job_id in invoiced:
        return f"job {job_id} has a draft for form {invoiced[job_id]}"
    if job_id in begun:
        return f"job {job_id} may have a draft: see begun/{draft_name(job_id)}"
    if job_id not in created:
        return f"job {job_id} is not in the due list"
    amount = created[job_id].get("quotedAmount", "0")
    if Decimal(amount) <= 0:
        return f"job {job_id} has no amount in the due list"
    return None


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


def held_name(form: Row) -> str:
    """Return the file name of a form that is held."""
    job = draft_name(form["jobID"]).removesuffix(".json")
    return f"held/{job},form={form['id']}.json"


def hand_over(files: AtomicFiles, draft: Row) -> None:
    """Write a draft and record it, so that a draft that is taken away is not written again."""
    name = draft_name(draft["jobID"])
    content = bytes_for(draft)
    # In this order: if the task is stopped in between, record_drafts sees what may be there.
    files.store(f"begun/{name}", [content])
    files.store(name, [content])
    files.store(f"records/{name}", [content])
    (files.folder / "begun" / name).unlink()


def record_drafts(files: AtomicFiles) -> tuple[set[str], set[str]]:
    """Record each draft in the folder, from a stopped run or a version without records.

    :return: the names of the drafts that were written, and of those that may have been.
    """
    recorded = names_in(files.folder / "records")
    begun = names_in(files.folder / "begun")
    unrecorded = names_in(files.folder) - recorded
    for name in unrecorded:
        content = (files.folder / name).read_bytes()
        files.store(f"records/{name}", [content])
        recorded.add(name)
    for name in begun & recorded:
        (files.folder / "begun" / name).unlink()
    return recorded, begun - recorded


def names_in(folder: ObjectStoragePath) -> set[str]:
    """Return the names of the drafts in a folder."""
    return {path.name for path in folder.glob("job=*.json")}


def jobs_with_file(forms: Iterable[Row], names: Container[str]) -> set[str]:
    """Return the jobs of forms whose draft has one of these file names."""
    jobs = set()
    for form in forms:
        if draft_name(form["jobID"]) in names:
            jobs.add(str(form["jobID"]))
    return jobs


def read_held(folder: ObjectStoragePath) -> list[Row]:
    """Return the forms that earlier runs held."""
    return [read_record(path) for path in (folder / "held").glob("*.json")]


def read_invoiced(folder: ObjectStoragePath, job_ids: Iterable[str]) -> dict[str, Any]:
    """Return the form that made the draft of each job, as the records say."""
    invoiced = {}
    for job_id in job_ids:
        record = read_record(folder / "records" / draft_name(job_id))
        invoiced[job_id] = record["formID"]
    return invoiced


def remove_released(
    folder: ObjectStoragePath, held_before: Iterable[Row], held: Iterable[Row]
) -> None:
    """Remove the files of the forms that are no longer held."""
    held_ids = {form["id"] for form in held}
    for form in held_before:
        if form["id"] not in held_ids:
            (folder / held_name(form)).unlink()


def read_record(path: ObjectStoragePath) -> Row:
    record: Row = json.loads(path.read_text("utf-8"))
    return record


def bytes_for(record: Row) -> bytes:
    return json.dumps(record, ensure_ascii=False, indent=1).encode()


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
            "data/planned_maintenance.csv",
            type="string",
            minLength=1,
            title="Due list",
        ),
        "invoices": Param(
            "data/invoices",
            type="string",
            minLength=1,
            title="Folder of the drafts",
        ),
        "form_name": Param(
            "Job Sign-off",
            type="string",
            minLength=1,
            title="Name of the form",
        ),
        "look_back_hours": Param(
            168,
            type="integer",
            minimum=1,
            title="Hours that a phone may sync late",
        ),
    },
)
def invoice_on_signoff():
    @task(multiple_outputs=True)
    def begin(params):
        """Take the time before anything is listed; return it, and the time to list from."""
        now = datetime.now(UTC).isoformat()
        last_run = Variable.get(VARIABLE, "")
        if not last_run:
            # The first run of all. If it fails, the next run lists from here too.
            Variable.set(VARIABLE, now)
            last_run = now
        since = datetime.fromisoformat(last_run) - timedelta(hours=params["look_back_hours"])
        return {"now": now, "since": since.isoformat()}

    @task(multiple_outputs=True)
    def read_due_list(params):
        """Return the jobs of the due list, with the quoted and with the agreed amounts."""
        text = path_for(params["due_list"]).read_text(encoding="utf-8-sig")
        return {"jobs": jobs_in(text), "agreed": jobs_in(text, "agreedAmount")}

    @task
    def draft_invoices(listed, due_list, outcomes, params, **context):
        """Write what can be drafted, and hold the rest."""
        folder = path_for(params["invoices"])
        held_before = read_held(folder)
        forms = forms_to_decide(held_before, listed, params["form_name"])
        created = created_jobs(due_list, outcomes)

        with AtomicFiles(folder, context) as files:
            recorded_names, begun_names = record_drafts(files)
            invoiced = read_invoiced(folder, jobs_with_file(forms, recorded_names))
            begun = jobs_with_file(forms, begun_names)
            drafted, held = decide(forms, invoiced, created, begun)
            for draft in drafted:
                hand_over(files, draft)
                amount = draft["amount"]
                print(f"Drafted: job {draft['jobID']}, {amount}, for form {draft['formID']}")
            newly_held = [form for form in held if form not in held_before]
            for form in newly_held:
                files.store(held_name(form), [bytes_for(form)])
                print(f"Held: form {form['id']}: {form['reason']}")
        remove_released(folder, held_before, held)

        print(f"{len(drafted)} drafted, {len(newly_held)} newly held, {len(held)} held in all")
        return {"drafted": drafted, "newly_held": newly_held, "held": len(held)}

    @task
    def commit(now):
        """Save the time of this run, now that all is done."""
        last_run = Variable.get(VARIABLE, now)
        if datetime.fromisoformat(last_run) > datetime.fromisoformat(now):
            # This run was cleared, and a later one has saved its time: it is not moved back.
            return
        Variable.set(VARIABLE, now)

    begun = begin()
    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begun["since"])
    due_list = read_due_list()
    look_up_jobs = FsmCreateJobsOperator(
        task_id="look_up_jobs",
        jobs=due_list["jobs"],
        once_per="key",
        dry_run=True,
    )
    drafted = draft_invoices(list_forms.output, due_list, look_up_jobs.output)
    drafted >> commit(begun["now"])


invoice_on_signoff()
