"""The operators that write, each with one job, and attempts of theirs."""

from typing import Any

from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.testing import FakeFieldService, faults
from tests.unit.state_store import DatabaseStore, MemoryStateStore, context_for

JOB = {"customerReference": "PO-1"}
HEADER = "Idempotency-Key"


def write_job(**options: Any) -> FsmCreateJobOperator:
    return FsmCreateJobOperator(task_id="task", **{"property_id": 7, "job": JOB, **options})


def write_jobs(
    property_id: Any = 7, job: Any = JOB, key: Any = None, **options: Any
) -> FsmCreateJobsOperator:
    jobs = [{"property_id": property_id, "job": job, "key": key}]
    return FsmCreateJobsOperator(task_id="task", jobs=jobs, **options)


def write_request(property_id: Any = 7, job: Any = JOB, **options: Any) -> FsmRequestOperator:
    path = f"/properties/{property_id}/jobs"
    return FsmRequestOperator(task_id="task", method="POST", path=path, json=job, **options)


def attempt_of(
    write: Any,
    store: MemoryStateStore | DatabaseStore,
    cleared: int = 0,
    run_id: str = "run",
    **options: Any,
) -> Any:
    """Run an attempt; return the id of its job."""
    result = write(**options).execute(context_for(store, cleared=cleared, run_id=run_id))
    return result[0]["jobID"] if write is write_jobs else result["id"]


def lose(service: FakeFieldService, *, handled: bool = True, **when: Any) -> None:
    """Have the response to a job's creation lost."""
    service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=handled), **when)
