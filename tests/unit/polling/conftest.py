"""Triggerers that watch assets, and what they store."""

import json

import pytest

from fsm_provider.polling import asset_stores
from fsm_provider.triggers import forms as triggers
from tests.capabilities import ASSETS, SHARED_STREAMS
from tests.unit.polling.watching import KINDS, Triggerers


@pytest.fixture(params=KINDS)
def triggerers(request, monkeypatch, service, connect, database_of_assets):
    """Triggerers of both kinds, whichever Airflow runs the test."""
    from tests.unit.supervisor import supervised

    ASSETS.require()
    if request.param == "acknowledged":
        SHARED_STREAMS.require()
    monkeypatch.setattr(triggers, "AIRFLOW_V_3_3_PLUS", request.param == "acknowledged")
    monkeypatch.setattr(triggers, "_ended", {})
    connect(service, max_retries=0)
    with supervised() as supervisor:
        running = Triggerers(request.param, service)
        running.supervisor = supervisor
        yield running


@pytest.fixture
def database_of_assets(tmp_path, connection_extra, monkeypatch):
    """A SQLite file for the watermarks."""
    connection = {"conn_type": "sqlite", "host": str(tmp_path / "state.db")}
    monkeypatch.setattr(asset_stores, "_engines", {})
    monkeypatch.setenv("AIRFLOW_CONN_FSM_STATE", json.dumps(connection))
    connection_extra["state_conn_id"] = "fsm_state"
