"""The page *Field service*, which Airflow's API server mounts at this path."""

URL_PREFIX = "/fsm-page"
