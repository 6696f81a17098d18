"""A report's page: what it says. What a browser makes of it is in tests/ui/test_reports.py."""

import re
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath
from report_page import report_url

from tests.reports import PAGE


def test_names_are_text():
    html = PAGE.render()

    assert "<script" not in html
    assert "<img" not in html
    assert html.count("&lt;script&gt;") == 2
    assert "<title>Fields &amp; values</title>" in html


def test_a_page_asks_for_nothing_and_says_what_it_is():
    html = PAGE.render()

    assert '<html lang="en">' in html
    assert re.findall(r'<[^>]*?(?:href|src)="([^"]+)|(url\()', html) == [("data:,", "")]
    assert "default-src 'none'" in html


def test_each_bar_says_its_numbers():
    numbers = re.findall(r'class="numbers">(.*?)</span>', PAGE.render())

    assert numbers == [
        "1 similar, 2 unused, 3 missing, 4 valid, 10 others",
        "5 similar",
        "0",
        "7 others",
    ]
    assert "<strong>1,234</strong> good" in PAGE.render()


def test_it_is_stored_as_a_page(storage):
    storage.mkdir(parents=True, exist_ok=True)
    file = storage / "2026-03-01.html"

    PAGE.write(file)

    assert file.read_text(encoding="utf-8") == PAGE.render()
    if file.protocol == "s3":
        assert file.fs.info(file.path)["ContentType"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "served_at", "url"),
    [
        (
            "/reports/my fields/2026-03-01.html",
            "",
            f"{Path('/').as_uri()}reports/my%20fields/2026-03-01.html",
        ),
        ("memory://reports/2026-03-01.html", "", "memory:///reports/2026-03-01.html"),
        ("/reports/2026-03-01.html", "https://x.example.com/r/", "https://x.example.com/r/2026-03-01.html"),
        ("memory://reports/a b.html", "https://x.example.com", "https://x.example.com/a%20b.html"),
    ],
)
def test_the_link_leads_to_the_file_or_to_where_its_folder_is_served(path, served_at, url):
    assert report_url(ObjectStoragePath(path), served_at) == url


def test_a_path_on_s3_is_named_without_its_connection_and_unsigned(s3):
    assert report_url(ObjectStoragePath("s3://aws@records/r/a.html"), "") == "s3://records/r/a.html"
