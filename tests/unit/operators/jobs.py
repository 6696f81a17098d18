"""Attempts to create many jobs."""

from typing import Any

from fsm_provider.operators.jobs import FsmCreateJobsOperator
from tests.unit.state_store import DatabaseStore, MemoryStateStore, context_for


def request(number: Any, **more: Any) -> dict[str, Any]:
    return {"property_id": number, "job": {"customerReference": f"PM-{number}"}, **more}


def create(jobs: Any, **options: Any) -> FsmCreateJobsOperator:
    return FsmCreateJobsOperator(task_id="create", jobs=jobs, **options)


def attempt_of(
    store: MemoryStateStore | DatabaseStore, operator: FsmCreateJobsOperator, **attempt: Any
) -> tuple[Any, BaseException | None]:
    """Return the outcomes with which the task ends, or None, and its error, if any."""
    context = context_for(store, **attempt)
    try:
        return operator.execute(context), None
    except BaseException as error:  # noqa: BLE001 - a kill, too
        return context["ti"].pushed.get("return_value"), error


def statuses(outcomes: Any) -> list[str]:
    return [outcome["outcome"] for outcome in outcomes]
