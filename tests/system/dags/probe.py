"""What test_local_airflow.py needs of a DAG, without the provider."""

from datetime import timedelta

from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import dag, get_current_context, task


@dag(schedule=None)
def probe():
    """Echo the conf, then fail where the conf asks for it."""

    @task
    def echo():
        return get_current_context()["dag_run"].conf

    @task
    def fail_if_asked(conf):
        print("looking at", conf)
        if conf.get("fail"):
            raise ValueError("as asked")

    fail_if_asked(echo())


@dag(schedule=None)
def probe_waiting():
    """Wait longer than any test does."""
    TimeDeltaSensor(task_id="wait", delta=timedelta(hours=1), deferrable=True)


probe()
probe_waiting()
