"""URLs of jobs, for people."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote


def jobs_url(web_url: str | None) -> str | None:
    """Return the part of ``web_url`` before ``/{id}``, None if there is none or it needs a property."""
    url, slash, _ = (web_url or "").partition("/{id}")
    return url if slash and "{" not in url else None


def job_url(job: Any) -> str | None:
    """Return the ``links.web`` of a job's record, else its ``links.self``; None if that is no http(s) URL."""
    links = job.get("links") if isinstance(job, dict) else None
    url = (links.get("web") or links.get("self")) if isinstance(links, dict) else None
    return url if isinstance(url, str) and url.startswith(("https://", "http://")) else None


def job_page_url(web_url: str, job_id: int, property_id: int | str) -> str:
    """Return the URL of a job's page: ``web_url`` of the settings for this job."""
    url = web_url.replace("{id}", quote(str(job_id), safe=""))
    return url.replace("{propertyID}", quote(str(property_id), safe=""))
