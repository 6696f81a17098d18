"""A link from a task to the report that it wrote. Put this file beside the DAGs that import it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, ObjectStoragePath, XCom
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

from fsm_provider.storage import uri_for


class ReportLink(BaseOperatorLink):
    """The report that the task wrote: ``url`` of its result, as :func:`report_url` returns it."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL; empty if the task wrote no report."""
        result: Any = XCom.get_value(ti_key=ti_key, key="return_value")
        if not isinstance(result, dict):
            return ""
        url = result.get("url")
        return url if isinstance(url, str) else ""


def link_to_report(reported: Any) -> None:
    """Give a task the link; Airflow 2 shows only those of plugins and providers."""
    if AIRFLOW_V_3_0_PLUS:
        reported.operator.operator_extra_links = (ReportLink(),)


def report_url(path: ObjectStoragePath, served_at: str | None) -> str:
    """Return the URL of a report, for people.

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
