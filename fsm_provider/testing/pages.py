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
    completed = {
        f"Form {form['id']}": f"{form['formName']}, {form['createdOnDateTime']}" for form in forms
    }
    return _page(
        f"Job {job['id']}", _table(job) + "<h2>Forms</h2>" + (_table(completed) or "None yet.")
    )


def jobs_page(jobs: Iterable[Record]) -> str:
    """Return a page of HTML: a link to each job."""
    texts = ((escape(str(job["id"])), escape(str(job["customerReference"]))) for job in jobs)
    links = (
        f'<li><a href="jobs/{job_id}">Job {job_id}</a> {reference}' for job_id, reference in texts
    )
    return _page("Jobs", f"<ul>{''.join(links)}</ul>")


def _page(title: str, body: str) -> str:
    title = escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><p>In a fake of the service.</p>{body}</html>"
    )


def _table(values: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><th>{escape(name)}<td>{escape(value if isinstance(value, str) else json.dumps(value))}"
        for name, value in values.items()
        if value not in ("", [], None)
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""
