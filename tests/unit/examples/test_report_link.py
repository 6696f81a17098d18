"""The link from a task to its report."""

from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath
from report_link import report_url


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
