"""Create a job, wait for its gas-safety record, and mail the tenant the PDF.

The record has to reach the tenant within 28 days of the check. If it is not known whether the mail
server has accepted a mail, the mail is sent again: a tenant who gets it twice is better off than
one who never does. The connection ``smtp_default`` names the mail server and, in ``from_email``,
the sender. With several workers, use a folder that all of them can reach, such as ``s3://...``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow.providers.common.compat.sdk import ObjectStoragePath, Param, dag, task

from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "property_id": Param(7, type="integer", minimum=1, title="Property"),
        "tenant": Param(
            "tenant@example.com", type="string", format="email", title="Tenant's e-mail address"
        ),
        "form_name": Param(
            "Gas Safety Record", type="string", minLength=1, title="Name of the form"
        ),
        "records": Param(
            str(Path(__file__).parent / "data" / "gas_safety_records"),
            type="string",
            minLength=1,
            title="Folder of the PDFs",
        ),
    },
)
def certificate_by_mail():
    create_job = FsmCreateJobOperator(
        task_id="create_job",
        property_id="{{ params.property_id }}",
        job={"customerReference": "{{ run_id }}", "notes": "Annual gas safety check"},
    )
    # A deferrable sensor waits in Airflow's triggerer, so a wait of weeks holds no worker.
    wait_for_record = FsmFormSensor(
        task_id="wait_for_record",
        job=create_job.output,
        form_names=["{{ params.form_name }}"],
        deferrable=True,
        timeout=timedelta(days=28),
    )
    store_pdfs = FsmFormPdfsToObjectStorageOperator(
        task_id="store_pdfs",
        forms=wait_for_record.output,
        destination="{{ params.records }}",
    )

    # [START howto_mail_form_pdfs]
    @task
    def mail(forms: list[dict], stored: dict, params: dict) -> None:
        """Mail the tenant the PDF of each form."""
        from airflow.providers.smtp.hooks.smtp import SmtpHook

        with TemporaryDirectory() as folder, SmtpHook("smtp_default") as server:
            attachments = []
            # store_pdfs returns one path for each form, in the same order.
            for form, path in zip(forms, stored["paths"], strict=True):
                # The mail server's hook attaches files of this machine only.
                attachment = Path(folder, f"gas-safety-record-{form['id']}.pdf")
                attachment.write_bytes(ObjectStoragePath(path).read_bytes())
                attachments.append(str(attachment))
            server.send_email_smtp(
                to=params["tenant"],
                subject="Your gas safety record",
                html_content=(
                    "<p>Our engineer has checked your gas appliances. The record is attached.</p>"
                ),
                files=attachments,
            )

    # [END howto_mail_form_pdfs]

    create_job >> wait_for_record
    mail(wait_for_record.output, store_pdfs.output)


certificate_by_mail()
