"""Has the asset that deliveries are events of; paused, as its runs would take the machine."""

from airflow.sdk import Asset, dag, task


@dag(schedule=[Asset("fsm://fsm_default/jobs")], is_paused_upon_creation=True)
def of_jobs():
    @task
    def nothing():
        pass

    nothing()


of_jobs()
