"""Each job that is signed off becomes one draft invoice, over the amount that was quoted when it was created.

A listing of forms carries no amount, and a job cannot be looked up. The amounts are those in the outcomes
that ``planned_maintenance_jobs`` has written. A draft is a file, ``job=<id>.json``, on this machine or in any
object storage that Airflow knows: written whole, and once, whichever run or form comes again. What becomes
of no draft is kept as ``held/job=<id>,form=<id>.json`` with the reason, and reported when it is new:

- The job is not among those that were created, or without an amount above zero. Each run looks again; a
  person may write an amount into the outcomes.
- The job has a draft already, for another sign-off form. Delete the file once somebody has looked.

Each run lists what was updated since the last one that *succeeded*, less a look-back for phones that sync
late. No event starts it: one that comes while a DAG is paused or has ``max_active_runs`` waits for the
next, and an invoice would wait with it. When that listing began is in an Airflow Variable named like the
DAG, which the last task writes. One run at a time, so do not backfill it. Starts paused: its first run
begins a look-back before itself. With several workers, give folders that all of them reach, such as
``s3://...``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import ObjectStoragePath, Param, dag, task

from fsm_provider import watermark
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.storing import WholeFiles

VARIABLE = "invoice_on_signoff"
OUTCOMES = ".outcomes.csv"

Row = dict[str, Any]


def read_outcomes(folder: ObjectStoragePath) -> dict[str, Row]:
    """Map each job that was created to the row of its outcome.

    A row that is cut off does not count: half an amount is one too.
    """
    files = folder.glob(f"*{OUTCOMES}")
    rows = (row for file in files for row in csv.DictReader(io.StringIO(file.read_text("utf-8-sig"))))
    return {row["jobID"]: row for row in rows if None not in row.values() and row["outcome"] == "created"}


def amount_of(row: Row) -> Decimal | None:
    """Give the quoted amount, None where there is none above zero."""
    try:
        amount = Decimal(row.get("quotedAmount") or "")
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and amount > 0 else None


def settle(
    forms: Iterable[Row], invoiced: dict[str, Any], created: dict[str, Row]
) -> tuple[list[Row], list[Row]]:
    """Give the drafts to write, and the forms of which none is made, each with its reason.

    :param forms: sign-off forms; of two on a job, the older makes the draft.
    :param invoiced: jobs that have a draft, and the form that made it.
    :param created: jobs that were created, and the rows of their outcomes.
    """
    invoiced, drafts, held = dict(invoiced), [], []
    for form in sorted(forms, key=lambda form: (form["createdOnDateTime"] or "", form["id"])):
        job = str(form["jobID"])
        amount = amount_of(created.get(job, {}))
        if invoiced.get(job) == form["id"]:
            continue
        if job in invoiced:
            held.append({**form, "reason": f"job {job} has a draft for form {invoiced[job]}"})
        elif job not in created:
            held.append({**form, "reason": f"job {job} is not among the jobs that were created"})
        elif amount is None:
            given = created[job].get("quotedAmount")
            held.append({**form, "reason": f"job {job} was created over {given or 'no amount'}"})
        else:
            invoiced[job] = form["id"]
            drafts.append(
                {
                    "status": "draft",
                    "jobID": form["jobID"],
                    "propertyID": form["propertyID"],
                    "customerReference": created[job]["reference"],
                    "amount": f"{amount:f}",
                    "formID": form["id"],
                    "signedOffOn": form["createdOnDateTime"],
                }
            )
    return drafts, held


def draft_name(job: Any) -> str:
    """Give the name of a job's draft; an identifier may be any text."""
    return f"job={quote(str(job), safe='')}.json"


def held_name(form: Row) -> str:
    return f"held/{draft_name(form['jobID']).removesuffix('.json')},form={form['id']}.json"


def read_record(path: ObjectStoragePath) -> Row:
    record: Row = json.loads(path.read_text("utf-8"))
    return record


def bytes_of(record: Row) -> bytes:
    return json.dumps(record, ensure_ascii=False, indent=1).encode()


def path_of(given: str) -> ObjectStoragePath:
    """Give a path or an address as a path; one that is relative begins beside this file."""
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
        "created_jobs": Param(
            "data/planned_maintenance.csv.outcomes",
            type="string",
            minLength=1,
            title="Folder of the outcomes of planned_maintenance_jobs",
        ),
        "invoices": Param("data/invoices", type="string", minLength=1, title="Folder of the drafts"),
        "form_name": Param("Job Sign-off", type="string", minLength=1, title="Name of the form"),
        "look_back_hours": Param(168, type="integer", minimum=1, title="Hours that a phone may sync late"),
    },
)
def invoice_on_signoff():
    @task(multiple_outputs=True)
    def begin(params):
        return watermark.begin(VARIABLE, timedelta(hours=params["look_back_hours"]))

    @task
    def draft_invoices(listed, params, **context):
        """Write what can be drafted, and hold the rest."""
        folder = path_of(params["invoices"])
        held_before = [read_record(path) for path in (folder / "held").glob("*.json")]
        signed_off = [form for form in listed if form["formName"] == params["form_name"]]
        # Of a form that is held and listed again, the listed one is newer.
        forms = {form["id"]: form for form in [*held_before, *signed_off]}.values()
        drafts = {str(form["jobID"]): folder / draft_name(form["jobID"]) for form in forms}
        invoiced = {job: read_record(path)["formID"] for job, path in drafts.items() if path.exists()}
        created = read_outcomes(path_of(params["created_jobs"]))
        drafted, held = settle(forms, invoiced, created)
        newly_held = [form for form in held if form not in held_before]
        with WholeFiles(folder, context) as files:
            for draft in drafted:
                files.store(draft_name(draft["jobID"]), [bytes_of(draft)])
            for form in newly_held:
                files.store(held_name(form), [bytes_of(form)])
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
        watermark.commit(VARIABLE, now)

    begun = begin()
    list_forms = FsmListFormsOperator(task_id="list_forms", updated_since=begun["since"])
    draft_invoices(list_forms.output) >> commit(begun["now"])


invoice_on_signoff()
