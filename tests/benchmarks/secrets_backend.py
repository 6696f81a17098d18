"""Where Airflow looks connections up in a measured process: ``AIRFLOW__SECRETS__BACKEND``."""

from __future__ import annotations

from airflow.secrets import BaseSecretsBackend

from tests.benchmarks import connections


class CountingBackend(BaseSecretsBackend):
    """Gives the provided connections."""

    def get_conn_value(self, conn_id: str, team_name: str | None = None) -> str | None:
        """Give the connection as JSON."""
        return connections.look_up(conn_id)
