from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.standard.operators.hitl import ApprovalOperator

from fsm_provider.api import jobs_from_rows
from fsm_provider.operators.forms import FsmListFormsOperator
from fsm_provider.operators.jobs import FsmCreateJobsOperator


@dag(schedule=None, default_args={"retries": 2}, params={"since": Param("2026-01-01T00:00:00Z")})
def jobs_that_are_approved():
    @task
    def propose(notices):
        # Ask an agent here. It returns notes by the id of a notice, and may leave notices out.
        return {str(notice["id"]): "Repair what the notice names" for notice in notices}

    @task
    def plan(notices, notes_by_id):
        rows = []
        for notice in notices:
            notes = notes_by_id.get(str(notice["id"]))
            if notes:
                # Key and property are the form's; only the notes are the agent's.
                key = f"notice {notice['id']}"
                rows.append({"key": key, "property": notice["propertyID"], "notes": notes})
        fields = {"customerReference": "key", "notes": "notes"}
        return jobs_from_rows(rows, key="key", property_id="property", map=fields)

    notices = FsmListFormsOperator(
        task_id="notices", form_names="Warning Notice", created_since="{{ params.since }}"
    ).output
    jobs = plan(notices, propose(notices))
    approve = ApprovalOperator(
        task_id="approve",
        subject="Create these jobs?",
        body="```json\n{{ ti.xcom_pull(task_ids='plan') | tojson(indent=2) }}\n```",
    )
    create = FsmCreateJobsOperator(task_id="create", jobs=jobs, once_per="key", max_jobs=20)
    jobs >> approve >> create


jobs_that_are_approved()
