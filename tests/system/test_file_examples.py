"""The examples that end in files, on a real Airflow: asset fields, invoices, PDFs, a warehouse."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb

from fsm_provider.testing import FakeFieldService, faults
from tests.smtp import Mailbox
from tests.system.examples import WITH_LEDGER, copy
from tests.system.local_airflow import LocalAirflow

QUALITY, INVOICES, RECORDS = "quality_copy", "invoices_copy", "records_copy"
WAREHOUSE = "warehouse_copy"
PLANNED = "planned_to_invoice"
MAILED = "mailed_copy"


def run(airflow: LocalAirflow, dag_id: str, **params: object) -> tuple[str, str]:
    """Run it by hand; give the run's id and its final state."""
    run_id = airflow.trigger(dag_id, params)
    return run_id, airflow.wait_for_run(dag_id, run_id)


def test_asset_fields_fail_the_run_past_a_threshold_and_the_report_is_there(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy(airflow, dags_folder, "asset_field_quality", QUALITY)
    before = [field["dynamicFieldID"] for field in service.asset_dynamic_fields]
    service.add_asset_dynamic_field("Serial No.", values=())
    service.add_asset_dynamic_field("serial no", values=("Baxi", "BAXI"), used_by=())
    (tmp_path / "2026-01-01.json").write_text(json.dumps(service.asset_dynamic_fields[:-1]))
    folder = {"folder": str(tmp_path)}

    failed, failed_state = run(airflow, QUALITY, **folder, max_similar_names=1)
    passed, passed_state = run(
        airflow, QUALITY, **folder, max_similar_names=99, served_at="https://reports.example.com/assets/"
    )

    assert (failed_state, passed_state) == ("failed", "success")
    assert airflow.task_states(QUALITY, failed) == {
        "take_snapshot": "success",
        "report": "success",
        "check": "failed",
    }
    reported = airflow.xcom(QUALITY, failed, "report")
    assert reported["counts"]["similar_names"] == 2
    assert reported["changes"] == 1
    page, other_page = (
        tmp_path / f"{airflow.xcom(QUALITY, run_id, 'take_snapshot')}.html" for run_id in (failed, passed)
    )
    assert "field added" in page.read_text()
    assert len(json.loads(page.with_suffix(".json").read_text())) == len(before) + 2
    assert f"2 similar names, and max_similar_names is 1: see {page.as_uri()}" in airflow.task_log(
        QUALITY, failed, "check"
    )
    assert airflow.extra_links(QUALITY, failed, "report") == {"Report": page.as_uri()}
    assert airflow.extra_links(QUALITY, passed, "report") == {
        "Report": f"https://reports.example.com/assets/{other_page.name}"
    }


def test_a_job_that_is_signed_off_is_invoiced_once_and_one_without_an_amount_once_it_has_one(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy(airflow, dags_folder, "planned_maintenance_jobs", PLANNED, **WITH_LEDGER)
    copy(airflow, dags_folder, "invoice_on_signoff", INVOICES, **WITH_LEDGER)
    due_list = tmp_path / "due.csv"
    rows = ["reference,propertyID,due,quotedAmount", "INV-1,9701,2026-01-05,120.00", "INV-2,9701,2026-01-05,"]
    due_list.write_text("\n".join([*rows, "INV-3,9701,2999-01-05,9.00"]))
    run_id, state = run(airflow, PLANNED, due_list=str(due_list))
    assert state == "success"
    quoted, unquoted = (one["jobID"] for one in airflow.xcom(PLANNED, run_id, "create_jobs"))
    first, second, early, unknown = (
        service.add_form(job_id=job, property_id=9701, form_name="Invoiced Sign-off")["id"]
        for job in (quoted, quoted, unquoted, 97002)
    )
    service.add_form(job_id=quoted, property_id=9701, form_name="Gas Safety Record")
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
    held = [f"held/job=97002,form={unknown}.json", f"held/job={quoted},form={second}.json"]
    assert names(folder) == sorted(
        [
            *held,
            f"held/job={unquoted},form={early}.json",
            f"job={quoted}.json",
            f"records/job={quoted}.json",
        ]
    )

    due_list.write_text("\n".join([f"{rows[0]},agreedAmount", rows[1], f"{rows[2]},45.50"]))
    # The accounting system removes the draft, and its form is listed again.
    (folder / f"job={quoted}.json").unlink()
    run_id, state = run(airflow, INVOICES, **params)

    assert state == "success"
    drafted = airflow.xcom(INVOICES, run_id, "draft_invoices")
    assert [(draft["jobID"], draft["amount"]) for draft in drafted["drafted"]] == [(unquoted, "45.50")]
    assert (drafted["newly_held"], drafted["held"]) == ([], 2)
    assert names(folder) == sorted(
        [
            *held,
            f"job={unquoted}.json",
            *(f"records/job={job}.json" for job in (quoted, unquoted)),
        ]
    )
    assert len(service.requests_to("POST", "/properties/9701/jobs")) == 2, "looking up creates nothing"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_pdf_that_cannot_be_had_fails_the_run_and_the_next_one_has_it(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy(airflow, dags_folder, "gas_safety_pdf_delivery", RECORDS)
    good, bad = (
        service.add_form(job_id=97101, property_id=9711, form_name="Delivered Record")["id"] for _ in range(2)
    )
    service.fail("GET", f"/forms/{bad}/pdf", faults.Status(404), every=True)
    params = {"records": str(tmp_path), "form_name": "Delivered Record"}

    first, first_state = run(airflow, RECORDS, **params)
    began = airflow.xcom(RECORDS, first, "begin")["now"]
    kept = airflow.api("GET", f"/variables/{RECORDS}")["value"]
    service.clear_faults()
    second, second_state = run(airflow, RECORDS, **params)

    assert (first_state, second_state) == ("failed", "success")
    assert kept == began, "however long the first runs fail, nothing after the first of all is passed over"
    assert airflow.task_states(RECORDS, first)["commit"] == "upstream_failed"
    assert airflow.xcom(RECORDS, first, "deliver_pdfs")["failed"] == 1
    result = airflow.xcom(RECORDS, second, "deliver_pdfs")
    assert (result["stored"], result["skipped"], result["failed"]) == (1, 1, 0)
    pdfs = {path.parent.name: path.read_bytes() for path in tmp_path.rglob("*.pdf")}
    assert pdfs == {f"form={form}": service.pdf(form) for form in (good, bad)}
    assert airflow.api("GET", f"/variables/{RECORDS}")["value"] > began


def test_the_tenant_gets_the_record_by_mail(
    airflow: LocalAirflow, service: FakeFieldService, mailbox: Mailbox, dags_folder: Path, tmp_path: Path
) -> None:
    soon = {"deferrable=True,": "deferrable=True, poke_interval=2,"}
    copy(airflow, dags_folder, "certificate_by_mail", MAILED, by_hand=False, **soon)

    params = {"property_id": 9721, "tenant": "a.tenant@example.com", "records": str(tmp_path)}
    run_id, state = run(airflow, MAILED, **params)

    assert state == "success"
    job = airflow.xcom(MAILED, run_id, "create_job")
    (record,) = airflow.xcom(MAILED, run_id, "wait_for_record")
    (mail,) = mailbox.mails
    assert (mail["To"], mail["From"]) == ("a.tenant@example.com", "office@example.com")
    (attached,) = mail.iter_attachments()
    assert attached.get_filename() == f"gas-safety-record-{record['id']}.pdf"
    assert attached.get_content() == service.pdf(record["id"])
    assert record["jobID"] == job["id"]


def test_windows_are_loaded_into_a_warehouse_whichever_fail_or_are_repeated(
    airflow: LocalAirflow, dags_folder: Path, tmp_path: Path
) -> None:
    # An account of its own: a window has no end, and would have the forms of other tests.
    with FakeFieldService() as account:
        airflow.add_connection("fsm_account", account.connection())
        with_account = {'task_id="export"': 'task_id="export", fsm_conn_id="fsm_account"'}
        copy(airflow, dags_folder, "forms_to_warehouse", WAREHOUSE, **with_account)
        load_windows(airflow, account, tmp_path)


def load_windows(airflow: LocalAirflow, account: FakeFieldService, folder: Path) -> None:
    days = [datetime(2026, 1, number, tzinfo=UTC) for number in (5, 6, 7)]
    windows, warehouse = folder / "forms", folder / "forms.duckdb"
    params = {"folder": str(windows), "warehouse": str(warehouse)}
    odd = {
        "formName": "R\u00e9paration \U0001f525",
        "createdByUser": None,
        "answers": {"tight?": [None, "ja"]},
    }

    def load(day: datetime) -> tuple[str, str]:
        return run(airflow, WAREHOUSE, **params, day=str(day.date()))

    def rows(table: str, *columns: str) -> list[tuple[object, ...]]:
        with duckdb.connect(str(warehouse), read_only=True) as connection:
            return connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY ALL").fetchall()

    changed, stays = (account.add_form(updated=days[0], property_id=7)["id"] for _ in range(2))
    late = account.add_form(updated=days[0] - timedelta(days=2), **odd)["id"]
    first, state = load(days[0])
    assert (state, airflow.xcom(WAREHOUSE, first, "load")) == ("success", 3)

    account.update_form(changed, updated=days[1], formName="Signed off")
    _, state = load(days[1])
    assert state == "success"
    expected = [(changed, "Signed off"), (stays, "Gas Safety Record"), (late, odd["formName"])]
    assert rows("forms", "id", "formName") == sorted(expected)
    ((user, extra),) = [row[1:] for row in rows("forms", "id", "createdByUser", "_extra") if row[0] == late]
    assert (user, json.loads(extra)) == (None, {"answers": odd["answers"]})

    # Its file cannot be put in place: neither the export nor the load succeeds.
    in_its_place = windows / f"window_start={days[2].date()}" / "forms.parquet"
    in_its_place.mkdir(parents=True)
    new = account.add_form(updated=days[2])["id"]
    failed, state = load(days[2])
    assert state == "failed"
    assert airflow.task_states(WAREHOUSE, failed)["load"] == "upstream_failed"
    assert rows("forms", "id", "formName") == sorted(expected)

    in_its_place.rmdir()
    airflow.clear(WAREHOUSE, failed, ["export", "load"])
    assert airflow.wait_for_run(WAREHOUSE, failed) == "success"
    airflow.clear(WAREHOUSE, first, ["choose_window", "export", "load"])
    assert airflow.wait_for_run(WAREHOUSE, first) == "success"

    expected.append((new, "Gas Safety Record"))
    assert rows("forms", "id", "formName") == sorted(expected)
    assert rows("form_versions", "window_start", "id") == [
        (date(2026, 1, day), form)
        for day in (5, 6, 7)
        for form in sorted((changed, stays, late, new))
        if form != new or day != 6
    ]
    assert names(windows) == [f"window_start={day.date()}/forms.parquet" for day in days]
