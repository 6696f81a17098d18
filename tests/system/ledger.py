"""An FSM connection whose ledger is in a SQLite database."""

import json
from pathlib import Path

from fsm_provider.testing import FakeFieldService


def connections_with_ledger(
    service: FakeFieldService,
    home: Path,
    conn_id: str = "fsm_default",
    **extra: float,
) -> dict[str, str]:
    """Make the connection to a service, and that to its ledger, as environment variables.

    :param home: the folder of the database, such as Airflow's home.
    :param extra: more settings.
    """
    connection = service.connection()
    connection["extra"] = {
        **connection["extra"],
        "state_conn_id": "fsm_ledger",
        **extra,
    }
    database = {
        "conn_type": "sqlite",
        "host": str(home.resolve() / "fsm_ledger.db"),
    }
    return {
        f"AIRFLOW_CONN_{conn_id.upper()}": json.dumps(connection),
        "AIRFLOW_CONN_FSM_LEDGER": json.dumps(database),
    }
