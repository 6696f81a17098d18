"""An export as a process of its own runs it."""

import os
from types import SimpleNamespace
from typing import Any

from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator

CONTEXT = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)}


def export(environment: dict[str, str], destination: str, options: dict[str, Any]) -> None:
    """Export the forms of ``fsm_default``."""
    os.environ.update(environment)
    FsmFormsToObjectStorageOperator(task_id="t", destination=destination, **options).execute(CONTEXT)
