"""Airflow reads its settings when it is first imported: they are set before that."""

import atexit
import os
import shutil
import tempfile

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="fsm-airflow-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
