"""What a user sees of a run: the links of its tasks, followed."""

from pathlib import Path

from playwright.sync_api import Page, expect

from fsm_provider.links import FsmJobLink
from fsm_provider.testing import FakeFieldService
from tests.system.airflow_api import AirflowApi
from tests.system.examples import copy_example
from tests.system.jobs import jobs_with_reference
from tests.system.local_airflow import LocalAirflow
from tests.ui.browser import Picture

SHORT = {"width": 1280, "height": 540}


def finished_run(airflow: AirflowApi, dag_id: str, **params: object) -> str:
    run_id = airflow.trigger(dag_id, params)
    assert airflow.wait_for_run(dag_id, run_id) == "success"
    return run_id


def open_details(page: Page, dag_id: str, run_id: str, task_id: str) -> None:
    """Go from the DAG to a task of a run, by the grid."""
    page.goto(f"/dags/{dag_id}")
    page.locator(f'a[href$="/runs/{run_id}/tasks/{task_id}"]').click()
    page.get_by_role("link", name="Details").click()
    page.mouse.move(640, 790)
    expect(page.get_by_text("Extra Links")).to_be_visible()


def follow(page: Page, link: str) -> Page:
    with page.context.expect_page() as opened:
        page.get_by_role("link", name=link, exact=True).click()
    opened.value.wait_for_load_state()
    return opened.value


def test_the_link_of_a_task_that_creates_a_job_leads_to_the_job(
    page: Page, airflow: LocalAirflow, service: FakeFieldService, picture: Picture
) -> None:
    run_id = finished_run(airflow, "work_order_roundtrip", purchase_order="PO-4711")
    (job,) = jobs_with_reference(service, "PO-4711")

    open_details(page, "work_order_roundtrip", run_id, "create_job")
    picture(page, "job-link")
    arrived = follow(page, FsmJobLink.name)

    assert arrived.url == job["links"]["self"]
    expect(arrived.get_by_role("heading", name=f"Job {job['id']}")).to_be_visible()
    (asked,) = service.requests_to("GET", f"/jobs/{job['id']}")
    assert "authorization" not in asked.headers
    assert "referer" not in asked.headers


def test_a_deferred_sensor_says_what_it_waits_for(
    page: Page,
    airflow: LocalAirflow,
    service: FakeFieldService,
    dags_folder: Path,
    picture: Picture,
) -> None:
    form_name = "Gas Safety Certificate"
    sensor = 'task_id="wait_for_its_form",'
    with_form_name = f'{sensor}\n        form_names=["{form_name}"],'
    replaced = {sensor: with_form_name}
    copy_example(airflow, dags_folder, "quickstart", "first_job", by_hand=False, **replaced)

    def is_deferred(states: dict[str, str | None]) -> bool:
        return states["wait_for_its_form"] == "deferred"

    run_id = airflow.trigger("first_job")
    airflow.wait_for_tasks("first_job", run_id, is_deferred)
    (job,) = jobs_with_reference(service, run_id)

    page.set_viewport_size(SHORT)
    page.goto(f"/dags/first_job/runs/{run_id}")
    expect(page.get_by_text("deferred").first).to_be_visible()
    picture(page, "deferred-run")
    page.goto(f"/dags/first_job/runs/{run_id}/tasks/wait_for_its_form")
    expect(page.get_by_text(f"Waiting for {form_name}").first).to_be_visible()
    expect(page.get_by_text(f"{form_name} is missing").first).to_be_visible()

    service.complete_form(job["id"], form_name)
    assert airflow.wait_for_run("first_job", run_id) == "success"
