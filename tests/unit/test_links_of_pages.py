"""What ``make docs`` finds of broken links."""

import pytest

from tests.links import broken_below


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
