"""Airflow reads its settings when it is first imported: they are set before that."""

import os
import tempfile

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="fsm-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
