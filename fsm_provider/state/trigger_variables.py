"""Airflow Variables for triggers of Airflow 3, read strictly as in ``variables``.

Each message to the triggerer's supervisor is shielded: if it were cancelled midway, the next sender would
get its response. ``Variable.get`` is no way in a trigger: Airflow 3.0 refuses it on the event loop, and 3.1
says there that nothing exists; in a thread, both end the triggerer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fsm_provider.state.variables import (
    WITNESS,
    WITNESS_DESCRIPTION,
    checked_response,
    nothing_readable,
    retried_write,
)


async def read_variable(key: str) -> str | None:
    """Return a Variable; None if it does not exist.

    :raises VariableUnreadableError: if that is unknown.
    :raises Exception: what Airflow raises.
    """
    if (value := await _get(key)) is None:
        await _check_witness(key)
        value = await _get(key)  # which may have been unreadable before the witness was read
    return value


@retried_write
async def write_variable(key: str, value: str, description: str | None = None) -> None:
    """Set a Variable in Airflow's database. It may be set even if the call is cancelled.

    :raises Exception: what Airflow raises, after some attempts.
    """
    from airflow.sdk.execution_time.comms import PutVariable

    await _ask_supervisor(PutVariable(key=key, value=value, description=description))


@retried_write
async def delete_variable(key: str) -> None:
    """Delete a Variable; one that does not exist is no error.

    :raises Exception: what Airflow raises, after some attempts.
    """
    from airflow.sdk.execution_time.comms import DeleteVariable

    await _ask_supervisor(DeleteVariable(key=key))


async def _check_witness(key: str) -> None:
    if await _get(WITNESS) is None:
        await write_variable(WITNESS, "1", WITNESS_DESCRIPTION)
        if await _get(WITNESS) is None:
            raise nothing_readable(key)


async def _get(key: str) -> str | None:
    from airflow.sdk.execution_time.comms import GetVariable, VariableResult

    response = await _ask_supervisor(GetVariable(key=key))
    return response.value if isinstance(response, VariableResult) else None


async def _ask_supervisor(message: Any) -> Any:
    from airflow.sdk.execution_time import task_runner

    asked = asyncio.ensure_future(task_runner.SUPERVISOR_COMMS.asend(message))
    return checked_response(await asyncio.shield(asked))
