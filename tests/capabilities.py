"""What tests need of Airflow that not every version has.

Nothing else in the tests knows versions, and each says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    import pytest

AIRFLOW = Version(version("apache-airflow"))

IS_AIRFLOW_3 = AIRFLOW.major >= 3


@dataclass(frozen=True)
class Capability:
    """Something that Airflow can do since a version.

    :param missing: what is so before, in words.
    """

    since: str
    missing: str

    @property
    def is_there(self) -> bool:
        """Whether the Airflow that runs the tests can do it."""
        return Version(self.since) <= AIRFLOW

    @property
    def needed(self) -> pytest.MarkDecorator:
        """Mark a test that cannot do without it."""
        import pytest

        return pytest.mark.skipif(not self.is_there, reason=self.missing)

    def require(self) -> None:
        """Skip the test that runs, or the module that is imported."""
        import pytest

        if not self.is_there:
            pytest.skip(self.missing, allow_module_level=True)


TASK_SDK = Capability("3.0", "Airflow 2 has no task SDK, behind which the tests play Airflow")
ASSETS = Capability("3.0", "Airflow 2 has neither assets nor FastAPI applications in its webserver")
VARIABLE_KEYS = Capability(
    "3.3", "before Airflow 3.3 a task cannot see what Variables others have claimed"
)
SUPERVISOR_MASKS = Capability(
    "3.3", "before Airflow 3.3 only the task itself masks what it is told to"
)
DEADLINES = Capability("3.1", "Airflow 3.0 has no deadline alerts")
APPROVALS = Capability("3.1", "before Airflow 3.1 no task asks a person")
CONCURRENT_MESSAGES = Capability("3.2", "before Airflow 3.2 only one thread asks the supervisor")
LIGHT_PARSING = Capability("3.1", "before Airflow 3.1 an operator alone loads an HTTP library")
THREADS = Capability("3.0", "Airflow 2 lets no other thread execute an operator")
RESCHEDULES = Capability(
    "3.0", "Airflow 2 reads from its database when a sensor was first rescheduled"
)
PROVIDER_COMMANDS = Capability("3.2", "before Airflow 3.2 a provider adds no commands to airflow")
RETRIES_OF_KILLED = Capability("3.1", "Airflow 3.0 does not retry a task whose process was killed")
STATE_STORE = Capability("3.3", "before Airflow 3.3 a task keeps no state")
SHARED_STREAMS = Capability("3.3", "before Airflow 3.3 triggers share no stream")
RETRY_POLICIES = Capability("3.3", "before Airflow 3.3 a task has no retry policy")
PAGE = Capability("3.0", "Airflow 2 serves no page of a provider")
MENU = Capability("3.1", "before Airflow 3.1 a provider adds nothing to the menu")
