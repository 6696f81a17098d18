"""An export ahead: what is forked off a process that has imported this has nothing left to import."""

import os
from tempfile import TemporaryDirectory

from fsm_provider.testing import FakeFieldService
from fsm_provider.transfers.forms import FsmFormsToObjectStorageOperator
from tests.unit.state_store import context_for

with FakeFieldService() as service, TemporaryDirectory() as folder:
    service.add_form()
    os.environ["AIRFLOW_CONN_FSM_DEFAULT"] = service.connection_json()
    path = f"{folder}/forms.parquet"
    FsmFormsToObjectStorageOperator(task_id="t", destination=path).execute(context_for(None))
