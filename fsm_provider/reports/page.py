"""A report as one self-contained HTML page, for screen, phone and print: no script, no request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

Tone = Literal["good", "notice", "bad", "unknown", "plain"]
"""Colour of a number; its label says the same in words."""


@dataclass(frozen=True)
class Headline:
    """A number at the top of the page."""

    number: int
    label: str
    tone: Tone = "plain"


class Segment(NamedTuple):
    """A segment of a bar; ``start`` and ``width`` are per cent of the longest bar."""

    label: str
    tone: Tone
    number: int
    start: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Bars of numbers.

    :param title: what the chart shows.
    :param series: names of the segments of a bar, and their tones.
    :param bars: label of each bar and its numbers, one for each series.
    """

    title: str
    series: Mapping[str, Tone]
    bars: Sequence[tuple[str, Sequence[int]]]

    def segments(self) -> Iterator[tuple[str, list[Segment]]]:
        """Yield each bar's label and segments, without those of zero."""
        longest = max((sum(numbers) for _, numbers in self.bars), default=0) or 1
        for label, numbers in self.bars:
            segments, start = [], 0.0
            for (name, tone), number in zip(self.series.items(), numbers, strict=True):
                width = 100 * number / longest
                if number:
                    segments.append(Segment(name, tone, number, start, width))
                start += width
            yield label, segments


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text; None is an empty cell.

    :param title: what the table shows.
    :param none: text shown when there are no rows.
    :param tones: tones of the cells in the first column, by their text.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    none: str
    tones: Mapping[str, Tone] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a report, from top to bottom."""

    title: str
    about: str
    headlines: Sequence[Headline]
    chart: Chart
    tables: Sequence[Table]
    notes: Sequence[str] = ()

    def render(self) -> str:
        """Return the HTML. Every text is escaped: names come from users."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        environment = Environment(
            loader=PackageLoader("fsm_provider.reports", "."),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return environment.get_template("page.html.jinja").render(page=self)

    def write(self, path: ObjectStoragePath) -> None:
        """Write the page; on S3 as ``text/html``, or a browser would save the file instead of showing it."""
        content_type = {"ContentType": "text/html; charset=utf-8"} if path.protocol in ("s3", "s3a") else {}
        with path.open("wb", **content_type) as file:
            file.write(self.render().encode())
