"""Links from a task to the service, and URLs of jobs for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskInstanceKey


class FsmJobLink(BaseOperatorLink):
    """The job that the task created: ``links.web`` of its result, else ``links.self``."""

    name = "Job"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL; empty if the job has none."""
        if AIRFLOW_V_3_0_PLUS:
            # It asks in the task's process, and logs an error for an XCom that is missing.
            job = operator.made
        else:
            job = XCom.get_value(ti_key=ti_key, key="return_value")
        return job_url(job) or ""


class FsmUncertainLink(BaseOperatorLink):
    """The page *Field service*: what is uncertain of the connection's writes."""

    name = "Uncertain"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the page's URL, relative to Airflow's; empty on Airflow 2."""
        if not AIRFLOW_V_3_0_PLUS:
            return ""
        return f"fsm-page/?{urlencode({'conn_id': operator.fsm_conn_id})}"


def job_url(job: Any) -> str | None:
    """Return the ``links.web`` of a job's record, else its ``links.self``.

    None if that is no http(s) URL.
    """
    links = job.get("links") if isinstance(job, dict) else None
    if not isinstance(links, dict):
        return None
    url = links.get("web") or links.get("self")
    is_http = isinstance(url, str) and url.startswith(("https://", "http://"))
    return url if is_http else None
