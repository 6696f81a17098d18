"""Examples on a real Airflow: invoices, PDFs, answers, a mail, a warehouse, remedial work."""

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from fsm_provider.testing import Engineer, FakeFieldService, FormPdf, faults
from tests.capabilities import DEADLINES
from tests.smtp import Mailbox
from tests.system.airflow_api import wait_until
from tests.system.examples import EXAMPLES, WITH_LEDGER, copy_example
from tests.system.local_airflow import LocalAirflow

INVOICES = "invoices_copy"
RECORDS = "records_copy"
MAILED = "mailed_copy"
WAREHOUSE = "warehouse_copy"
ANSWERS = "answers_copy"
FINDINGS = "findings_copy"
GAPS = "gaps_copy"
MAINTENANCE = "maintenance_copy"
PLANNED = "planned_to_invoice"


def run(airflow: LocalAirflow, dag_id: str, **params: object) -> tuple[str, str]:
    """Run it by hand; give the run's id and its final state."""
    run_id = airflow.trigger(dag_id, params)
    return run_id, airflow.wait_for_run(dag_id, run_id)


def names_of_files(folder: Path) -> list[str]:
    """Give the files below a folder, in order."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(file.relative_to(folder)) for file in files)


def test_a_job_that_is_signed_off_is_invoiced_once_and_one_without_an_amount_is_held(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy_example(airflow, dags_folder, "planned_maintenance_jobs", PLANNED, **WITH_LEDGER)
    copy_example(airflow, dags_folder, "invoice_on_signoff", INVOICES, **WITH_LEDGER)
    due_list = tmp_path / "due.csv"
    rows = [
        "reference,propertyID,due,quotedAmount",
        "INV-1,9701,2026-01-05,120.00",
        "INV-2,9701,2026-01-05,",
        "INV-3,9701,2999-01-05,9.00",
    ]
    due_list.write_text("\n".join(rows))
    run_id, state = run(airflow, PLANNED, due_list=str(due_list))
    assert state == "success"
    outcomes = airflow.xcom(PLANNED, run_id, "create_jobs")
    quoted, unquoted = [outcome["jobID"] for outcome in outcomes]
    first = sign_off(service, quoted)
    sign_off(service, quoted)
    early = sign_off(service, unquoted)
    unknown = sign_off(service, 97002)
    folder = tmp_path / "invoices"
    params = {"due_list": str(due_list), "invoices": str(folder), "form_name": "Invoiced Sign-off"}

    run_id, state = run(airflow, INVOICES, **params)

    assert state == "success"
    result = airflow.xcom(INVOICES, run_id, "draft_invoices")
    (draft,) = result["drafted"]
    assert draft["jobID"] == quoted
    assert draft["customerReference"] == "INV-1"
    assert draft["amount"] == "120.00"
    assert draft["formID"] == first
    assert set(result["held"]) == {
        f"form {early}: job {unquoted} has no amount in the due list",
        f"form {unknown}: job 97002 is not in the due list",
    }
    assert names_of_files(folder) == [f"job={quoted}.json"]
    creations = service.requests_to("POST", "/properties/9701/jobs")
    assert len(creations) == 2, "looking up creates nothing"


def sign_off(service: FakeFieldService, job_id: int) -> int:
    """Complete the form that a job is invoiced for, and give its id."""
    form = service.add_form(job_id=job_id, property_id=9701, form_name="Invoiced Sign-off")
    return int(form["id"])


def test_an_uncertain_row_of_a_due_list_fails_each_run_and_is_not_sent_again(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy_example(airflow, dags_folder, "planned_maintenance_jobs", MAINTENANCE, **WITH_LEDGER)
    due_list = tmp_path / "due.csv"
    rows = [
        "reference,propertyID,due",
        "PM-9051,9051,2026-01-05",
        "PM-9052,9052,2026-01-05",
        "PM-9053,9053,2026-01-05",
    ]
    due_list.write_text("\n".join(rows))
    service.fail("POST", "/properties/9052/jobs", faults.Reset(after_handling=True))

    for other_rows in ("created", "existing"):
        run_id, state = run(airflow, MAINTENANCE, due_list=str(due_list))

        assert state == "failed"
        assert airflow.task_states(MAINTENANCE, run_id) == {
            "choose_rows": "success",
            "create_jobs": "failed",
            "report": "success",
        }
        assert airflow.xcom(MAINTENANCE, run_id, "report") == {other_rows: 2, "uncertain": 1}
        words = airflow.task_log(MAINTENANCE, run_id, "report").split()
        says = "PM-9052 9052 uncertain POST /properties/9052/jobs may or may not have taken effect"
        assert says in " ".join(words)
    for property_id in (9051, 9052, 9053):
        assert len(service.requests_to("POST", f"/properties/{property_id}/jobs")) == 1


def test_a_pdf_that_cannot_be_had_fails_the_run_and_the_next_one_has_it(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy_example(airflow, dags_folder, "gas_safety_pdf_delivery", RECORDS)
    record = {"job_id": 97101, "property_id": 9711, "form_name": "Delivered Record"}
    good = service.add_form(**record)["id"]
    bad = service.add_form(**record)["id"]
    service.fail("GET", f"/forms/{bad}/pdf", faults.Status(404), every=True)
    params = {"records": str(tmp_path), "form_name": "Delivered Record"}

    first, first_state = run(airflow, RECORDS, **params)
    began = airflow.xcom(RECORDS, first, "begin")["now"]
    kept = variable(airflow, RECORDS)
    service.clear_faults()
    second, second_state = run(airflow, RECORDS, **params)

    assert first_state == "failed"
    assert second_state == "success"
    assert kept == began, "nothing after the first of all is passed over, however long runs fail"
    assert airflow.task_states(RECORDS, first)["commit"] == "upstream_failed"
    assert airflow.xcom(RECORDS, first, "deliver_pdfs")["failed"] == 1
    result = airflow.xcom(RECORDS, second, "deliver_pdfs")
    assert result["stored"] == 1
    assert result["skipped"] == 1
    assert result["failed"] == 0
    pdfs = {path.parent.name: path.read_bytes() for path in tmp_path.rglob("*.pdf")}
    assert pdfs == {
        f"form={good}": service.pdf(good),
        f"form={bad}": service.pdf(bad),
    }
    assert variable(airflow, RECORDS) > began


def variable(airflow: LocalAirflow, key: str) -> str:
    return str(airflow.api("GET", f"/variables/{key}")["value"])


def test_the_tenant_gets_the_record_by_mail(
    airflow: LocalAirflow,
    service: FakeFieldService,
    mailbox: Mailbox,
    dags_folder: Path,
    tmp_path: Path,
) -> None:
    soon = {"deferrable=True,": "deferrable=True, poke_interval=2,"}
    copy_example(airflow, dags_folder, "certificate_by_mail", MAILED, by_hand=False, **soon)
    tenant = "a.tenant@example.com"

    run_id, state = run(airflow, MAILED, property_id=9721, tenant=tenant, records=str(tmp_path))

    assert state == "success"
    job = airflow.xcom(MAILED, run_id, "create_job")
    (record,) = airflow.xcom(MAILED, run_id, "wait_for_record")
    (mail,) = [mail for mail in mailbox.mails if mail["To"] == tenant]
    assert mail["From"] == "office@example.com"
    (attached,) = mail.iter_attachments()
    assert attached.get_filename() == f"gas-safety-record-{record['id']}.pdf"
    assert attached.get_content() == service.pdf(record["id"])
    assert record["jobID"] == job["id"]


def test_a_window_is_loaded_into_a_warehouse_once_its_export_is_complete(
    airflow: LocalAirflow, dags_folder: Path, tmp_path: Path
) -> None:
    # An account of its own: a window has no end, and would have the forms of other tests.
    with FakeFieldService() as account:
        airflow.add_connection("fsm_account", account.connection())
        with_account = {'task_id="export"': 'task_id="export", fsm_conn_id="fsm_account"'}
        copy_example(airflow, dags_folder, "forms_to_warehouse", WAREHOUSE, **with_account)
        day = datetime(2026, 1, 5, tzinfo=UTC)
        name = "R\u00e9paration \U0001f525"
        answers = {"tight?": [None, "ja"]}
        form = account.add_form(
            updated=day - timedelta(days=2),
            formName=name,
            createdByUser=None,
            answers=answers,
        )
        windows = tmp_path / "forms"
        warehouse = tmp_path / "forms.duckdb"
        # The file cannot be put in place: neither the export nor the load succeeds.
        in_its_place = windows / f"window_start={day.date()}" / "forms.parquet"
        in_its_place.mkdir(parents=True)

        params = {"folder": str(windows), "warehouse": str(warehouse), "day": str(day.date())}
        run_id, state = run(airflow, WAREHOUSE, **params)

        assert state == "failed"
        assert airflow.task_states(WAREHOUSE, run_id)["load"] == "upstream_failed"
        in_its_place.rmdir()
        for cleared in (["export", "load"], ["choose_window", "export", "load"]):
            airflow.clear(WAREHOUSE, run_id, cleared)
            assert airflow.wait_for_run(WAREHOUSE, run_id) == "success"
    with duckdb.connect(str(warehouse), read_only=True) as connection:
        columns = "id, formName, createdByUser, _extra"
        (loaded,) = connection.execute(f"SELECT {columns} FROM forms").fetchall()
        versions = connection.execute("SELECT window_start, id FROM form_versions").fetchall()
    *fields, extra = loaded
    assert fields == [form["id"], name, None]
    assert json.loads(extra) == {"answers": answers}
    assert versions == [(day.date(), form["id"])]
    assert names_of_files(windows) == [f"window_start={day.date()}/forms.parquet"]


def test_answers_become_columns_over_versions_and_what_is_uncertain_is_for_a_person(
    airflow: LocalAirflow, dags_folder: Path, tmp_path: Path
) -> None:
    # An account of its own: the tables would have the forms of other tests.
    with FakeFieldService() as account:
        airflow.add_connection("fsm_answered", account.connection())
        with_account = {
            'task_id="list_forms"': 'task_id="list_forms", fsm_conn_id="fsm_answered"',
            'task_id="store_pdfs"': 'task_id="store_pdfs", fsm_conn_id="fsm_answered"',
        }
        copy_example(airflow, dags_folder, "form_answers", ANSWERS, **with_account)
        safe = "Is the appliance safe to use?"
        unsafe = FormPdf(version=2, layout="list", answers={safe: "Unsafe"})
        first = account.add_form()["id"]
        second = account.add_form(pdf=unsafe)["id"]
        odd = account.add_form(pdf=FormPdf(answers={safe: "Perhaps"}))["id"]
        account.add_form(form_name="Site Survey")
        warehouse = tmp_path / "answers.duckdb"
        params = {"folder": str(tmp_path / "answers"), "warehouse": str(warehouse)}

        first_run, first_state = run(airflow, ANSWERS, **params)
        account.update_form(odd, pdf=FormPdf())
        _, second_state = run(airflow, ANSWERS, **params)

    assert first_state == "success"
    assert second_state == "success"
    assert airflow.xcom(ANSWERS, first_run, "load") == 1
    columns = f'form_id, version, "Is a carbon monoxide alarm fitted?", "{safe}"'
    with duckdb.connect(str(warehouse), read_only=True) as connection:
        rows = connection.execute(f"SELECT {columns} FROM gas_safety_record ORDER BY 1").fetchall()
        unread = connection.execute("SELECT form_id, reason FROM unread").fetchall()
    assert rows == [
        (first, "1", None, "Safe"),
        (second, "2", "Yes", "Unsafe"),
        (odd, "1", None, "Safe"),
    ]
    assert unread == []


def copy_remedial(dags_folder: Path, changes: Mapping[str, str]) -> None:
    """Copy the example with three DAGs, each under an id of its own, and unpaused."""
    text = (EXAMPLES / "remedial_from_answers.py").read_text()
    usual = {
        "remedial_from_answers": FINDINGS,
        "visit_in_": "copied_visit_in_",
        'schedule="@hourly"': "schedule=None",
        "is_paused_upon_creation=True": "is_paused_upon_creation=False",
        '"retries": 2': '"retries": 0',
    }
    for old, new in {**usual, **changes}.items():
        assert old in text, old
        text = text.replace(old, new)
    shutil.copy(EXAMPLES / "answer_reader.py", dags_folder)
    (dags_folder / f"{FINDINGS}.py").write_text(text)


def test_an_unsafe_answer_becomes_one_visit_and_the_office_hears_of_a_late_one(
    airflow: LocalAirflow, mailbox: Mailbox, dags_folder: Path, tmp_path: Path
) -> None:
    changes = {"deferrable=True,": "deferrable=True, poke_interval=2,"}
    for task_id in ("list_forms", "store_pdfs", "create_job", "wait_for_sign_off"):
        task = f'task_id="{task_id}"'
        changes[task] = f'{task}, fsm_conn_id="{FINDINGS}"'
    # Any visit is late then.
    changes["timedelta(hours=24)"] = "timedelta(seconds=1)"
    answers = {
        "Is the appliance safe to use?": "Unsafe",
        "Defects that were found": 'A "cracked" heat exchanger.',
    }
    unsafe = FormPdf(version=2, answers=answers)
    # An account of its own, as a run reads all forms of the last days.
    engineer = Engineer(after=0.5, form_names=("Job Sign-off",))
    with FakeFieldService(engineer=engineer) as account:
        # And a ledger of its own: one that knows another service of this host would refuse it.
        ledger = {"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")}
        airflow.add_connection("findings_ledger", ledger)
        airflow.add_connection(FINDINGS, account.connection(), state_conn_id="findings_ledger")
        copy_remedial(dags_folder, changes)
        form = account.add_form(pdf=unsafe, property_id=77, job_id=5)["id"]
        account.add_form()
        params = {"folder": str(tmp_path)}

        first, first_state = run(airflow, FINDINGS, **params)
        key = f"REM-{form}-SAFE"
        visit_state = airflow.wait_for_run("copied_visit_in_24_hours", key)
        account.add_form(pdf=FormPdf(answers={"Is the appliance safe to use?": "Perhaps"}))
        second, second_state = run(airflow, FINDINGS, **params)
        jobs = account.jobs

    assert first_state == "success"
    assert visit_state == "success"
    assert second_state == "failed", "a person has to read a form"
    assert "a person has to read:" in airflow.task_log(FINDINGS, second, "check")
    assert airflow.task_states(FINDINGS, first)["trigger_visits[0]"] == "success"
    assert airflow.task_states(FINDINGS, second)["trigger_visits[0]"] == "skipped"
    (job,) = jobs
    assert job["propertyID"] == 77
    assert job["customerReference"] == key
    assert '"Is the appliance safe to use? Unsafe"' in job["notes"]
    assert '"A "cracked" heat exchanger."' in job["notes"]
    if DEADLINES.is_there:
        (subject,) = wait_until(lambda: subjects_about(mailbox, key), "a mail about the visit")
        assert subject == f"{key}: the visit is not signed off"


def subjects_about(mailbox: Mailbox, run_id: str) -> list[str]:
    """Give the subjects of the mails about a run."""
    return [mail["Subject"] for mail in mailbox.mails if run_id in mail["Subject"]]


def test_a_check_in_the_two_months_before_its_deadline_keeps_the_deadline(
    airflow: LocalAirflow, dags_folder: Path, tmp_path: Path
) -> None:
    portfolio = tmp_path / "portfolio.csv"
    portfolio.write_text("propertyID,address\n7,a\n8,b\n9,c\n10,d\n")
    records = {7: ("2025-03-01", "2026-01-05"), 8: ("2025-03-01", "2025-12-31"), 9: ("2025-03-01",)}
    with FakeFieldService() as account:
        airflow.add_connection(GAPS, account.connection())
        copy_example(
            airflow,
            dags_folder,
            "compliance_gap_report",
            GAPS,
            **{"FsmHook()": f'FsmHook("{GAPS}")'},
        )
        for property_id, days in records.items():
            for day in days:
                created = datetime.fromisoformat(f"{day}T12:00:00+00:00")
                account.add_form(property_id=property_id, created=created)
        params = {"portfolio": str(portfolio), "reports": str(tmp_path / "reports")}

        run_id, state = run(airflow, GAPS, **params, day="2027-01-31")

    assert state == "success"
    report = tmp_path / "reports" / "2027-01-31.csv"
    assert airflow.xcom(GAPS, run_id, "report") == {
        "gaps": {"due": 1, "overdue": 2, "missing": 1},
        "unreadable": [],
        "file": str(report),
    }
    lines = report.read_text().splitlines()
    assert [line.split(",")[:4] for line in lines[1:]] == [
        ["7", "a", "due", "2027-03-01"],
        ["8", "b", "overdue", "2026-12-31"],
        ["9", "c", "overdue", "2026-03-01"],
        ["10", "d", "missing", ""],
    ]
