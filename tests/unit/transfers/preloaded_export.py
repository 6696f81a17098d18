"""An export ahead: a process that is forked off one that imported this has nothing to import."""

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
