"""A report's page: what it says, and what a browser makes of it."""

import re

import pytest

from fsm_provider.reports.page import Chart, Headline, Page, Table
from tests.browser import look_at, why_not

NAME = '<script>document.title = "taken"; alert(1)</script><img src="https://example.com/x.png">'
LONG = "Worcester Bosch " * 9 + "-".join(["Worcester"] * 9)
PAGE = Page(
    title="Fields & values",
    about="As of today.",
    headlines=[
        Headline(number, tone, tone)
        for number, tone in enumerate(("good", "notice", "bad", "unknown", "plain"), 1234)
    ],
    chart=Chart(
        title="Values",
        series={
            "similar": "notice",
            "unused": "unknown",
            "missing": "bad",
            "valid": "good",
            "others": "plain",
        },
        bars=[
            ("Make", (1, 2, 3, 4, 10)),
            (NAME, (5, 0, 0, 0, 0)),
            ("Empty", (0, 0, 0, 0, 0)),
            (LONG, (0, 0, 0, 0, 7)),
        ],
    ),
    tables=[
        Table(
            title="Findings",
            columns=("What", "Where", "When"),
            rows=[["similar", NAME, "2026-03-01"], ["missing", LONG, None], [LONG, 7, ""]],
            none="None.",
            tones={"similar": "notice", LONG: "bad"},
        ),
        Table(title="Changes", columns=("What",), rows=[], none="Nothing has changed."),
    ],
    notes=["A note."],
)

WIDTHS = """
[...document.querySelectorAll(".bars svg")].map(bar => [...bar.querySelectorAll("rect")].map(
  piece => piece.getBoundingClientRect().width / bar.getBoundingClientRect().width))
"""
CONTRAST = """
(() => {
  const channels = text => text.match(/[0-9.]+/g).map(Number)
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
  const behind = element => {
    const colour = channels(getComputedStyle(element).backgroundColor)
    return colour[3] === 0 ? behind(element.parentElement) : colour
  }
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b)
    return (high + 0.05) / (low + 0.05)
  }
  const texts = [...document.querySelectorAll("main *")]
    .filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
  const pieces = [...document.querySelectorAll("rect")]
  return {
    text: Math.min(...texts.map(e => contrast(channels(getComputedStyle(e).color), behind(e)))),
    pieces: Math.min(...pieces.map(e => contrast(channels(getComputedStyle(e).fill), behind(e)))),
    background: channels(getComputedStyle(document.body).backgroundColor),
  }
})()
"""


@pytest.fixture(scope="module")
def browser():
    if reason := why_not():
        pytest.skip(f"the browser of PySide6-WebEngine cannot be started: {reason}")


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGE.render(), encoding="utf-8")
    return file


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


def test_a_table_without_rows_says_so():
    assert "<p>Nothing has changed.</p>" in PAGE.render()
    assert PAGE.render().count("<table") == 1


def test_each_bar_says_its_numbers():
    numbers = re.findall(r'class="numbers">(.*?)</span>', PAGE.render())

    assert numbers == [
        "1 similar, 2 unused, 3 missing, 4 valid, 10 others",
        "5 similar",
        "0",
        "7 others",
    ]
    assert "<strong>1,234</strong> good" in PAGE.render()


def test_a_chart_of_nothing_has_no_bar():
    chart = Chart(title="Values", series={"similar": "bad"}, bars=[("Make", (0,))])

    assert list(chart.segments()) == [("Make", [])]


def test_a_bar_with_a_number_too_few_is_refused():
    chart = Chart(title="Values", series={"similar": "bad", "others": "plain"}, bars=[("Make", (1,))])

    with pytest.raises(ValueError, match="shorter"):
        list(chart.segments())


def test_it_is_stored_as_a_page(storage):
    storage.mkdir(parents=True, exist_ok=True)
    file = storage / "2026-03-01.html"

    PAGE.write(file)

    assert file.read_text(encoding="utf-8") == PAGE.render()
    if file.protocol == "s3":
        assert file.fs.info(file.path)["ContentType"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("width", [375, 1100])
def test_in_a_browser_the_bars_are_as_long_as_the_numbers(browser, path, width):
    seen = look_at(path, path.with_suffix(".png"), width=width, script=WIDTHS)

    assert seen.result == [
        pytest.approx([number / 20 for number in (1, 2, 3, 4, 10)], abs=0.005),
        pytest.approx([5 / 20], abs=0.005),
        [],
        pytest.approx([7 / 20], abs=0.005),
    ]
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [320, 375, 700, 1100])
def test_in_a_browser_nothing_is_wider_than_the_window(browser, path, width):
    script = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"

    wide, window = look_at(path, path.with_suffix(".png"), width=width, script=script).result

    assert wide <= window <= width


@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser_everything_can_be_read_in_light_and_dark(browser, path, dark):
    seen = look_at(path, path.with_suffix(".png"), width=1100, dark=dark, script=CONTRAST)

    assert (sum(seen.result["background"][:3]) < 200) is dark
    assert seen.result["text"] >= 4.5
    assert seen.result["pieces"] >= 3


def test_in_a_browser_no_script_runs_and_nothing_is_asked_for(browser, path):
    seen = look_at(path, path.with_suffix(".png"), width=1100, script="document.title")

    assert seen.result == "Fields & values"
    assert seen.console == []
    assert seen.requests == [path.as_uri()]


def test_the_browser_sees_requests_and_the_console(browser, tmp_path):
    """Or the test above would prove nothing."""
    page = tmp_path / "page.html"
    page.write_text('<script>console.error("a mistake")</script><img src="http://127.0.0.1:9/x.png">')

    seen = look_at(page, tmp_path / "page.png", width=375)

    assert seen.console == ["a mistake"]
    assert seen.requests == [page.as_uri(), "http://127.0.0.1:9/x.png"]
