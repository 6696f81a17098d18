"""For every test: Airflow reads its settings when it is first imported, so they are set before that."""

import atexit
import os
import shutil
import signal
import tempfile

os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="fsm-airflow-")
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

# SIGTERM alone would leave behind what fixtures have started. As Ctrl-C it ends pytest, which would take
# SystemExit for the failure of one test, and go on.
signal.signal(signal.SIGTERM, signal.default_int_handler)
