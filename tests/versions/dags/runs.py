"""What runs on every version of Airflow: jobs created, forms waited for, a webhook registered."""

from datetime import datetime, timedelta

from airflow.providers.common.compat.sdk import Asset, dag, task

from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.sensors.forms import FsmFormSensor

ARGUMENTS = {"start_date": datetime(2026, 1, 1), "catchup": False, "is_paused_upon_creation": False}
SINCE = "{{ ti.xcom_pull(task_ids='create')['createdOnDateTime'] }}"
JOB_ID = "{{ ti.xcom_pull(task_ids='create')['id'] }}"
WAITING_JOBS = (9101, 9102, 9103, 9104)


def create(reference):
    return FsmCreateJobOperator(
        task_id="create", property_id=7, job={"customerReference": reference}
    )


@dag(schedule=None, **ARGUMENTS)
def created_and_awaited():
    wait = {"job_id": JOB_ID, "since": SINCE, "timeout": timedelta(minutes=10)}
    poke = FsmFormSensor(task_id="poke", mode="poke", poke_interval=1, **wait)
    deferred = FsmFormSensor(
        task_id="deferred", deferrable=True, poke_interval=2, form_names="Job Sign-off", **wait
    )
    create("BOOT") >> [poke, deferred]


@dag(schedule=None, **ARGUMENTS)
def cleared():
    create("LEDGER")


@dag(schedule=None, **ARGUMENTS)
def waiting():
    for job_id in WAITING_JOBS:
        FsmFormSensor(
            task_id=f"job_{job_id}",
            job_id=job_id,
            since=datetime.now().astimezone().date().isoformat(),
            deferrable=True,
            poke_interval=1,
            timeout=timedelta(minutes=10),
        )


def register(target_url):
    FsmRegisterWebhookOperator(
        task_id="register", object="jobs", event_types=["jobs.created"], target_url=target_url
    )


@dag(schedule=None, **ARGUMENTS)
def registered_elsewhere():
    register("https://hooks.example.com/fsm")


@dag(schedule=None, **ARGUMENTS)
def registered_with_the_receiver():
    register(None)


@dag(schedule=[Asset("fsm://fsm_default/jobs")], **ARGUMENTS)
def notified_of_jobs():
    @task
    def notified():
        return "notified"

    notified()


created_and_awaited()
cleared()
waiting()
registered_elsewhere()
registered_with_the_receiver()
notified_of_jobs()
