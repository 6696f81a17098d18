"""A report as one self-contained HTML page, for screen, phone and print: no script, no request.

Put this file, ``report_page.html.jinja`` and ``report_page.css`` beside the DAGs that import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, ObjectStoragePath, XCom
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from fsm_provider.storage import uri_for

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
        totals = [sum(numbers) for _, numbers in self.bars]
        # 1 rather than 0, so that bars without numbers can be divided by it.
        longest = max([1, *totals])
        for label, numbers in self.bars:
            segments = []
            start = 0.0
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
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return environment.get_template("report_page.html.jinja").render(page=self)

    def write(self, path: ObjectStoragePath) -> None:
        """Write the page to a file."""
        options = {}
        if path.protocol in ("s3", "s3a"):
            # Without it, a browser would save a file of S3 instead of showing it.
            options["ContentType"] = "text/html; charset=utf-8"
        html = self.render()
        with path.open("wb", **options) as file:
            file.write(html.encode())


class ReportLink(BaseOperatorLink):
    """The page that the task wrote: ``page`` of its result, as :func:`report_url` returns it."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL; empty if the task wrote no page."""
        result: Any = XCom.get_value(ti_key=ti_key, key="return_value")
        if not isinstance(result, dict):
            return ""
        page = result.get("page")
        return page if isinstance(page, str) else ""


def link_to_report(reported: Any) -> None:
    """Give a task the link; Airflow 2 shows only those of plugins and providers."""
    if AIRFLOW_V_3_0_PLUS:
        reported.operator.operator_extra_links = (ReportLink(),)


def report_url(path: ObjectStoragePath, served_at: str | None) -> str:
    """Return the URL of a page, for people.

    Without ``served_at`` it is the URI of the file, on disk or in object storage. It is in the
    task's result; Airflow shows no link, as a browser would not open it. It is never a signed URL,
    which would admit anyone who can read the XCom.

    :param path: the file.
    :param served_at: the URL under which the file's folder is served.
    """
    if served_at:
        return f"{served_at.rstrip('/')}/{quote(path.name)}"
    if path.protocol in ("", "file"):
        return Path(path.path).as_uri()
    return uri_for(path)
