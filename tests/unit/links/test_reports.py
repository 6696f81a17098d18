"""The link of a task that writes a report."""

from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath

from fsm_provider.links.reports import report_url

ROOT = Path("/").as_uri()


@pytest.mark.parametrize(
    ("path", "served_at", "url"),
    [
        ("/reports/my fields/2026-03-01.html", "", f"{ROOT}reports/my%20fields/2026-03-01.html"),
        ("memory://reports/2026-03-01.html", "", "memory:///reports/2026-03-01.html"),
        ("/reports/2026-03-01.html", "https://x.example.com/r/", "https://x.example.com/r/2026-03-01.html"),
        ("memory://reports/a b.html", "https://x.example.com", "https://x.example.com/a%20b.html"),
    ],
)
def test_it_leads_to_the_file_or_to_where_its_folder_is_served(path, served_at, url):
    assert report_url(ObjectStoragePath(path), served_at) == url


def test_a_path_on_s3_is_named_without_its_connection_and_unsigned(s3):
    assert report_url(ObjectStoragePath("s3://aws@records/r/a.html"), "") == "s3://records/r/a.html"
