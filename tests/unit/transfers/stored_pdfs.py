"""The PDFs of the fake's forms in a storage."""

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from fsm_provider.transfers.forms import FsmFormPdfsToObjectStorageOperator
from tests.unit.conftest import contents
from tests.unit.state_store import context_for


class Storage:
    """A folder, and a task that stores PDFs in it, once for each attempt."""

    def __init__(self, folder):
        self.folder = folder

    def bring(self, forms, *, context=(), **kwargs):
        """Return the task's result, also if it fails, and its error."""
        context = context_for(None, **dict(context))
        operator = self.operator(forms, **kwargs)
        try:
            result = operator.execute(context)
        except (AirflowException, AirflowFailException) as error:
            return context["ti"].pushed.get("return_value"), error
        return result, None

    def operator(self, forms, **kwargs):
        arguments = {"destination": str(self.folder), **kwargs}
        return FsmFormPdfsToObjectStorageOperator(task_id="pdfs", forms=forms, **arguments)

    @property
    def files(self):
        """All files, by their path in the folder."""
        return contents(self.folder)
