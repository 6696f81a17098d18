"""What a user sees, in a real browser: one Chromium, one Airflow and one fake service."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from fsm_provider.testing import Engineer, FakeFieldService
from tests.system.examples import EXAMPLES
from tests.system.local_airflow import LocalAirflow
from tests.system.tokens import REFUSED_TOKEN, TOKEN
from tests.ui.browser import TIMEOUT_MS, Picture

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WINDOW = {"width": 1280, "height": 800}
SHOWN = ("work_order_roundtrip",)
"""The examples that are shown."""

expect.set_options(timeout=TIMEOUT_MS)


def pytest_addoption(parser: pytest.Parser) -> None:
    purpose = "a folder for pictures of what the browser shows"
    parser.addoption("--pictures", type=Path, help=purpose)


@pytest.fixture(scope="session", autouse=True)
def browser() -> Iterator[Browser]:
    """The machine's own Chromium, headless; that there is none is a failure."""
    executable = find_chromium()
    is_root = os.geteuid() == 0
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=executable,
            args=FLAGS,
            chromium_sandbox=not is_root,
        )
        yield launched
        launched.close()


def find_chromium() -> str:
    for name in CHROMIUMS:
        executable = shutil.which(name)
        if executable:
            return executable
    text = "these tests need Chromium: install it, e.g. by apt-get install chromium"
    pytest.exit(text, returncode=1)


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
    for name in SHOWN:
        (folder / f"{name}.py").symlink_to(EXAMPLES / f"{name}.py")
    return folder


@pytest.fixture(scope="session")
def airflow(
    service: FakeFieldService,
    dags_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalAirflow]:
    """A running Airflow, shared."""
    env = {
        "AIRFLOW_CONN_FSM_DEFAULT": service.connection_json(),
        "FSM_POLL_INTERVAL": "1",
    }
    with LocalAirflow(dags_folder, tmp_path_factory.mktemp("airflow"), env) as running:
        yield running


@pytest.fixture(scope="session")
def windows(
    browser: Browser,
    airflow: LocalAirflow,
    tmp_path_factory: pytest.TempPathFactory,
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
    check_recorded(traffic)


def check_recorded(traffic: Path) -> None:
    """Check that responses were recorded, and that neither URLs nor responses hold a token."""
    are_recorded = False
    for exchange in json.loads(traffic.read_text())["log"]["entries"]:
        url = exchange["request"]["url"]
        response = json.dumps(exchange["response"])
        if '\\"total_entries\\"' in response:
            are_recorded = True
        for secret in (TOKEN, REFUSED_TOKEN):
            assert secret not in url + response, url
    assert are_recorded, "no response was recorded"


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
