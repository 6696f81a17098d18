"""A report's page: what a browser makes of it. What it says is in tests/unit/examples/test_report_page.py."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.reports import PAGE

WIDTHS = """
[...document.querySelectorAll(".bars svg")].map(bar => [...bar.querySelectorAll("rect")].map(
  segment => segment.getBoundingClientRect().width / bar.getBoundingClientRect().width))
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
  const segments = [...document.querySelectorAll("rect")]
  return {
    text: Math.min(...texts.map(e => contrast(channels(getComputedStyle(e).color), behind(e)))),
    segments: Math.min(...segments.map(e => contrast(channels(getComputedStyle(e).fill), behind(e)))),
    background: channels(getComputedStyle(document.body).backgroundColor),
  }
})()
"""


Show = Callable[..., Page]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Open HTML from a file, as who downloads a report does; without an Airflow."""
    with ExitStack() as windows:

        def open_window(html: str, *, width: int = 1100, dark: bool = False) -> Page:
            file = tmp_path / "page.html"
            file.write_text(html, encoding="utf-8")
            context = browser.new_context(
                viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
            )
            windows.callback(context.close)
            shown = context.new_page()
            shown.goto(file.as_uri(), wait_until="networkidle")
            return shown

        yield open_window


@pytest.mark.parametrize("width", [375, 1100])
def test_the_bars_are_as_long_as_the_numbers(show: Show, width: int) -> None:
    assert show(PAGE.render(), width=width).evaluate(WIDTHS) == [
        pytest.approx([number / 20 for number in (1, 2, 3, 4, 10)], abs=0.005),
        pytest.approx([5 / 20], abs=0.005),
        [],
        pytest.approx([7 / 20], abs=0.005),
    ]


@pytest.mark.parametrize("width", [320, 375, 700, 1100])
def test_nothing_is_wider_than_the_window(show: Show, width: int) -> None:
    script = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"

    wide, window = show(PAGE.render(), width=width).evaluate(script)

    assert wide <= window <= width


@pytest.mark.parametrize("dark", [False, True])
def test_everything_can_be_read_in_light_and_dark(show: Show, dark: bool) -> None:
    measured = show(PAGE.render(), dark=dark).evaluate(CONTRAST)

    assert (sum(measured["background"][:3]) < 200) is dark
    assert measured["text"] >= 4.5
    assert measured["segments"] >= 3
