from airflow.providers.common.compat.sdk import dag, task

from fsm_provider.api import FsmInputError, jobs_from_rows
from fsm_provider.operators.jobs import FsmCreateJobsOperator, outcomes_as_text

QUERY = """
    SELECT reference, property_id, 'Annual service' AS notes, 'Important' AS priority
    FROM planned_visits WHERE due <= date('now')
"""


def as_mappings(cursor):
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@dag(schedule=None, default_args={"retries": 2})
def planned_visits():
    @task
    def read_rows():
        from airflow.providers.sqlite.hooks.sqlite import SqliteHook  # or that of your database

        fields = {"customerReference": "reference", "notes": "notes", "priority": "priority"}
        jobs = []
        rows = SqliteHook("planning").run(QUERY, handler=as_mappings)
        for number, row in enumerate(rows, 1):
            try:
                jobs += jobs_from_rows(
                    [row], key="reference", property_id="property_id", map=fields, start=number
                )
            except FsmInputError as error:  # a ValueError
                print(row, error)
        return jobs

    @task
    def report(outcomes):
        print(outcomes_as_text(outcomes))

    jobs = read_rows().as_setup()
    create = FsmCreateJobsOperator(task_id="create", jobs=jobs, once_per="key", max_jobs=200)
    # A teardown runs even if the creation failed, and does not decide the state of the run.
    report(create.output).as_teardown(setups=jobs)


planned_visits()
