"""Links from a task to the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey


class FsmJobLink(BaseOperatorLink):
    """The job that the task created: ``links.self`` of its result."""

    name = "Job"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL; empty if the job has none."""
        from fsm_provider.api.models import job_url

        job: Any = XCom.get_value(ti_key=ti_key, key="return_value")
        return job_url(job) or ""
