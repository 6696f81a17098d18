"""The page *Field service*, as users work with it; also on an older Airflow: ``nox -s ui``."""

import json
import re
import time

import pytest
import requests
from playwright.sync_api import Browser, Page, expect

from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import MENU
from tests.system.airflow_api import POLL_SECONDS
from tests.system.conftest import TOKEN
from tests.system.local_airflow import BOOT_SECONDS, LocalAirflow
from tests.ui.conftest import TIMEOUT_MS

MARKUP = "<b>bold</b><script>document.title = 'taken'</script>"
DAG = f"""
from datetime import datetime
from airflow.sdk import DAG
from fsm_provider.operators.jobs import FsmCreateJobOperator
with DAG("planned", schedule="@once", start_date=datetime(2026, 1, 1)):
    FsmCreateJobOperator(task_id="create", property_id=7, job={{"customerReference": {MARKUP!r}}}, key="PM-7")
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
  const texts = [...document.querySelectorAll("body *")]
    .filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
  return {
    text: Math.min(...texts.map(e => contrast(channels(getComputedStyle(e).color), behind(e)))),
    background: channels(getComputedStyle(document.body).backgroundColor),
  }
})()
"""
UNLABELLED = "[...document.querySelectorAll('input:not([type=hidden])')].filter(one => !one.labels.length).length"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LINK = "/api/v2/dags/planned/dagRuns/{}/taskInstances/create/links"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    """An Airflow with a user and a viewer, whose DAG has left a job uncertain."""
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    (home / "passwords.json").write_text(json.dumps({"jo": "jo", "vera": "vera"}))
    ledger = {"conn_type": "sqlite", "host": str(home / "ledger.db")}
    with FakeFieldService(token=TOKEN) as service:
        service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=True))
        extra = {"state_conn_id": "ledger", "max_retries": 0}
        env = {
            "AIRFLOW_CONN_FSM_DEFAULT": json.dumps({**service.connection(), "extra": extra}),
            "AIRFLOW_CONN_LEDGER": json.dumps(ledger),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "jo:user,vera:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        }
        with LocalAirflow(dags, home, env) as running:
            (dags / "planned.py").write_text(DAG)  # it runs at once, and needs the API server
            cookies, deadline = (
                {"_token": token_of(running, "vera")},
                time.monotonic() + BOOT_SECONDS,
            )
            while (
                "PM-7"
                not in requests.get(
                    f"{running.base_url}/fsm-page/", cookies=cookies, timeout=60
                ).text
            ):
                assert time.monotonic() < deadline
                time.sleep(POLL_SECONDS)
            yield running


def token_of(airflow: LocalAirflow, name: str) -> str:
    login = {"username": name, "password": name}
    return requests.post(f"{airflow.base_url}/auth/token", json=login, timeout=60).json()[
        "access_token"
    ]


@pytest.fixture
def show(airflow, browser: Browser):
    """Open a window, of a user; return it, and the errors on its console."""

    def open_window(name=None, *, path="/fsm-page/", **options) -> tuple[Page, list[str]]:
        context = browser.new_context(base_url=airflow.base_url, **options)
        context.set_default_timeout(TIMEOUT_MS)
        if name:
            cookie = {"name": "_token", "value": token_of(airflow, name), "url": airflow.base_url}
            context.add_cookies([cookie])
        page, errors = context.new_page(), []
        page.on("console", lambda one: errors.extend([one.text] * (one.type == "error")))
        page.on("pageerror", lambda error: errors.append(error.message))
        page.goto(path)
        return page, errors

    return open_window


def test_a_viewer_only_looks_and_nobody_else_does(show):
    page, errors = show("vera", viewport={"width": 375, "height": 800})
    expect(page.get_by_role("heading", name="PM-7")).to_be_visible()
    assert (page.get_by_role("button").count(), page.evaluate(TOO_WIDE), errors) == (1, 0, [])
    page, _ = show()
    expect(page).to_have_url(re.compile("/login"))
    page.get_by_label("Username").fill("vera")
    page.get_by_label("Password").fill("vera")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="PM-7")).to_be_visible()


@MENU.needed
def test_what_is_uncertain_is_seen_and_settled_by_keyboard(airflow, show, picture):
    page, errors = show("jo", path="/plugin/field-service")
    frame = page.locator("iframe").element_handle().content_frame()
    expect(frame.get_by_text(f"reference {MARKUP}")).to_be_visible()
    for dark in (False, True):
        page.evaluate("dark => document.documentElement.classList.toggle('dark', dark)", dark)
        frame.goto(frame.url)
        measured = frame.evaluate(CONTRAST)
        assert ((sum(measured["background"][:3]) < 200), measured["text"] >= 4.5) == (dark, True)
        assert (frame.evaluate(UNLABELLED), frame.title()) == (0, "Field service")
        picture(page, f"page-{'dark' if dark else 'light'}")
    run = (
        frame.get_by_role("link", name="task create")
        .get_attribute("href")
        .split("/runs/")[1]
        .split("/")[0]
    )
    bearer = {"Authorization": f"Bearer {token_of(airflow, 'jo')}"}
    links = requests.get(airflow.base_url + LINK.format(run), headers=bearer, timeout=60).json()
    assert links["extra_links"]["Uncertain"] == "fsm-page/?conn_id=fsm_default"

    frame.get_by_label("Key, reference").focus()
    for key in ("Tab", "Tab", "Tab", "looked it up", "Tab", "4711", "Tab", "Enter"):
        page.keyboard.press(key) if key in ("Tab", "Enter") else page.keyboard.type(key)
    expect(frame.get_by_text("Nothing is uncertain.")).to_be_visible()
    frame.get_by_label("Key, reference").fill("4711")
    page.keyboard.press("Enter")
    frame.get_by_role("link", name="task create").click()

    page.wait_for_url(f"**/dags/planned/runs/{run}/tasks/create*")
    assert errors == []
