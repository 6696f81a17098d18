"""Operators that create jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fsm_provider.links.jobs import FsmJobLink
from fsm_provider.operators.base import FsmBaseOperator, is_known, permanent_errors_fail_the_task

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from fsm_provider.api.drafts import JobCreate


class FsmCreateJobOperator(FsmBaseOperator):
    """Create a job on a property (4.2).

    The draft is checked when the DAG is parsed, but for the fields that hold a template; those are
    checked before anything is sent. A write whose outcome is unknown (a timeout or a reset after
    sending, a 5xx, an answer that cannot be read) fails the task without a retry, and says so: the
    job may exist.

    :param property_id: the property's identifier (templated).
    :param job: the draft, under the service's names or in snake_case (templated): see
        :class:`fsm_provider.api.JobCreate`. Fields that the specification does not show go under
        ``extra_fields``.
    :param fsm_conn_id: the Airflow connection (templated).
    :return: the job under the service's own names (2.2).
    :raises FsmInputError: when the DAG is parsed, naming each bad field of the draft.
    """

    template_fields = ("fsm_conn_id", "property_id", "job")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    operator_extra_links = (FsmJobLink(),)

    def __init__(self, *, property_id: int | str, job: JobCreate | dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.property_id = property_id
        self.job = job
        _check_what_is_known(property_id, job)

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the job."""
        with permanent_errors_fail_the_task():
            job = self.hook.create_job(self.property_id, self.job)
        self.log.info(
            "Created job %s on property %s, customerReference %s",
            job.id,
            self.property_id,
            job.customer_reference,
        )
        return job.as_json()


def _check_what_is_known(property_id: Any, job: Any) -> None:
    from fsm_provider.api.drafts import JobCreate, check
    from fsm_provider.api.endpoints import CREATE_JOB

    if is_known(property_id):
        CREATE_JOB.path_for(propertyID=property_id)
    if isinstance(job, dict):
        job = {name: value for name, value in job.items() if is_known(value)}
    if is_known(job):
        check(JobCreate, job, "job")
