"""The supervisor of a task or a triggerer, to which Airflow's own SDK talks.

It answers on Variables and on assets' state.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.capabilities import SHARED_STREAMS, TASK_SDK

TASK_SDK.require()

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType  # noqa: E402
from airflow.sdk.execution_time import comms, task_runner  # noqa: E402


class MemorySupervisor:
    """Keeps Variables and the state of assets in dictionaries.

    :ivar before: what a test hooks in, called before each message is handled.
    :ivar asset_state: what is stored, by the asset's name and the key.
    :ivar is_active: whether there are such assets.
    :ivar failing: so many messages fail from now on, as when the API server is away.
    :ivar hiding: so many Variables seem absent from now on, as when the database is away.
    """

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.masked: list[Any] = []
        self.asset_state: dict[tuple[str, str], Any] = {}
        self.is_active = True
        self.failing = 0
        self.hiding = 0
        self.before: Callable[[Any], None] = lambda message: None
        self._lock = threading.Lock()

    async def asend(self, message: Any) -> Any:
        """Answer a triggerer."""
        return self.send(message)

    def send(self, message: Any) -> Any:
        """Answer a task."""
        self.before(message)
        with self._lock:
            if self.failing:
                self.failing -= 1
                raise unreachable()
            match message:
                case comms.GetVariable(key=key):
                    return self._answer_on_variable(key)
                case comms.PutVariable(key=key, value=value):
                    self.variables[key] = value
                case comms.DeleteVariable(key=key):
                    self.variables.pop(key, None)
                case comms.MaskSecret(value=value):
                    self.masked.append(value)
                case comms.GetVariableKeys(prefix=prefix):
                    keys = sorted(key for key in self.variables if key.startswith(prefix))
                    return comms.VariableKeysResult(keys=keys, total_entries=len(keys))
                case _ if SHARED_STREAMS.is_there:
                    return self._answer_on_assets(message)
                case _:
                    return comms.ErrorResponse(error=ErrorType.GENERIC_ERROR)
        return comms.OKResponse(ok=True)

    def _answer_on_variable(self, key: str) -> Any:
        is_hidden = self.hiding > 0
        if is_hidden:
            self.hiding -= 1
        if is_hidden or key not in self.variables:
            return comms.ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND)
        return comms.VariableResult(key=key, value=self.variables[key])

    def _answer_on_assets(self, message: Any) -> Any:
        match message:
            case comms.GetAssetStateStoreByName(name=name, key=key):
                if not self.is_active or (name, key) not in self.asset_state:
                    return comms.ErrorResponse(error=ErrorType.ASSET_STORE_NOT_FOUND)
                return comms.AssetStateStoreResult(value=self.asset_state[name, key])
            case comms.SetAssetStateStoreByName(name=name, key=key, value=value) if self.is_active:
                self.asset_state[name, key] = value
            case comms.DeleteAssetStateStoreByName(name=name, key=key) if self.is_active:
                self.asset_state.pop((name, key), None)
            case comms.SetAssetStateStoreByName() | comms.DeleteAssetStateStoreByName():
                raise unreachable()
            case _:
                return comms.ErrorResponse(error=ErrorType.GENERIC_ERROR)
        return None

    def refuse(self, *kinds: type) -> None:
        """Fail from now on whatever is of these kinds, as when the API server is away."""

        def before(message: Any) -> None:
            if isinstance(message, kinds):
                raise unreachable()

        self.before = before


def unreachable() -> AirflowRuntimeError:
    """Make the error of an API server that cannot be reached."""
    return AirflowRuntimeError(comms.ErrorResponse(error=ErrorType.API_SERVER_ERROR))


@contextmanager
def supervised(supervisor: MemorySupervisor | None = None) -> Iterator[MemorySupervisor]:
    """Run the body as a task or a triggerer runs."""
    if supervisor is None:
        supervisor = MemorySupervisor()
    task_runner.SUPERVISOR_COMMS = supervisor
    try:
        yield supervisor
    finally:
        del task_runner.SUPERVISOR_COMMS
