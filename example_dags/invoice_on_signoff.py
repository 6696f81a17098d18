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
OPTIONAL = ("notes", "priority", "quotedAmount")

Row = dict[str, Any]


def jobs_in(text: str, amount: str = "quotedAmount") -> list[Row]:
    """Return the jobs of a due list, as ``planned_maintenance_jobs`` sends them.

    :param amount: the column of the amounts.
    """
    columns = (*OPTIONAL, amount)
    rows = [dict.fromkeys(columns) | row for row in csv.DictReader(io.StringIO(text), strict=True)]
    fields = {
        "customerReference": "reference",
        **{name: name for name in OPTIONAL},
        "quotedAmount": amount,
    }
    return jobs_from_rows(rows, key="reference", property_id="propertyID", map=fields)


def decide(
    forms: Iterable[Row],
    invoiced: dict[str, Any],
    created: dict[str, Row],
    begun: Container[str] = (),
) -> tuple[list[Row], list[Row]]:
    """Return the drafts to write, and the forms without one, each with the reason.

    :param forms: sign-off forms; of two on a job, the older makes the draft.
    :param invoiced: jobs that have a draft, and the form that made it.
    :param created: jobs that were created, and what they were created with.
    :param begun: jobs whose draft may or may not have been written.
    """
    invoiced, drafts, held = dict(invoiced), [], []
    for form in sorted(forms, key=lambda form: (form["createdOnDateTime"] or "", form["id"])):
        job = str(form["jobID"])
        if invoiced.get(job) == form["id"]:
            continue
        if job in invoiced:
            held.append({**form, "reason": f"job {job} has a draft for form {invoiced[job]}"})
        elif job in begun:
            held.append(
                {**form, "reason": f"job {job} may have a draft: see begun/{draft_name(job)}"}
            )
        elif job not in created:
            held.append({**form, "reason": f"job {job} is not in the due list"})
        elif Decimal(amount := created[job].get("quotedAmount", "0")) <= 0:
            held.append({**form, "reason": f"job {job} has no amount in the due list"})
        else:
            invoiced[job] = form["id"]
            drafts.append(
                {
                    "status": "draft",
                    "jobID": form["jobID"],
                    "propertyID": form["propertyID"],
                    "customerReference": created[job]["customerReference"],
                    "amount": amount,
                    "formID": form["id"],
                    "signedOffOn": form["createdOnDateTime"],
                }
            )
    return drafts, held


def draft_name(job: Any) -> str:
    """Return the file name of a job's draft; an identifier may be any text."""
    return f"job={quote(str(job), safe='')}.json"


def hand_over(files: AtomicFiles, draft: Row) -> None:
    """Write a draft and record it, so that one that is removed later is not written again."""
    name = draft_name(draft["jobID"])
    for place in ("begun/", "", "records/"):
        files.store(f"{place}{name}", [bytes_for(draft)])
    (files.folder / "begun" / name).unlink()


def record_drafts(files: AtomicFiles) -> tuple[set[str], set[str]]:
    """Record each draft in the folder, from a stopped run or a version without records.

    :return: the names of the drafts that were written, and of those that may have been.
    """
    recorded, begun = (names_in(files.folder / place) for place in ("records", "begun"))
    for name in names_in(files.folder) - recorded:
        files.store(f"records/{name}", [(files.folder / name).read_bytes()])
        recorded.add(name)
    for name in begun & recorded:
        (files.folder / "begun" / name).unlink()
    return recorded, begun - recorded


def names_in(folder: ObjectStoragePath) -> set[str]:
    return {path.name for path in folder.glob("job=*.json")}


def held_name(form: Row) -> str:
    return f"held/{draft_name(form['jobID']).removesuffix('.json')},form={form['id']}.json"


def read_record(path: ObjectStoragePath) -> Row:
    record: Row = json.loads(path.read_text("utf-8"))
    return record


def bytes_for(record: Row) -> bytes:
    return json.dumps(record, ensure_ascii=False, indent=1).encode()


def path_for(given: str) -> ObjectStoragePath:
    """Parse a path or URI; a relative path starts at this file's folder."""
    return ObjectStoragePath(given if "://" in given else str(Path(__file__).parent / given))


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
        "look_back_hours": Param(
            168, type="integer", minimum=1, title="Hours that a phone may sync late"
        ),
    },
)
def invoice_on_signoff():
    @task(multiple_outputs=True)
    def begin(params):
        """Take the time before anything is listed."""
        now, look_back = datetime.now(UTC), timedelta(hours=params["look_back_hours"])
        if not (
            stored := Variable.get(VARIABLE, "")
        ):  # while the first runs fail, nothing is passed over
            Variable.set(VARIABLE, stored := now.isoformat())
        last = datetime.fromisoformat(stored)
        return {"now": now.isoformat(), "since": (last - look_back).isoformat()}

    @task(multiple_outputs=True)
    def read_due_list(params):
        text = path_for(params["due_list"]).read_text(encoding="utf-8-sig")
        return {"jobs": jobs_in(text), "agreed": jobs_in(text, "agreedAmount")}

    @task
    def draft_invoices(listed, due_list, outcomes, params, **context):
        """Write what can be drafted, and hold the rest."""
        folder = path_for(params["invoices"])
        held_before = [read_record(path) for path in (folder / "held").glob("*.json")]
        signed_off = [form for form in listed if form["formName"] == params["form_name"]]
        # Of a form that is held and listed again, the listed one is newer.
        forms = {form["id"]: form for form in [*held_before, *signed_off]}.values()
        names = {str(form["jobID"]): draft_name(form["jobID"]) for form in forms}
        known = zip(due_list["jobs"], due_list["agreed"], outcomes, strict=True)
        created = {
            str(one["jobID"]): job["job"] | agreed["job"]
            for job, agreed, one in known
            if one["jobID"]
        }
        with AtomicFiles(folder, context) as files:
            recorded, begun = record_drafts(files)
            invoiced = {
                job: read_record(folder / "records" / name)["formID"]
                for job, name in names.items()
                if name in recorded
            }
            drafted, held = decide(
                forms, invoiced, created, {job for job, name in names.items() if name in begun}
            )
            newly_held = [form for form in held if form not in held_before]
            for draft in drafted:
                hand_over(files, draft)
            for form in newly_held:
                files.store(held_name(form), [bytes_for(form)])
        for form in held_before:
            if form["id"] not in {still["id"] for still in held}:
                (folder / held_name(form)).unlink()
        for draft in drafted:
            print(f"Drafted: job {draft['jobID']}, {draft['amount']}, for form {draft['formID']}")
        for form in newly_held:
            print(f"Held: form {form['id']}: {form['reason']}")
        print(f"{len(drafted)} drafted, {len(newly_held)} newly held, {len(held)} held in all")
        return {"drafted": drafted, "newly_held": newly_held, "held": len(held)}

    @task
    def commit(now):
        """Save the time, now that all is done; a run that is cleared moves nothing back."""
        Variable.set(VARIABLE, max(Variable.get(VARIABLE, now), now, key=datetime.fromisoformat))

    begun = begin()
    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begun["since"])
    due_list = read_due_list()
    look_up_jobs = FsmCreateJobsOperator(
        task_id="look_up_jobs", jobs=due_list["jobs"], once_per="key", dry_run=True
    )
    draft_invoices(list_forms.output, due_list, look_up_jobs.output) >> commit(begun["now"])


invoice_on_signoff()
