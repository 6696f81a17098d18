"""Variables, which Airflow reports as absent also when it cannot read them."""

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.state.variables import read_variable
from tests.capabilities import VARIABLE_KEYS
from tests.unit.supervisor import comms


@VARIABLE_KEYS.needed
def test_a_variable_that_another_task_writes_meanwhile_is_returned(supervisor):
    def written_before_the_listing(message):
        if isinstance(message, comms.GetVariableKeys):
            supervisor.variables["mine"] = "1"

    supervisor.before = written_before_the_listing

    assert read_variable("mine") == "1"


@VARIABLE_KEYS.needed
def test_a_variable_that_is_listed_and_cannot_be_read_is_an_error(supervisor):
    supervisor.variables["mine"] = "1"
    supervisor.refuse(comms.GetVariable)

    with pytest.raises(AirflowException, match="Variable mine exists, but could not be read"):
        read_variable("mine")


def test_an_absent_variable_is_none(supervisor):
    supervisor.variables["mine too"] = "1"

    assert read_variable("mine") is None
