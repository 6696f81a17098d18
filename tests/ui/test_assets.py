"""What a user sees of deliveries as events."""

import json
from pathlib import Path

from playwright.sync_api import Page, expect

from fsm_provider.testing import FakeFieldService
from tests.system.examples import EXAMPLES
from tests.system.local_airflow import LocalAirflow
from tests.ui.browser import Picture

DELIVERIES = "fsm://fsm_default/jobs"


def unfold(page: Page) -> None:
    """Unfold the only event, level by level."""
    folded = page.locator(".codicon-folding-collapsed")
    unfolded = page.locator(".codicon-folding-expanded")
    expect(folded.first).to_be_visible()
    while folded.count():
        levels = unfolded.count()
        folded.first.click()
        expect(unfolded).to_have_count(levels + 1)


def test_an_asset_shows_a_delivery_and_the_run_that_it_started(
    page: Page,
    airflow: LocalAirflow,
    service: FakeFieldService,
    dags_folder: Path,
    picture: Picture,
) -> None:
    example = "webhook_bootstrap.py"
    (dags_folder / example).symlink_to(EXAMPLES / example)
    configuration = {
        "base_url": airflow.base_url,
        "endpoints": {"fsm_default/jobs": {"signature": "standard-webhooks"}},
    }
    airflow.set_variable("fsm_webhooks", configuration)
    bootstrap = airflow.trigger("webhook_bootstrap")
    assert airflow.wait_for_run("webhook_bootstrap", bootstrap) == "success"

    job = service.add_job(7)
    run_id = airflow.first_run("jobs_from_webhooks")
    assert airflow.wait_for_run("jobs_from_webhooks", run_id) == "success"

    page.goto("/assets")
    page.get_by_role("link", name=DELIVERIES, exact=True).click()
    unfold(page)
    picture(page, "webhook-events")

    page.get_by_role("button", name="Copy to clipboard").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    event = json.loads(copied)
    assert event["type"] == "jobs.created"
    assert event["id"] == job["id"]
