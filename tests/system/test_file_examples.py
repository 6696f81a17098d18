"""The examples that end in files, on a real Airflow: asset fields watched, invoices drafted, PDFs stored."""

import json
from pathlib import Path

from example_dags import planned_maintenance_jobs as planned
from fsm_provider.testing import FakeFieldService, faults
from tests.system.examples import copy
from tests.system.local_airflow import LocalAirflow

QUALITY, INVOICES, RECORDS = "quality_copy", "invoices_copy", "records_copy"


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
    copy(airflow, dags_folder, "invoice_on_signoff", INVOICES)
    first, second, unknown = (
        service.add_form(job_id=job, property_id=9701, form_name="Invoiced Sign-off")["id"]
        for job in (97001, 97001, 97002)
    )
    service.add_form(job_id=97001, property_id=9701, form_name="Gas Safety Record")
    created = tmp_path / "created"
    add_outcome(created, "INV-1", 97001, "120.00")
    folder = tmp_path / "invoices"
    params = {"created_jobs": str(created), "invoices": str(folder), "form_name": "Invoiced Sign-off"}

    run_id, state = run(airflow, INVOICES, **params)

    assert state == "success"
    drafted = airflow.xcom(INVOICES, run_id, "draft_invoices")
    assert [(draft["jobID"], draft["amount"], draft["formID"]) for draft in drafted["drafted"]] == [
        (97001, "120.00", first)
    ]
    assert {form["id"]: form["reason"] for form in drafted["newly_held"]} == {
        second: f"job 97001 has a draft for form {first}",
        unknown: "job 97002 is not among the jobs that were created",
    }
    assert names(folder) == [
        f"held/job=97001,form={second}.json",
        f"held/job=97002,form={unknown}.json",
        "job=97001.json",
        "records/job=97001.json",
    ]

    add_outcome(created, "INV-2", 97002, "45.50")
    # The accounting system removes the draft, and its form is listed again.
    (folder / "job=97001.json").unlink()
    run_id, state = run(airflow, INVOICES, **params)

    assert state == "success"
    drafted = airflow.xcom(INVOICES, run_id, "draft_invoices")
    assert [(draft["jobID"], draft["amount"]) for draft in drafted["drafted"]] == [(97002, "45.50")]
    assert (drafted["newly_held"], drafted["held"]) == ([], 1)
    assert names(folder) == [
        f"held/job=97001,form={second}.json",
        "job=97002.json",
        "records/job=97001.json",
        "records/job=97002.json",
    ]


def add_outcome(folder: Path, reference: str, job_id: int, amount: str) -> None:
    """Write an outcome as planned_maintenance_jobs does."""
    path = planned.file_for(planned.ObjectStoragePath(str(folder)), f"run of {reference}", planned.OUTCOMES)
    row = planned.report_row(reference, "9701", "created", jobID=job_id, quotedAmount=amount)
    planned.write_rows(path, [row])


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
