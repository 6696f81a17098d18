"""What a user sees, in a real browser: one Chromium; one Airflow and one fake service where a test
asks.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from fsm_provider.testing import Engineer, FakeFieldService
from tests.system.conftest import DAGS, REFUSED_TOKEN, TOKEN
from tests.system.local_airflow import LocalAirflow

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 60_000.0
"""Milliseconds that a busy machine may take for anything."""
WINDOW = {"width": 1280, "height": 800}
EXAMPLES = ("work_order_roundtrip",)

expect.set_options(timeout=TIMEOUT_MS)

Picture = Callable[[Page | Locator, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pictures", type=Path, help="a folder for pictures of what the browser shows"
    )


@pytest.fixture(scope="session", autouse=True)
def browser() -> Iterator[Browser]:
    """The machine's own Chromium, headless; without one nothing is tested, and that is a failure."""
    executable = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if executable is None:
        pytest.exit(
            "these tests need Chromium: install it, e.g. by apt-get install chromium", returncode=1
        )
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=executable, args=FLAGS, chromium_sandbox=os.geteuid() != 0
        )
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def service() -> Iterator[FakeFieldService]:
    """The service behind ``fsm_default``: two pages of forms, and two more for each new job."""
    engineer = Engineer(after=1.0, every=1.0, form_names=("Gas Safety Record", "Job Sign-off"))
    with FakeFieldService(token=TOKEN, engineer=engineer) as running:
        running.seed_forms(150)
        yield running


@pytest.fixture(scope="session")
def dags_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples that are shown; a test may add files of its own."""
    folder = tmp_path_factory.mktemp("dags")
    for name in EXAMPLES:
        (folder / f"{name}.py").symlink_to(DAGS["examples"] / f"{name}.py")
    return folder


@pytest.fixture(scope="session")
def airflow(
    service: FakeFieldService, dags_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalAirflow]:
    """A running Airflow, shared."""
    env = {"AIRFLOW_CONN_FSM_DEFAULT": service.connection_json(), "FSM_POLL_INTERVAL": "1"}
    with LocalAirflow(dags_folder, tmp_path_factory.mktemp("airflow"), env) as running:
        yield running


@pytest.fixture(scope="session")
def windows(
    browser: Browser, airflow: LocalAirflow, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrowserContext]:
    """One user's windows. By the end no URL that was requested, and no response, held a token."""
    traffic = tmp_path_factory.mktemp("traffic") / "traffic.har"
    context = browser.new_context(
        base_url=airflow.base_url,
        viewport=WINDOW,
        color_scheme="light",
        permissions=["clipboard-read", "clipboard-write"],
        record_har_path=traffic,
    )
    context.set_default_timeout(TIMEOUT_MS)
    yield context
    context.close()
    exchanges = json.loads(traffic.read_text())["log"]["entries"]
    seen = [
        (exchange["request"]["url"], json.dumps(exchange["response"])) for exchange in exchanges
    ]
    assert any('\\"total_entries\\"' in response for _, response in seen), (
        "no response was recorded"
    )
    for secret in (TOKEN, REFUSED_TOKEN):
        assert [url for url, response in seen if secret in url + response] == []


@pytest.fixture
def page(windows: BrowserContext) -> Iterator[Page]:
    """A window of its own for each test."""
    opened = windows.new_page()
    yield opened
    opened.close()


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Picture:
    """Take a picture of what is shown, under this name, where ``--pictures`` asks for them."""
    folder = request.config.getoption("--pictures")

    def take(shown: Page | Locator, name: str) -> None:
        if folder:
            shown.screenshot(path=folder / f"{name}.png", animations="disabled")

    return take
