"""A report's page that is hard to show: markup and long words for names, each tone, and 0."""

from report_page import Chart, Headline, Page, Table

NAME = '<script>document.title = "taken"; alert(1)</script><img src="https://example.com/x.png">'
LONG = "Worcester Bosch " * 9 + "-".join(["Worcester"] * 9)
PAGE = Page(
    title="Fields & values",
    about="As of today.",
    headlines=[
        Headline(1234, "good", "good"),
        Headline(1235, "notice", "notice"),
        Headline(1236, "bad", "bad"),
        Headline(1237, "unknown", "unknown"),
        Headline(1238, "plain", "plain"),
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
