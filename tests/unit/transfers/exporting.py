"""An export as a process of its own runs it."""

import os
from typing import Any

from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
from tests.unit.state_store import context_for


def export(environment: dict[str, str], destination: str, options: dict[str, Any]) -> None:
    """Export the forms of ``fsm_default``."""
    os.environ.update(environment)
    FsmFormsToObjectStorageOperator(task_id="t", destination=destination, **options).execute(
        context_for(None)
    )
