"""The receiver of webhooks, which Airflow's API server mounts at this path."""

URL_PREFIX = "/fsm/webhooks"
