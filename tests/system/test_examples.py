"""Examples on a real Airflow: asset fields, invoices, PDFs, a mail, a warehouse, remedial work."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from fsm_provider.testing import FakeFieldService, faults
from tests.smtp import Mailbox
from tests.system.examples import WITH_LEDGER, copy
from tests.system.local_airflow import LocalAirflow

QUALITY, INVOICES, RECORDS, MAILED = "quality_copy", "invoices_copy", "records_copy", "mailed_copy"
WAREHOUSE, REMEDIAL, MAINTENANCE = "warehouse_copy", "remedial_copy", "maintenance_copy"
PLANNED = "planned_to_invoice"


def run(airflow: LocalAirflow, dag_id: str, **params: object) -> tuple[str, str]:
    """Run it by hand; give the run's id and its final state."""
    run_id = airflow.trigger(dag_id, params)
    return run_id, airflow.wait_for_run(dag_id, run_id)


def test_asset_fields_fail_the_run_past_a_threshold_and_the_report_is_there(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy(airflow, dags_folder, "asset_field_quality", QUALITY)
    service.add_asset_dynamic_field("Serial No.", values=())
    service.add_asset_dynamic_field("serial no", values=("Baxi", "BAXI"), used_by=())
    (tmp_path / "2026-01-01.json").write_text(json.dumps(service.asset_dynamic_fields[:-1]))

    run_id, state = run(airflow, QUALITY, folder=str(tmp_path), max_similar_names=1)

    assert state == "failed"
    assert airflow.task_states(QUALITY, run_id) == {
        "take_snapshot": "success",
        "report": "success",
        "check": "failed",
    }
    reported = airflow.xcom(QUALITY, run_id, "report")
    assert (reported["counts"]["similar_names"], reported["changes"]) == (2, 1)
    page = tmp_path / f"{airflow.xcom(QUALITY, run_id, 'take_snapshot')}.html"
    assert "field added" in page.read_text()
    said = f"2 similar names, and max_similar_names is 1: see {page.as_uri()}"
    assert said in airflow.task_log(QUALITY, run_id, "check")
    assert airflow.extra_links(QUALITY, run_id, "report") == {"Report": page.as_uri()}


def test_a_job_that_is_signed_off_is_invoiced_once_and_one_without_an_amount_is_held(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy(airflow, dags_folder, "planned_maintenance_jobs", PLANNED, **WITH_LEDGER)
    copy(airflow, dags_folder, "invoice_on_signoff", INVOICES, **WITH_LEDGER)
    due_list = tmp_path / "due.csv"
    rows = [
        "reference,propertyID,due,quotedAmount",
        "INV-1,9701,2026-01-05,120.00",
        "INV-2,9701,2026-01-05,",
    ]
    due_list.write_text("\n".join([*rows, "INV-3,9701,2999-01-05,9.00"]))
    run_id, state = run(airflow, PLANNED, due_list=str(due_list))
    assert state == "success"
    quoted, unquoted = (one["jobID"] for one in airflow.xcom(PLANNED, run_id, "create_jobs"))
    first, second, early, unknown = (
        service.add_form(job_id=job, property_id=9701, form_name="Invoiced Sign-off")["id"]
        for job in (quoted, quoted, unquoted, 97002)
    )
    folder = tmp_path / "invoices"
    params = {"due_list": str(due_list), "invoices": str(folder), "form_name": "Invoiced Sign-off"}

    run_id, state = run(airflow, INVOICES, **params)

    assert state == "success"
    drafted = airflow.xcom(INVOICES, run_id, "draft_invoices")
    assert [
        (draft["jobID"], draft["customerReference"], draft["amount"], draft["formID"])
        for draft in drafted["drafted"]
    ] == [(quoted, "INV-1", "120.00", first)]
    assert {form["id"]: form["reason"] for form in drafted["newly_held"]} == {
        second: f"job {quoted} has a draft for form {first}",
        early: f"job {unquoted} has no amount in the due list",
        unknown: "job 97002 is not in the due list",
    }
    assert {f"job={quoted}.json", f"records/job={quoted}.json"} < set(names(folder))
    assert len(service.requests_to("POST", "/properties/9701/jobs")) == 2, (
        "looking up creates nothing"
    )


def test_an_uncertain_row_of_a_due_list_fails_each_run_and_is_not_sent_again(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy(airflow, dags_folder, "planned_maintenance_jobs", MAINTENANCE, **WITH_LEDGER)
    numbers, due_list = (9051, 9052, 9053), tmp_path / "due.csv"
    due_list.write_text(
        "\n".join(["reference,propertyID,due", *(f"PM-{one},{one},2026-01-05" for one in numbers)])
    )
    service.fail("POST", "/properties/9052/jobs", faults.Reset(after_handling=True))

    for other_rows in ("created", "existing"):
        run_id, state = run(airflow, MAINTENANCE, due_list=str(due_list))

        assert state == "failed"
        states = {"choose_rows": "success", "create_jobs": "failed", "report": "success"}
        assert airflow.task_states(MAINTENANCE, run_id) == states
        assert airflow.xcom(MAINTENANCE, run_id, "report") == {other_rows: 2, "uncertain": 1}
        log = " ".join(airflow.task_log(MAINTENANCE, run_id, "report").split())
        assert (
            "PM-9052 9052 uncertain POST /properties/9052/jobs may or may not have taken effect"
            in log
        )
    assert [len(service.requests_to("POST", f"/properties/{one}/jobs")) for one in numbers] == [
        1,
        1,
        1,
    ]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_pdf_that_cannot_be_had_fails_the_run_and_the_next_one_has_it(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy(airflow, dags_folder, "gas_safety_pdf_delivery", RECORDS)
    good, bad = (
        service.add_form(job_id=97101, property_id=9711, form_name="Delivered Record")["id"]
        for _ in range(2)
    )
    service.fail("GET", f"/forms/{bad}/pdf", faults.Status(404), every=True)
    params = {"records": str(tmp_path), "form_name": "Delivered Record"}

    first, first_state = run(airflow, RECORDS, **params)
    began = airflow.xcom(RECORDS, first, "begin")["now"]
    kept = airflow.api("GET", f"/variables/{RECORDS}")["value"]
    service.clear_faults()
    second, second_state = run(airflow, RECORDS, **params)

    assert (first_state, second_state) == ("failed", "success")
    assert kept == began, (
        "however long the first runs fail, nothing after the first of all is passed over"
    )
    assert airflow.task_states(RECORDS, first)["commit"] == "upstream_failed"
    assert airflow.xcom(RECORDS, first, "deliver_pdfs")["failed"] == 1
    result = airflow.xcom(RECORDS, second, "deliver_pdfs")
    assert (result["stored"], result["skipped"], result["failed"]) == (1, 1, 0)
    pdfs = {path.parent.name: path.read_bytes() for path in tmp_path.rglob("*.pdf")}
    assert pdfs == {f"form={form}": service.pdf(form) for form in (good, bad)}
    assert airflow.api("GET", f"/variables/{RECORDS}")["value"] > began


def test_the_tenant_gets_the_record_by_mail(
    airflow: LocalAirflow,
    service: FakeFieldService,
    mailbox: Mailbox,
    dags_folder: Path,
    tmp_path: Path,
) -> None:
    soon = {"deferrable=True,": "deferrable=True, poke_interval=2,"}
    copy(airflow, dags_folder, "certificate_by_mail", MAILED, by_hand=False, **soon)

    params = {"property_id": 9721, "tenant": "a.tenant@example.com", "records": str(tmp_path)}
    run_id, state = run(airflow, MAILED, **params)

    assert state == "success"
    job = airflow.xcom(MAILED, run_id, "create_job")
    (record,) = airflow.xcom(MAILED, run_id, "wait_for_record")
    (mail,) = (mail for mail in mailbox.mails if mail["To"] == "a.tenant@example.com")
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
        copy(airflow, dags_folder, "forms_to_warehouse", WAREHOUSE, **with_account)
        day = datetime(2026, 1, 5, tzinfo=UTC)
        name, answers = "R\u00e9paration \U0001f525", {"tight?": [None, "ja"]}
        odd = {"formName": name, "createdByUser": None, "answers": answers}
        form = account.add_form(updated=day - timedelta(days=2), **odd)["id"]
        windows, warehouse = tmp_path / "forms", tmp_path / "forms.duckdb"
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
        ((*loaded, extra),) = connection.execute(f"SELECT {columns} FROM forms").fetchall()
        versions = connection.execute("SELECT window_start, id FROM form_versions").fetchall()
    assert (loaded, json.loads(extra)) == ([form, name, None], {"answers": answers})
    assert versions == [(day.date(), form)]
    assert names(windows) == [f"window_start={day.date()}/forms.parquet"]


def test_two_runs_over_the_same_forms_make_one_job_of_each_warning_notice(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path
) -> None:
    copy(airflow, dags_folder, "remedial_from_warning_notice", REMEDIAL, **WITH_LEDGER)
    form_names = ("Warning Notice", "Gas Safety Record", "Warning Notice")
    forms = [service.add_form(form_name=name, property_id=9500, job_id=77) for name in form_names]
    references = {f"REM-FORM-{forms[index]['id']}" for index in (0, 2)}

    first, first_state = run(airflow, REMEDIAL)
    airflow.api("DELETE", f"/dags/{REMEDIAL}/dagRuns/{first}")
    second, second_state = run(airflow, REMEDIAL)

    assert (first_state, second_state) == ("success", "success")
    outcomes = airflow.xcom(REMEDIAL, second, "create_jobs")
    assert {one["key"]: one["outcome"] for one in outcomes} == dict.fromkeys(references, "existing")
    jobs = [job for job in service.jobs if job["propertyID"] == 9500]
    assert {job["customerReference"] for job in jobs} == references
    assert len(jobs) == 2
    assert f"Warning Notice {forms[0]['id']}" in jobs[0]["notes"] + jobs[1]["notes"]
    assert "at job 77" in jobs[0]["notes"]
    assert jobs[0]["priority"] == "Important"
