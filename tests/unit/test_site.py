"""What ``make docs`` finds of broken links, and what ``make site`` makes of the tags."""

import pytest

from tests.links import broken_below
from tests.site import tags_by_version


def test_a_link_is_followed_to_its_anchor(tmp_path):
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "jobs.html").write_text('<h1 id="a&amp;b">Jobs</h1><a href="../index.html">up</a>')
    (tmp_path / "index.html").write_text(
        '<a href="guide/jobs.html#a%26b"><img src="picture.png?v=1"></a><a href="#">top</a>'
        '<a href="https://example.com/none">away</a><a href="mailto:nobody@example.com">write</a>'
    )
    (tmp_path / "picture.png").touch()
    (tmp_path / "llms.txt").write_text("- [Jobs](guide/jobs.html): text")

    assert broken_below(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text", "link"),
    [
        ("index.html", '<a href="gone.html">', "gone.html"),
        ("index.html", '<a href="#gone">', "#gone"),
        ("index.html", '<a href="other.html#gone">', "other.html#gone"),
        ("index.html", '<img src="gone.png">', "gone.png"),
        ("index.html", '<a href="../beside.html">', "../beside.html"),
        ("index.html", '<a href="folder/">', "folder/"),
        ("llms.txt", "[text](gone.html)", "gone.html"),
        ("index.md", "[text](other.html#gone)", "other.html#gone"),
        ("index.md", "# A heading\n[text](#heading)", "#heading"),
    ],
)
def test_a_link_that_leads_nowhere_is_broken(tmp_path, name, text, link):
    site = tmp_path / "site"
    (site / "folder").mkdir(parents=True)
    (tmp_path / "beside.html").touch()
    (site / "other.html").write_text('<h1 id="here">')
    (site / name).write_text(text)

    assert broken_below(site / name if name.endswith(".md") else site) == [f"{name}: {link}"]


def test_releases_are_the_tags_that_are_versions_the_newest_first():
    tags = tags_by_version(["0.9.0", "nightly", "v0.10.0", "v0.10.0rc1", "before-1.0", "v2"])

    assert list(tags.items()) == [("0.10.0", "v0.10.0"), ("0.10.0rc1", "v0.10.0rc1"), ("0.9.0", "0.9.0")]
