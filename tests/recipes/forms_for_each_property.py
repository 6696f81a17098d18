from datetime import timedelta
from html import escape

from airflow.providers.common.compat.sdk import dag, task, task_group

from fsm_provider.operators.jobs import FsmCreateJobOperator
from fsm_provider.sensors.forms import FsmFormSensor

FORMS = ["Gas Safety Record", "Smoke Alarm Test", "Job Sign-off"]


def alert(context):
    from airflow.providers.smtp.hooks.smtp import SmtpHook

    ti = context["ti"]
    with SmtpHook("smtp_default") as server:
        server.send_email_smtp(
            to="office@example.com",
            subject=f"{ti.run_id}: {ti.task_id} {ti.map_index}",
            html_content=escape(
                str(context["exception"])
            ),  # names job, property and what is missing
        )


@dag(schedule=None, default_args={"retries": 2, "on_failure_callback": alert})
def spring_campaign():
    @task
    def properties():
        return list(range(1, 51))

    @task_group
    def visit(property_id):
        job = FsmCreateJobOperator(
            task_id="create_job",
            property_id=property_id,
            job={"customerReference": "{{ run_id }}.{{ ti.map_index }}"},
        )
        FsmFormSensor(
            task_id="wait",
            job=job.output,
            form_names=FORMS,
            deferrable=True,
            timeout=timedelta(days=28),
        )

    visit.expand(property_id=properties())


spring_campaign()
