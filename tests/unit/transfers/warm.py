"""An export ahead: what is forked off a process that has imported this has nothing left to import."""

from tempfile import TemporaryDirectory

from fsm_provider.testing import FakeFieldService
from tests.unit.transfers.exporting import export

with FakeFieldService() as service, TemporaryDirectory() as folder:
    service.add_form()
    export({"AIRFLOW_CONN_FSM_DEFAULT": service.connection_json()}, f"{folder}/forms.parquet", {})
