"""The supervisor of a running task, as far as Airflow Variables go: Airflow's own SDK talks to it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.capabilities import TASK_SDK

TASK_SDK.require()

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType  # noqa: E402
from airflow.sdk.execution_time import comms, task_runner  # noqa: E402


class MemorySupervisor:
    """Keeps Variables in a dictionary; what a test hooks in is called before each message is handled."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.masked: list[Any] = []
        self.before: Callable[[Any], None] = lambda message: None
        self._lock = threading.Lock()

    def send(self, message: Any) -> Any:
        self.before(message)
        with self._lock:
            match message:
                case comms.GetVariable(key=key):
                    if key not in self.variables:
                        return comms.ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND)
                    return comms.VariableResult(key=key, value=self.variables[key])
                case comms.PutVariable(key=key, value=value):
                    self.variables[key] = value
                case comms.DeleteVariable(key=key):
                    self.variables.pop(key, None)
                case comms.GetVariableKeys(prefix=prefix):
                    keys = sorted(key for key in self.variables if key.startswith(prefix))
                    return comms.VariableKeysResult(keys=keys, total_entries=len(keys))
                case comms.MaskSecret(value=value):
                    self.masked.append(value)
                case _:
                    return comms.ErrorResponse(error=ErrorType.GENERIC_ERROR)
        return comms.OKResponse(ok=True)

    def refuse(self, *kinds: type) -> None:
        """Fail from now on whatever is of these kinds, as when the API server is away."""

        def before(message: Any) -> None:
            if isinstance(message, kinds):
                raise AirflowRuntimeError(comms.ErrorResponse(error=ErrorType.API_SERVER_ERROR))

        self.before = before


@contextmanager
def supervised() -> Iterator[MemorySupervisor]:
    """Run the body as a task runs."""
    supervisor = MemorySupervisor()
    task_runner.SUPERVISOR_COMMS = supervisor
    try:
        yield supervisor
    finally:
        del task_runner.SUPERVISOR_COMMS
