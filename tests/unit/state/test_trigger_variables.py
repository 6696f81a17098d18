"""Variables that a trigger reads and writes, through a supervisor whose responses come in order."""

import asyncio
from collections import deque

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.state.trigger_variables import delete_variable, read_variable, write_variable
from fsm_provider.state.variables import WITNESS, WRITE_ATTEMPTS
from tests.unit.clocks import run_hurried
from tests.unit.supervisor import AirflowRuntimeError, MemorySupervisor, supervised


class OrderedSupervisor(MemorySupervisor):
    """A sender that is cancelled leaves its response to the next, as in the triggerer before Airflow 3.2."""

    def __init__(self):
        super().__init__()
        self.responses = deque()

    async def asend(self, message):
        self.responses.append(self.send(message))
        await asyncio.sleep(0)
        return self.responses.popleft()


@pytest.fixture
def supervisor():
    with supervised(OrderedSupervisor()) as running:
        yield running


def test_what_is_written_is_read_until_it_is_deleted(supervisor):
    async def run():
        read = [await read_variable("mine")]
        await write_variable("mine", "1")
        read.append(await read_variable("mine"))
        await delete_variable("mine")
        await delete_variable("mine")
        return [*read, await read_variable("mine")]

    assert run_hurried(run()) == [None, "1", None]
    assert supervisor.variables.keys() == {WITNESS}


def test_a_variable_that_seemed_absent_for_a_moment_is_returned(supervisor):
    supervisor.variables |= {"mine": "1", WITNESS: "1"}
    supervisor.hiding = 1

    assert run_hurried(read_variable("mine")) == "1"


def test_where_even_the_witness_is_absent_nothing_is_known(supervisor):
    supervisor.variables["mine"] = "1"
    supervisor.hiding = 100

    with pytest.raises(AirflowException, match="Variable mine could not be read, nor could"):
        run_hurried(read_variable("mine"))


def test_a_read_that_fails_is_an_error(supervisor):
    supervisor.variables["mine"] = "1"
    supervisor.failing = 1

    with pytest.raises(AirflowRuntimeError):
        run_hurried(read_variable("mine"))


@pytest.mark.parametrize("change", [lambda: write_variable("mine", "2"), lambda: delete_variable("mine")])
def test_a_write_that_another_one_made_fail_is_repeated(supervisor, change):
    supervisor.variables["mine"] = "1"
    supervisor.failing = WRITE_ATTEMPTS - 1

    run_hurried(change())

    assert supervisor.variables.get("mine") != "1"


def test_a_write_that_fails_again_and_again_is_an_error(supervisor):
    supervisor.failing = WRITE_ATTEMPTS

    with pytest.raises(AirflowRuntimeError):
        run_hurried(write_variable("mine", "2"))


def test_a_read_that_is_cancelled_leaves_nothing_to_the_next(supervisor):
    supervisor.variables |= {"mine": "1", "another": "2"}

    async def run():
        cancelled = asyncio.create_task(read_variable("mine"))
        while not supervisor.responses:
            await asyncio.sleep(0)
        cancelled.cancel()
        read = await read_variable("another")
        await asyncio.gather(cancelled, return_exceptions=True)
        return read, cancelled.cancelled()

    assert run_hurried(run()) == ("2", True)
