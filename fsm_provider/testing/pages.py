"""The pages of jobs, for a browser."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from fsm_provider.testing.wire import Record

STYLE = (
    "body{font:15px sans-serif;margin:2em}th{text-align:left;padding-right:2em;vertical-align:top}"
)


def job_page(job: Record, forms: Iterable[Record]) -> str:
    """Return a page of HTML: the filled fields of a job, and the forms completed against it."""
    completed = {}
    for form in forms:
        completed[f"Form {form['id']}"] = f"{form['formName']}, {form['createdOnDateTime']}"
    form_table = _table(completed) or "None yet."
    return _page(f"Job {job['id']}", f"{_table(job)}<h2>Forms</h2>{form_table}")


def jobs_page(jobs: Iterable[Record]) -> str:
    """Return a page of HTML: a link to each job."""
    links = []
    for job in jobs:
        job_id = escape(str(job["id"]))
        reference = escape(str(job["customerReference"]))
        links.append(f'<li><a href="jobs/{job_id}">Job {job_id}</a> {reference}')
    return _page("Jobs", f"<ul>{''.join(links)}</ul>")


def _page(title: str, body: str) -> str:
    title = escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1><p>In a fake of the service.</p>{body}</html>"
    )


def _table(values: Mapping[str, Any]) -> str:
    """Return a row for each value that is filled; without one, no table."""
    rows = []
    for name, value in values.items():
        if value in ("", [], None):
            continue
        text = value
        if not isinstance(value, str):
            text = json.dumps(value)
        rows.append(f"<tr><th>{escape(name)}<td>{escape(text)}")
    if not rows:
        return ""
    return f"<table>{''.join(rows)}</table>"
