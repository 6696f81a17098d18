"""Links from a task to the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey


class FsmJobLink(BaseOperatorLink):
    """The job that the task created: the ``links.self`` of its result (2.2)."""

    name = "Job"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Give the address, empty where the job came without one."""
        job: Any = XCom.get_value(ti_key=ti_key, key="return_value")
        return address_of(job) or ""


def address_of(job: Any) -> str | None:
    """Give the ``links.self`` of a job's record, None where that is no web address."""
    links = job.get("links") if isinstance(job, dict) else None
    address = links.get("self") if isinstance(links, dict) else None
    if isinstance(address, str) and address.startswith(("https://", "http://")):
        return address
    return None
