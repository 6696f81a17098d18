"""Where tasks that are killed may have their ledger: in Airflow itself since 3.3, or a database.

``FSM_KILLS_STORES`` names the stores of ``test_kills.py`` and ``test_kills_database.py``, with
commas.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsm_provider.testing import FakeFieldService
from tests.capabilities import STATE_STORE
from tests.distributed.backends import Server, missing, postgresql_server

STORES = {
    "Airflow": "fsm_default",
    "SQLite": "fsm_sqlite",
    "PostgreSQL": "fsm_postgresql",
}
"""The connection that has each."""
CHOSEN = os.environ.get("FSM_KILLS_STORES", "Airflow,SQLite").split(",")


def _missing(store: str) -> str:
    """Say why a store cannot be tested here; nothing if it can."""
    if store == "Airflow" and not STATE_STORE.is_there:
        return STATE_STORE.missing
    if store == "PostgreSQL":
        return missing("postgres")
    return ""


def chosen_parameters(*stores: str) -> list[object]:
    """Give the stores that are to be tested, as parameters; one that is not here is skipped."""
    parameters: list[object] = []
    for store in stores:
        if store not in CHOSEN:
            continue
        reason = _missing(store)
        skipped = pytest.mark.skipif(bool(reason), reason=reason)
        parameters.append(pytest.param(store, marks=skipped))
    return parameters


def available(stores: Collection[str] = CHOSEN) -> list[str]:
    """Give those of the stores that are here."""
    return [store for store in stores if not _missing(store)]


def record_capability(
    record_property: Callable[[str, str], None],
    capability: str,
    fsm_conn_id: str,
) -> None:
    """Write down that this was measured with the ledger of a connection, for docs/tested.md."""
    stores = {conn_id: store for store, conn_id in STORES.items()}
    record_property("capability", json.dumps([capability, stores[fsm_conn_id]]))


@dataclass
class Databases:
    """The databases of the ledgers, and the connections of Airflow."""

    env: dict[str, str] = field(default_factory=dict)
    postgresql: Server | None = None

    def connect(self, service: FakeFieldService, fsm_conn_id: str, ledger: str | None) -> None:
        """Add a connection to the service, whose ledger is in a database or not."""
        connection = service.connection()
        if ledger:
            state_conn_id = f"{fsm_conn_id}_ledger"
            extra = connection.get("extra", {})
            connection["extra"] = {**extra, "state_conn_id": state_conn_id}
            self.env[f"AIRFLOW_CONN_{state_conn_id.upper()}"] = ledger
        self.env[f"AIRFLOW_CONN_{fsm_conn_id.upper()}"] = json.dumps(connection)


@contextmanager
def databases(
    folder: Path, service: FakeFieldService, stores: Collection[str]
) -> Iterator[Databases]:
    """Run what these stores need, and make a connection for each."""
    with ExitStack() as stack:
        running = Databases()
        for store in stores:
            fsm_conn_id = STORES[store]
            if store == "SQLite":
                file = {"conn_type": "sqlite", "host": str(folder / "ledger.db")}
                running.connect(service, fsm_conn_id, json.dumps(file))
            elif store == "PostgreSQL":
                running.postgresql = stack.enter_context(postgresql_server())
                running.connect(service, fsm_conn_id, f"postgres://{running.postgresql.url}")
            else:
                running.connect(service, fsm_conn_id, None)
        yield running
