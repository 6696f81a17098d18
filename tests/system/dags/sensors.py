"""The form sensor in each of its modes."""

from airflow.providers.common.compat.sdk import dag

from fsm_provider.sensors.forms import FsmFormSensor

MODES = {
    "poke": {"mode": "poke"},
    # Airflow fails a task that comes back before the scheduler has noted that it left ("state attribute
    # is queued"); on a busy machine that takes seconds.
    "reschedule": {"mode": "reschedule", "poke_interval": 15},
    "deferrable": {"deferrable": True},
}
NO_JOB = 1


def waits(mode, arguments):
    @dag(dag_id=f"sensor_waits_{mode}", schedule=None, params={"job_id": NO_JOB})
    def sensors():
        FsmFormSensor(task_id="wait", job_id="{{ params.job_id }}", **{"poke_interval": 1, **arguments})

    return sensors()


for mode, arguments in MODES.items():
    globals()[f"sensor_waits_{mode}"] = waits(mode, arguments)
