"""The examples that read forms, on a real Airflow: by events, since their own watermark, by interval."""

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fsm_provider.testing import FakeFieldService
from tests.system.airflow_api import wait_until
from tests.system.examples import copy
from tests.system.local_airflow import LocalAirflow
from tests.system.watcher import watching

EVENTS, REPORT, WATERMARK = "gas_safety_forms", "gap_report_copy", "watermark_copy"


@pytest.fixture
def watched(airflow: LocalAirflow, service: FakeFieldService) -> Iterator[None]:
    with watching(airflow, service, EVENTS):
        yield


@pytest.fixture
def broken(airflow: LocalAirflow, dags_folder: Path, tmp_path: Path) -> Path:
    """A file: while it is there, the work of the example that reads since its watermark fails."""
    file = tmp_path / "broken"
    fails = f"return [0 / (not __import__('os').path.exists({str(file)!r})) or"
    copy(
        airflow,
        dags_folder,
        "forms_since_watermark",
        WATERMARK,
        **{'return [form["id"]': f'{fails} form["id"]'},
    )
    return file


def run_started_by(airflow: LocalAirflow, form: int) -> str:
    """Wait until a run with a form has succeeded; other tests' jobs may have forms as well."""

    def run_id() -> str | None:
        for run in airflow.runs(EVENTS):
            if run["state"] == "success":
                references = airflow.xcom(EVENTS, run["dag_run_id"], "parse_forms")
                if form in [reference["id"] for reference in references]:
                    return str(run["dag_run_id"])
        return None

    return wait_until(run_id, f"a run of {EVENTS} with form {form}")


def test_completed_forms_start_a_run_and_go_where_their_names_send_them(
    airflow: LocalAirflow, service: FakeFieldService, watched: None
) -> None:
    record = service.add_form(form_name="Gas Safety Record", property_id=9601)

    run_id = run_started_by(airflow, record["id"])

    assert airflow.task_states(EVENTS, run_id) == {
        "parse_forms": "success",
        "route": "success",
        "file_records": "success",
        "warn_office": "skipped",
    }
    assert record["id"] in airflow.xcom(EVENTS, run_id, "file_records")
    assert "of property 9601" in airflow.task_log(EVENTS, run_id, "file_records")


def run(airflow: LocalAirflow) -> tuple[str, str]:
    run_id = airflow.trigger(WATERMARK)
    return run_id, airflow.wait_for_run(WATERMARK, run_id)


def handled(airflow: LocalAirflow) -> list[int]:
    run_id, state = run(airflow)
    assert state == "success"
    return airflow.xcom(WATERMARK, run_id, "handle_forms")


def noted(airflow: LocalAirflow) -> str:
    listed_at: str = json.loads(airflow.api("GET", f"/variables/{WATERMARK}")["value"])["listed_at"]
    return listed_at


def test_the_watermark_moves_only_with_the_work_and_each_version_is_handled_once(
    airflow: LocalAirflow, service: FakeFieldService, broken: Path
) -> None:
    first, second = (service.add_form(property_id=9611)["id"] for _ in range(2))
    assert {first, second} <= set(handled(airflow))
    before = noted(airflow)
    service.update_form(first)
    third = service.add_form(property_id=9611)["id"]
    broken.touch()

    run_id, state = run(airflow)

    assert state == "failed"
    assert airflow.task_states(WATERMARK, run_id)["commit"] == "upstream_failed"
    assert noted(airflow) == before
    broken.unlink()
    assert sorted(handled(airflow)) == [first, third]
    assert noted(airflow) > before
    assert handled(airflow) == []


def test_the_gaps_of_many_months_come_of_one_listing(
    airflow: LocalAirflow, service: FakeFieldService, dags_folder: Path, tmp_path: Path
) -> None:
    copy(airflow, dags_folder, "compliance_gap_report", REPORT)
    service.add_form(property_id=9621, created=datetime(2025, 1, 10, tzinfo=UTC))
    renewed = service.add_form(property_id=9621, created=datetime(2026, 1, 31, 23, 59, tzinfo=UTC))
    service.add_form(property_id=9622, created=datetime(2025, 3, 20, tzinfo=UTC))
    service.add_form(property_id=9622, created=datetime(2026, 2, 1, tzinfo=UTC), form_name="Job Sign-off")
    (tmp_path / "portfolio.csv").write_text("propertyID,address\n9621,a\n9622,b\n9623,c\n")
    asked = len(service.requests)

    days = {"first_day": "2026-01-01", "last_day": "2026-03-01"}
    run_id = airflow.trigger(REPORT, {"portfolio": str(tmp_path / "portfolio.csv"), **days})

    assert airflow.wait_for_run(REPORT, run_id) == "success"
    result = airflow.xcom(REPORT, run_id, "report")
    assert result["gaps"] == {
        "2026-01-01": {"due": 1, "missing": 1},
        "2026-02-01": {"due": 1, "missing": 1},
        "2026-03-01": {"due": 1, "missing": 1},
    }
    folder = tmp_path / "portfolio.csv.gaps"
    gaps = {path.stem: list(csv.DictReader(path.read_text().splitlines())) for path in folder.glob("*.csv")}
    assert [(row["propertyID"], row["due"]) for row in gaps["2026-01-01"]] == [
        ("9621", "2026-01-10"),
        ("9623", ""),
    ]
    assert [row["propertyID"] for row in gaps["2026-02-01"]] == ["9622", "9623"]
    assert str(renewed["id"]) not in {row["formID"] for rows in gaps.values() for row in rows}
    assert "never lists legacy forms" in airflow.task_log(REPORT, run_id, "report")
    pages = {path.stem: path for path in folder.glob("*.html")}
    assert pages.keys() == gaps.keys()
    assert "1 due within 60 days" in pages["2026-02-01"].read_text()
    assert airflow.extra_links(REPORT, run_id, "report") == {"Report": pages["2026-03-01"].as_uri()}
    queries = [dict(request.query) for request in service.requests[asked:] if request.method == "GET"]
    # A watcher that was paused just before may still ask for what was updated.
    listings = [query for query in queries if "lastUpdatedOnDateTime[gte]" not in query]
    assert len([query for query in listings if "cursor" not in query]) == 1
    assert {query["createdOnDateTime[gte]"] for query in listings} == {"2024-12-01T00:00:00.000Z"}
