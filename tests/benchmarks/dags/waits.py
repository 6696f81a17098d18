"""Sensors that wait for the form of one job each, as many as a run's conf says."""

from datetime import timedelta

from airflow.providers.common.compat.sdk import dag, task
from airflow.providers.http.sensors.http import HttpSensor

from fsm_provider.sensors.forms import FsmFormSensor

WITH_RETRIES = {"retries": 3, "retry_delay": timedelta(seconds=1)}


def has_form(response):
    return bool(response.json()["data"])


@task
def jobs(**context):
    conf = context["dag_run"].conf
    first = conf.get("first_job", 1)
    return list(range(first, first + conf["sensors"]))


@task
def queries(**context):
    return [{"jobID": str(job)} for job in range(1, context["dag_run"].conf["sensors"] + 1)]


@dag(schedule=None, default_args=WITH_RETRIES)
def form_sensor():
    FsmFormSensor.partial(
        task_id="wait", fsm_conn_id="form_sensor", poke_interval=1, deferrable=True, timeout=900
    ).expand(job_id=jobs())


@dag(schedule=None, default_args=WITH_RETRIES)
def http_sensor():
    HttpSensor.partial(
        task_id="wait",
        http_conn_id="http_sensor",
        endpoint="forms",
        method="GET",
        response_check=has_form,
        mode="reschedule",
        timeout=900,
    ).expand(request_params=queries())


form_sensor()
http_sensor()
