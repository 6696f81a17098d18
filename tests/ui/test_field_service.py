"""The page *Field service*, as users work with it; also on an older Airflow: ``nox -s ui``."""

import json
import re
import time

import pytest
import requests
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import MENU
from tests.system.airflow_api import POLL_SECONDS
from tests.system.local_airflow import BOOT_SECONDS, LocalAirflow
from tests.system.tokens import TOKEN
from tests.ui.browser import TIMEOUT_MS

MARKUP = "<b>bold</b><script>document.title = 'taken'</script>"
DAG = f"""
from datetime import datetime
from airflow.sdk import DAG
from fsm_provider.operators.jobs import FsmCreateJobOperator
with DAG("planned", schedule="@once", start_date=datetime(2026, 1, 1)):
    FsmCreateJobOperator(
        task_id="create",
        property_id=7,
        job={{"customerReference": {MARKUP!r}}},
        key="PM-7",
    )
"""
CONTRAST = """
(() => {
  const channels = text => text.match(/[0-9.]+/g).map(Number)
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
  const behind = element => {
    const colour = channels(getComputedStyle(element).backgroundColor)
    return colour[3] === 0 ? behind(element.parentElement) : colour
  }
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b)
    return (high + 0.05) / (low + 0.05)
  }
  const isText = node => node.nodeType === 3 && node.data.trim()
  const texts = [...document.querySelectorAll("body *")]
    .filter(element => [...element.childNodes].some(isText))
  return {
    text: Math.min(...texts.map(e => contrast(channels(getComputedStyle(e).color), behind(e)))),
    background: channels(getComputedStyle(document.body).backgroundColor),
  }
})()
"""
UNLABELLED = """
[...document.querySelectorAll("input:not([type=hidden])")]
  .filter(input => !input.labels.length)
  .length
"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LINK = "/api/v2/dags/planned/dagRuns/{}/taskInstances/create/links"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    """An Airflow with a user and a viewer, whose DAG has left a job uncertain."""
    home = tmp_path_factory.mktemp("airflow")
    dags = tmp_path_factory.mktemp("dags")
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({"jo": "jo", "vera": "vera"}))
    ledger = {"conn_type": "sqlite", "host": str(home / "ledger.db")}
    with FakeFieldService(token=TOKEN) as service:
        service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=True))
        connection = service.connection()
        connection["extra"] = {"state_conn_id": "ledger", "max_retries": 0}
        env = {
            "AIRFLOW_CONN_FSM_DEFAULT": json.dumps(connection),
            "AIRFLOW_CONN_LEDGER": json.dumps(ledger),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "jo:user,vera:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        }
        with LocalAirflow(dags, home, env) as running:
            (dags / "planned.py").write_text(DAG)  # it runs at once, and needs the API server
            wait_until_uncertain(running)
            yield running


def wait_until_uncertain(airflow: LocalAirflow) -> None:
    """Wait until the page shows the job."""
    cookies = {"_token": token_of(airflow, "vera")}
    deadline = time.monotonic() + BOOT_SECONDS
    while True:
        page = requests.get(f"{airflow.base_url}/fsm-page/", cookies=cookies, timeout=60)
        if "PM-7" in page.text:
            return
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def token_of(airflow: LocalAirflow, name: str) -> str:
    login = {"username": name, "password": name}
    response = requests.post(f"{airflow.base_url}/auth/token", json=login, timeout=60)
    return response.json()["access_token"]


@pytest.fixture
def show(airflow, browser: Browser):
    """Open a window, of a user; return it, and the errors on its console."""

    def open_window(name=None, *, path="/fsm-page/", **options) -> tuple[Page, list[str]]:
        context = browser.new_context(base_url=airflow.base_url, **options)
        context.set_default_timeout(TIMEOUT_MS)
        if name:
            token = token_of(airflow, name)
            context.add_cookies([{"name": "_token", "value": token, "url": airflow.base_url}])
        page = context.new_page()
        errors: list[str] = []

        def on_console(message: ConsoleMessage) -> None:
            if message.type == "error":
                errors.append(message.text)

        page.on("console", on_console)
        page.on("pageerror", lambda error: errors.append(error.message))
        page.goto(path)
        return page, errors

    return open_window


def test_a_viewer_only_looks_and_nobody_else_does(show):
    page, errors = show("vera", viewport={"width": 375, "height": 800})
    expect(page.get_by_text("key PM-7")).to_be_visible()
    assert page.get_by_role("button").count() == 1
    assert page.evaluate(TOO_WIDE) == 0
    assert errors == []

    page, _ = show()
    expect(page).to_have_url(re.compile("/login"))
    page.get_by_label("Username").fill("vera")
    page.get_by_label("Password").fill("vera")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("key PM-7")).to_be_visible()


@MENU.needed
def test_what_is_uncertain_is_seen_and_settled_by_keyboard(airflow, show):
    page, errors = show("jo", path="/plugin/field-service")
    frame = page.locator("iframe").element_handle().content_frame()
    expect(frame.get_by_text(MARKUP)).to_be_visible()
    for dark in (False, True):
        page.evaluate("dark => document.documentElement.classList.toggle('dark', dark)", dark)
        frame.goto(frame.url)
        measured = frame.evaluate(CONTRAST)
        red, green, blue = measured["background"][:3]
        is_dark = red + green + blue < 200
        assert is_dark == dark
        assert measured["text"] >= 4.5
        assert frame.evaluate(UNLABELLED) == 0
        assert frame.title() == "Field service"
    href = frame.get_by_role("link", name="task create").get_attribute("href")
    run = href.split("/runs/")[1].split("/")[0]
    bearer = {"Authorization": f"Bearer {token_of(airflow, 'jo')}"}
    response = requests.get(airflow.base_url + LINK.format(run), headers=bearer, timeout=60)
    links = response.json()["extra_links"]
    assert links["Uncertain"] == "fsm-page/?conn_id=fsm_default"

    frame.get_by_role("link", name="task create").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # opens the form
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # it exists
    page.keyboard.press("Tab")
    page.keyboard.type("4711")
    page.keyboard.press("Tab")
    page.keyboard.type("looked it up")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(frame.get_by_text("Nothing is uncertain.")).to_be_visible()
    expect(frame.get_by_role("status")).to_contain_text("it returns 4711, and sends nothing.")
    frame.get_by_label("Reference, key").fill("4711")
    page.keyboard.press("Enter")
    expect(frame.get_by_text("Done, id 4711.")).to_be_visible()
    frame.get_by_role("link", name="task create").first.click()

    page.wait_for_url(f"**/dags/planned/runs/{run}/tasks/create*")
    assert errors == []
