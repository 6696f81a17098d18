"""Store new gas-safety records as PDFs, each version once.

The path of a PDF is ``property=<id>/job=<id>/form=<id>/v=<lastUpdatedOnDateTime>.pdf``, in a folder
on this machine or in any object storage that Airflow knows. A record has to reach the tenant within
28 days and is kept for two years: make sure that nothing in the storage deletes it earlier. The
task's result has the path of each PDF.

Each run lists what was updated since the last run that *succeeded*, less a look-back for phones
that sync late. It does not download what is already there. The asset of ``gas_safety_forms`` does
not start this DAG: an event that comes while a DAG is paused or at ``max_active_runs`` waits for
the next event, and in a quiet month that is too late for a landlord. The time of the last run is in
an Airflow Variable named like the DAG. The last task writes it, once every PDF is there. So a form
without a PDF fails run after run, until somebody looks. A record that reaches the service later
than the look-back is not seen. The DAG allows one run at a time, so do not backfill it. It starts
paused: until a run has succeeded, each begins one look-back before itself. With several workers,
use a folder that all of them can reach, such as ``s3://...``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.common.compat.sdk import Param, Variable, dag, task

from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator

VARIABLE = "gas_safety_pdf_delivery"


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "records": Param(
            str(Path(__file__).parent / "data" / "gas_safety_records"),
            type="string",
            minLength=1,
            title="Folder of the PDFs",
        ),
        "form_name": Param(
            "Gas Safety Record", type="string", minLength=1, title="Name of the form"
        ),
        "look_back_hours": Param(
            168, type="integer", minimum=1, title="Hours that a phone may sync late"
        ),
    },
)
def gas_safety_pdf_delivery():
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

    @task
    def choose_records(listed, params):
        """Return the gas-safety records among the forms."""
        return [form for form in listed if form["formName"] == params["form_name"]]

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
    # [START howto_transfer_form_pdfs]
    deliver_pdfs = FsmFormPdfsToObjectStorageOperator(
        task_id="deliver_pdfs",
        forms=choose_records(list_forms.output),
        destination="{{ params.records }}",
    )
    # [END howto_transfer_form_pdfs]
    deliver_pdfs >> commit(begun["now"])


gas_safety_pdf_delivery()
