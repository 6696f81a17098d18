"""Links from a task to the report that it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

from fsm_provider.storage.lineage import uri_for

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, ObjectStoragePath, TaskInstanceKey


class FsmReportLink(BaseOperatorLink):
    """The page that the task wrote: ``page`` of its result, as :func:`report_url` returns it."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL; empty if the task wrote no page."""
        result: Any = XCom.get_value(ti_key=ti_key, key="return_value")
        page = result.get("page") if isinstance(result, dict) else None
        return page if isinstance(page, str) else ""


def report_url(path: ObjectStoragePath, served_at: str | None) -> str:
    """Return the URL of a page, for people.

    Without ``served_at`` it is the URI of the file, on disk or in object storage. It is in the task's result;
    Airflow shows no link, as a browser would not open it. It is never a signed URL, which would admit anyone
    who can read the XCom.

    :param path: the file.
    :param served_at: the URL under which the file's folder is served.
    """
    if not served_at:
        return Path(path.path).as_uri() if path.protocol in ("", "file") else uri_for(path)
    return f"{served_at.rstrip('/')}/{quote(path.name)}"
