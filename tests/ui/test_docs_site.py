"""The switcher between the versions of the pages: of two small sites, built as ``make site`` builds them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.pages import DOCS
from tests.site import build, write_root
from tests.ui.conftest import web_server

PAGES = {"dev": ("jobs", "new"), "0.1.0": ("jobs",)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for version, names in PAGES.items():
        pages = tmp_path_factory.mktemp("pages")
        (pages / "guide").mkdir()
        contents = "\n".join(f"guide/{name}" for name in names)
        (pages / "index.md").write_text(f"# Start of {version}\n\n```{{toctree}}\n{contents}\n```\n")
        for name in names:
            (pages / "guide" / f"{name}.md").write_text(f"# {name} of {version}\n\n## Details\n\nText.\n")
        build(DOCS, folder / version, pages)
    write_root(folder, list(PAGES), start="0.1.0")
    return folder


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page()
    yield opened
    opened.close()


def switcher(page: Page) -> Locator:
    return page.get_by_label("Version")


def test_a_page_that_both_versions_have_is_kept(page: Page, site: Path) -> None:
    with web_server(site) as url:
        page.goto(f"{url}/dev/guide/jobs.html#details")
        expect(switcher(page)).to_have_value("dev")
        expect(switcher(page).get_by_role("option")).to_have_text(list(PAGES))

        switcher(page).select_option("0.1.0")

        expect(page.get_by_role("heading", name="jobs of 0.1.0")).to_be_visible()
        assert page.url == f"{url}/0.1.0/guide/jobs.html#details"
        expect(switcher(page)).to_have_value("0.1.0")


def test_a_page_that_the_other_version_does_not_have_leads_to_its_start(page: Page, site: Path) -> None:
    with web_server(site) as url:
        page.goto(f"{url}/dev/guide/new.html")

        switcher(page).select_option("0.1.0")

        expect(page.get_by_role("heading", name="Start of 0.1.0")).to_be_visible()


def test_the_root_leads_to_the_newest_release(page: Page, site: Path) -> None:
    with web_server(site) as url:
        page.goto(url)

        expect(page.get_by_role("heading", name="Start of 0.1.0")).to_be_visible()


def test_a_single_version_has_no_switcher(page: Page, site: Path) -> None:
    with web_server(site / "dev") as url:
        for start in (url, (site / "dev").as_uri()):
            page.goto(f"{start}/guide/jobs.html", wait_until="networkidle")

            expect(switcher(page)).to_be_hidden()
