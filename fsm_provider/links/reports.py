"""Links from a task to the report that it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

from fsm_provider.lineage import uri_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, ObjectStoragePath, TaskInstanceKey


class FsmReportLink(BaseOperatorLink):
    """The page that the task wrote: ``page`` of its result, as :func:`address_of` gives it."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Give the address, empty where the task wrote no page."""
        result: Any = XCom.get_value(ti_key=ti_key, key="return_value")
        page = result.get("page") if isinstance(result, dict) else None
        return page if isinstance(page, str) else ""


def address_of(path: ObjectStoragePath, served_at: str | None) -> str:
    """Give the address of a page for a person.

    Without ``served_at`` it is where the file is, on a disk or in a store: it is in the task's result, and
    Airflow's page has no link, since a browser would open neither. No signed address is made of it: it would
    let anybody in who sees the XCom.

    :param path: the file.
    :param served_at: the web address under which the file's folder is served.
    """
    if not served_at:
        return Path(path.path).as_uri() if path.protocol in ("", "file") else uri_of(path)
    return f"{served_at.rstrip('/')}/{quote(path.name)}"
