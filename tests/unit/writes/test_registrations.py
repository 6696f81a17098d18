"""Tasks that register webhooks at the same time: only one of them enters.

They use Airflow's own SDK against the supervisor of ``tests.unit.supervisor``.
"""

import random
import threading
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.state.task import Task
from fsm_provider.writes.registrations import Registrations
from tests.capabilities import VARIABLE_KEYS
from tests.unit.supervisor import comms


class Steps:
    """Runs functions in threads, one at a time, from one ``wait`` to the next."""

    def __init__(self, rng):
        self._rng = rng
        self._changed = threading.Condition()
        self._turn = None
        self._waiting = set()
        self._done = set()

    def wait(self, _):
        me = threading.current_thread().name
        with self._changed:
            self._waiting.add(me)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._turn == me, 10)
            self._turn = None
            self._waiting.discard(me)

    def run(self, functions):
        errors = []

        def work(function):
            try:
                self.wait(None)
                function()
            except Exception as error:  # noqa: BLE001
                errors.append(error)
            finally:
                with self._changed:
                    self._done.add(threading.current_thread().name)
                    self._changed.notify_all()

        threads = [
            threading.Thread(target=work, args=[function], name=f"step-{number}")
            for number, function in enumerate(functions)
        ]
        names = {thread.name for thread in threads}
        for thread in threads:
            thread.start()
        while True:
            with self._changed:
                assert self._changed.wait_for(
                    lambda: self._turn is None and self._waiting | self._done == names, 10
                )
                if not self._waiting:
                    break
                self._turn = self._rng.choice(sorted(self._waiting))
                self._changed.notify_all()
        for thread in threads:
            thread.join()
        return errors


@VARIABLE_KEYS.needed
@pytest.mark.parametrize("tasks", [2, 3])
def test_two_tasks_never_register_at_once_in_any_order_of_steps(supervisor, tasks):
    """Each message to the supervisor waits for a random turn, over 150 seeds."""
    entered, refused = 0, 0
    for seed in range(150):
        inside, sizes = set(), []
        steps = Steps(random.Random(seed))
        supervisor.before = steps.wait

        def enter(name, inside=inside, sizes=sizes):
            holder = Task("dag", str(name), "task", -1)
            with Registrations("fsm_default", holder, max_wait=0).exclusive():
                inside.add(name)
                sizes.append(len(inside))
                for _ in range(3):
                    supervisor.send(comms.GetVariable(key="anything"))
                inside.remove(name)

        errors = steps.run([partial(enter, name) for name in range(tasks)])

        assert max(sizes, default=0) <= 1, f"seed {seed}"
        assert all(isinstance(error, AirflowException) for error in errors), errors
        assert supervisor.variables == {}, f"seed {seed}"
        entered, refused = entered + len(sizes), refused + len(errors)
    assert entered > 50
    assert refused > 50


@VARIABLE_KEYS.needed
def test_the_error_names_the_claim_of_a_dead_task(supervisor):
    dead = Registrations("fsm_default", Task("dag", "run-9", "task", -1)).exclusive()
    dead.__enter__()

    waiting = Registrations("fsm_default", Task("dag", "run-1", "task", -1), max_wait=0)
    with (
        pytest.raises(AirflowException, match=r"run run-9 of DAG dag is registering.*delete Variable"),
        waiting.exclusive(),
    ):
        pass
    (claim,) = (name for name in supervisor.variables if "claim" in name)
    assert "run-9" in supervisor.variables[claim]
