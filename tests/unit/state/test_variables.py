"""Variables, which Airflow reports as absent also when it cannot read them."""

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.state import variables
from fsm_provider.state.variables import (
    WITNESS,
    VariableUnreadableError,
    read_stored_variable,
    read_variable,
)
from tests.capabilities import VARIABLE_KEYS
from tests.unit.supervisor import comms, supervised


@pytest.fixture
def supervisor():
    with supervised() as running:
        yield running


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


class TestBeforeNamesCanBeListed:
    """Airflow 3.0 to 3.2."""

    @pytest.fixture(autouse=True)
    def nothing_is_listed(self, monkeypatch):
        monkeypatch.setattr(variables, "variable_keys", lambda prefix: None)
        monkeypatch.setattr("time.sleep", lambda seconds: None)

    def test_an_absent_variable_costs_a_write_each_time(self, supervisor):
        assert read_variable("mine") is None
        first = supervisor.variables[WITNESS]
        assert read_variable("mine") is None
        assert supervisor.variables[WITNESS] != first

    def test_the_ledger_reads_without_a_write(self, supervisor):
        supervisor.variables[WITNESS] = "1"

        assert read_stored_variable("mine") is None
        assert supervisor.variables == {WITNESS: "1"}

    def test_a_variable_that_was_hidden_for_a_moment_is_returned(self, supervisor):
        supervisor.variables["mine"] = "1"
        supervisor.hiding = 2

        assert read_variable("mine") == "1"

    def test_a_witness_from_a_cache_proves_nothing(self, supervisor, monkeypatch):
        """Reads come from a cache, or a replica, that has the witness and not what was written since."""
        supervisor.variables["mine"] = "1"
        stale = {WITNESS: "an earlier value"}
        monkeypatch.setattr(variables, "_get_stored", lambda key: stale.get(key) if key != "mine" else None)
        supervisor.hiding = 1

        with pytest.raises(VariableUnreadableError, match="Variable mine could not be read, nor could"):
            read_variable("mine")

    def test_every_second_request_reaches_a_server_that_finds_nothing(self, supervisor):
        supervisor.variables |= {"mine": "1", WITNESS: "1"}
        requests = []

        def before(message):
            if isinstance(message, (comms.GetVariable, comms.PutVariable)):
                requests.append(message)
                supervisor.hiding = len(requests) % 2

        supervisor.before = before

        with pytest.raises(VariableUnreadableError):
            read_variable("mine")

    def test_another_task_that_writes_the_witness_at_the_same_time_is_no_error(self, supervisor):
        others = iter("ab")

        def before(message):
            if isinstance(message, comms.GetVariable) and message.key == WITNESS:
                supervisor.variables[WITNESS] = next(others, supervisor.variables[WITNESS])

        supervisor.before = before

        assert read_variable("mine") is None

    def test_a_database_that_stays_away_is_an_error(self, supervisor):
        supervisor.variables["mine"] = "1"
        supervisor.hiding = 100
        supervisor.refuse(comms.PutVariable)

        with pytest.raises(Exception, match="API_SERVER_ERROR"):
            read_variable("mine")
