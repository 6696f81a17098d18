"""The page *Field service* of a heating firm: 30 uncertain jobs, 300 waits, a watcher that fails.

Only the API server runs: what the page shows is put into the databases. Also on an older Airflow:
``nox -s ui``.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.capabilities import MENU
from tests.pages import ROOT
from tests.system.local_airflow import SERVER, LocalAirflow, create_database
from tests.ui.browser import TIMEOUT_MS, Picture
from tests.ui.office import CONNECTIONS, UNCERTAIN, WAITS

AXE = os.environ.get("FSM_AXE", "")
"""The file ``axe.min.js`` of the npm package axe-core."""
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT = """
[...document.querySelectorAll("td, p, h1, h2, h3, label, a, summary, button")]
  .filter(element => element.checkVisibility() && !element.closest(".visually-hidden"))
  .filter(element => {
    const box = element.getBoundingClientRect()
    return box.left < 0 || box.right > innerWidth || element.scrollWidth > element.clientWidth + 1
      && element.clientWidth > 0 && getComputedStyle(element).display !== "inline"
  })
  .map(element => element.outerHTML.slice(0, 200))
"""
SMALL = """
[...document.querySelectorAll("a, button, select, summary, input:not([type=hidden])")]
  .filter(element => element.checkVisibility())
  .map(element => element.closest("label.choice, .row label") || element)
  .filter(element => !element.closest("[role=status]"))  // a link in a sentence
  .filter(element => element.getBoundingClientRect().height < 44)
  .map(element => element.outerHTML.slice(0, 200))
"""
SUB_PATH = "/office/airflow"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    """The API server of the firm's Airflow, with a user and a viewer."""
    home = tmp_path_factory.mktemp("office")
    with serving(home, environment_of(home)) as running:
        yield running


def environment_of(home: Path) -> dict[str, str]:
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({"jo": "jo", "vera": "vera"}))
    env = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "jo:user,vera:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
    for conn_id in CONNECTIONS:
        web_url = "https://app.example.com/properties/{propertyID}/jobs/{id}"
        connection = {
            "conn_type": "fsm",
            "host": f"https://{conn_id.removeprefix('fsm_')}.api.example.com/v1",
            "password": "token-of-the-tests",
            "extra": {"state_conn_id": f"ledger_{conn_id}", "web_url": web_url},
        }
        ledger = {"conn_type": "sqlite", "host": str(home / f"{conn_id}.db")}
        env[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(connection)
        env[f"AIRFLOW_CONN_LEDGER_{conn_id.upper()}"] = json.dumps(ledger)
    return env


@contextmanager
def serving(home: Path, env: dict[str, str]) -> Iterator[LocalAirflow]:
    airflow = LocalAirflow(home, home, env)
    create_database(airflow.env)
    subprocess.run(
        [sys.executable, "-m", "tests.ui.office"],
        env={**airflow.env, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    try:
        airflow._bring_up(SERVER)
        yield airflow
    finally:
        airflow.stop()


def token_of(airflow: LocalAirflow, name: str) -> str:
    login = {"username": name, "password": name}
    response = requests.post(f"{airflow.base_url}/auth/token", json=login, timeout=60)
    return response.json()["access_token"]


@pytest.fixture
def show(airflow: LocalAirflow, browser: Browser) -> Iterator[Any]:
    """Open a window of a user; nothing may be an error on its console."""
    errors: list[str] = []
    contexts = []

    def open_window(name: str, path: str = "/fsm-page/", **options: Any) -> Page:
        values = {"viewport": DESK, "locale": "en-GB", "timezone_id": "Europe/London", **options}
        context = browser.new_context(base_url=airflow.base_url, **values)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        token = token_of(airflow, name)
        context.add_cookies([{"name": "_token", "value": token, "url": airflow.base_url}])
        page = context.new_page()

        def on_console(message: ConsoleMessage) -> None:
            if message.type == "error" and "409" not in message.text:
                errors.append(message.text)

        page.on("console", on_console)
        page.on("pageerror", lambda error: errors.append(error.message))
        page.goto(path)
        return page

    yield open_window
    for context in contexts:
        context.close()
    assert errors == []


def figures(page: Page) -> list[str]:
    """Give the five figures."""
    return page.locator("nav strong").all_inner_texts()


def test_what_is_wrong_is_on_top_with_its_connection_and_its_reason(
    show: Any, picture: Picture
) -> None:
    page = show("vera")
    uncertain, ending, waits, forms, failing = figures(page)
    assert (uncertain, waits, failing) == (f"{UNCERTAIN}", f"{WAITS}", "1")
    assert 10 < int(ending) < 20
    assert int(forms) > 0
    picture(page, "page-light")
    rows = page.locator("#uncertain ~ table").first.locator("tbody tr")
    expect(rows).to_have_count(UNCERTAIN)
    for conn_id in CONNECTIONS:
        expect(rows.filter(has_text=f"{conn_id}: POST")).to_have_count(UNCERTAIN // 3)
    expect(rows.filter(has_text="Uncertain: ")).to_have_count(UNCERTAIN)
    expect(page.get_by_text("HTTP 401 Unauthorized")).to_be_visible()
    assert page.get_by_role("button").count() == 1
    expect(page.get_by_text("ask somebody who may").first).to_be_visible()

    page.get_by_role("link", name="waits for forms that end within a day").click()
    assert page.url.endswith("#waits")
    picture(page, "page-waits")
    page.get_by_role("link", name="Count the missing forms by name").click()
    expect(page.get_by_role("listitem").filter(has_text="Warning Notice")).to_be_visible()
    page.get_by_label("Property").fill("1007")
    page.get_by_role("button", name="Show").click()
    assert figures(page)[2] == "1"


def test_in_the_dark(show: Any, picture: Picture) -> None:
    page = show("jo", color_scheme="dark")
    picture(page, "page-dark")


def test_on_a_telephone_nothing_is_cut_and_every_target_is_large(
    show: Any, picture: Picture
) -> None:
    page = show("jo", viewport=PHONE, has_touch=True, is_mobile=True)
    picture(page, "page-phone")
    for name in ("Record what became of it", "Have forms come again"):
        page.get_by_text(name).first.click()
    assert page.evaluate(TOO_WIDE) == 0
    assert page.evaluate(CUT) == []
    assert page.evaluate(SMALL) == []
    page.set_viewport_size(DESK)
    assert page.evaluate(TOO_WIDE) == 0
    assert page.evaluate(SMALL) == []


@pytest.mark.skipif(not Path(AXE).is_file(), reason="FSM_AXE names no axe.min.js of axe-core")
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing(show: Any, viewport: dict[str, int], color_scheme: str) -> None:
    path = "/fsm-page/?q=boiler&names=true"
    # It is put into the page, which would refuse that.
    page = show("jo", path, viewport=viewport, color_scheme=color_scheme, bypass_csp=True)
    page.get_by_text("Record what became of it").first.click()
    page.locator("#settled + details summary").click()
    page.add_script_tag(path=AXE)

    violations = page.evaluate("axe.run()")["violations"]

    found = [(violation["id"], violation["nodes"][0]["html"]) for violation in violations]
    assert found == []


def test_times_are_in_the_viewers_zone_and_utc_is_in_the_title(show: Any) -> None:
    page = show("vera", timezone_id="Asia/Tokyo")
    time = page.locator("header time")
    utc = time.get_attribute("title") or ""
    hour = int(utc.split(" ")[1].partition(":")[0])
    assert utc.endswith(" UTC")
    assert re.search(rf", {(hour + 9) % 24:02}:\d\d$", time.inner_text())


@MENU.needed
def test_the_frame_follows_airflows_own_switch_between_light_and_dark(show: Any) -> None:
    page = show("vera", "/plugin/field-service")
    frame = page.frame_locator("iframe")
    body = frame.locator("body")
    expect(frame.get_by_role("heading", name="Field service")).to_be_visible()
    for is_dark, color in ((True, "rgb(9, 9, 11)"), (False, "rgb(255, 255, 255)")):
        page.evaluate("dark => document.documentElement.classList.toggle('dark', dark)", is_dark)
        expect(body).to_have_css("background-color", color)


def test_a_settlement_of_each_kind_is_confirmed_and_one_that_is_unclear_is_refused(
    show: Any, picture: Picture
) -> None:
    page = show("jo")
    rows = page.locator("#uncertain ~ table").first.locator("tbody tr")
    row = rows.first
    row.get_by_text("Record what became of it").click()
    picture(page, "page-settle")
    row.get_by_role("radio", name="It does not exist").check()
    row.get_by_label("Its id").fill("1001")
    row.get_by_label("How you know").fill("asked Sam")
    row.get_by_role("button", name="Record").click()
    expect(page.get_by_role("alert").first).to_contain_text("nothing was recorded")
    assert figures(page)[0] == f"{UNCERTAIN}"

    row.get_by_text("Record what became of it").click()
    row.get_by_role("radio", name="It exists").check()
    row.get_by_label("Its id").fill("1001")
    row.get_by_label("How you know").fill("found in the planner")
    row.get_by_role("button", name="Record").click()
    expect(page.get_by_role("status")).to_contain_text("it returns 1001, and sends nothing.")
    assert figures(page)[0] == f"{UNCERTAIN - 1}"

    row.get_by_text("Record what became of it").click()
    row.get_by_role("radio", name="It does not exist").check()
    row.get_by_label("How you know").fill("not on the property's page")
    row.get_by_role("button", name="Record").click()
    expect(page.get_by_role("status")).to_contain_text("it is sent again.")
    assert figures(page)[0] == f"{UNCERTAIN - 2}"
    page.locator("#settled + details summary").click()
    expect(page.get_by_text("says jo at").first).to_be_visible()


class Proxy(BaseHTTPRequestHandler):
    """Passes requests below ``SUB_PATH`` on, with their path, as Airflow's documentation says."""

    target = ""

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        if not self.path.startswith(SUB_PATH):
            self.send_error(404)
            return
        length = int(self.headers.get("content-length", 0))
        headers = {**self.headers, "Host": self.target}
        inner = HTTPConnection(self.target, timeout=60)
        inner.request(self.command, self.path, self.rfile.read(length), headers)
        response = inner.getresponse()
        body = response.read()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        inner.close()

    def log_message(self, *_: Any) -> None:
        pass


def test_behind_a_proxy_under_a_sub_path_login_links_and_buttons_lead_there(
    tmp_path: Path, browser: Browser
) -> None:
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    Thread(target=proxy.serve_forever, daemon=True).start()
    base_url = f"http://127.0.0.1:{proxy.server_port}{SUB_PATH}"
    env = {**environment_of(tmp_path), "AIRFLOW__API__BASE_URL": base_url}
    try:
        with serving(tmp_path, env) as airflow, browser.new_context() as context:
            Proxy.target = urlsplit(airflow.base_url).netloc
            context.set_default_timeout(TIMEOUT_MS)
            page = context.new_page()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"{base_url}/fsm-page/?conn_id=fsm_york")
            page.get_by_label("Username").fill("jo")
            page.get_by_label("Password").fill("jo")
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_text("connection fsm_york")).to_be_visible()
            page.get_by_text("Record what became of it").first.click()
            page.get_by_role("radio", name="It exists").first.check()
            page.get_by_label("Its id").first.fill("1001")
            page.get_by_label("How you know").first.fill("found in the planner")
            page.get_by_role("button", name="Record").first.click()
            expect(page.get_by_role("status")).to_contain_text("it returns 1001")
            link = page.get_by_role("status").get_by_role("link")
            assert link.evaluate("link => link.href").startswith(f"{base_url}/dags/")
            assert [url for url in asked if not url.startswith(base_url)] == []
    finally:
        proxy.shutdown()
        proxy.server_close()
