"""A report's page: what it says. What a browser makes of it is in tests/ui/test_reports.py."""

import re
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath
from report_page import report_url

from tests.reports import PAGE


def test_names_are_text_nothing_is_asked_for_and_each_bar_says_its_numbers():
    html = PAGE.render()

    assert "<script" not in html
    assert "<img" not in html
    assert html.count("&lt;script&gt;") == 2
    assert "<title>Fields &amp; values</title>" in html
    assert re.findall(r'<[^>]*?(?:href|src)="([^"]+)|(url\()', html) == [("data:,", "")]
    assert "default-src 'none'" in html
    numbers = re.findall(r'class="numbers">(.*?)</span>', html)
    assert numbers[0] == "1 similar, 2 unused, 3 missing, 4 valid, 10 others"
    assert numbers[1:] == ["5 similar", "0", "7 others"]
    assert "<strong>1,234</strong> good" in html


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
        ("/reports/my fields/a.html", "", f"{Path('/').as_uri()}reports/my%20fields/a.html"),
        ("memory://reports/a.html", "", "memory:///reports/a.html"),
        # Without its connection, and unsigned.
        ("s3://aws@records/r/a.html", "", "s3://records/r/a.html"),
        ("/reports/a.html", "https://x.example.com/r/", "https://x.example.com/r/a.html"),
        ("memory://reports/a b.html", "https://x.example.com", "https://x.example.com/a%20b.html"),
    ],
)
@pytest.mark.usefixtures("s3")
def test_the_link_leads_to_the_file_or_to_where_its_folder_is_served(path, served_at, url):
    assert report_url(ObjectStoragePath(path), served_at) == url
