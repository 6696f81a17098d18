"""The form sensor in each of its modes: one DAG whose sensors end at once, one that waits."""

from datetime import timedelta

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


def ends(mode, arguments):
    @dag(
        dag_id=f"sensor_ends_{mode}",
        schedule=None,
        default_args={
            "retries": 2,
            "retry_delay": timedelta(seconds=1),
            "poke_interval": 1,
            "timeout": 3,
            "job_id": NO_JOB,
            **arguments,
        },
    )
    def sensors():
        FsmFormSensor(task_id="times_out")
        FsmFormSensor(task_id="times_out_softly", soft_fail=True)
        FsmFormSensor(task_id="is_refused", fsm_conn_id="fsm_refused")
        FsmFormSensor(task_id="is_refused_softly", fsm_conn_id="fsm_refused", soft_fail=True)

    return sensors()


def waits(mode, arguments):
    @dag(dag_id=f"sensor_waits_{mode}", schedule=None, params={"job_id": NO_JOB})
    def sensors():
        FsmFormSensor(task_id="wait", job_id="{{ params.job_id }}", **{"poke_interval": 1, **arguments})

    return sensors()


for mode, arguments in MODES.items():
    globals()[f"sensor_ends_{mode}"] = ends(mode, arguments)
    globals()[f"sensor_waits_{mode}"] = waits(mode, arguments)
