"""Links from a task to the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

from fsm_provider.api.job_urls import job_url

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey


class FsmJobLink(BaseOperatorLink):
    """The job that the task created: ``links.web`` of its result, else ``links.self``."""

    name = "Job"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL; empty if the job has none."""
        job: Any = XCom.get_value(ti_key=ti_key, key="return_value")
        return job_url(job) or ""


class FsmJobsLink(BaseOperatorLink):
    """The service's jobs: ``web_url`` of the connection up to ``/{id}``, as ``jobs_url`` returns it."""

    name = "Jobs"
    key: ClassVar[str] = "jobs_url"
    """The XCom that holds the URL."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL; empty if the connection has no such setting."""
        url: Any = XCom.get_value(ti_key=ti_key, key=self.key)
        return url if isinstance(url, str) else ""
