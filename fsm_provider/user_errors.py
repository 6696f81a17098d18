"""What an error tells a user, for the commands and the page."""

from fsm_provider.api.errors import FsmError


def text_of(error: Exception) -> str | None:
    """Return what an error tells a user; None if it is a defect."""
    from airflow.providers.common.compat.sdk import AirflowException

    if isinstance(error, AirflowException | FsmError | ImportError):
        return str(error)
    if not type(error).__module__.startswith("sqlalchemy."):
        return None
    # Not its own text: that of a URL that cannot be parsed may hold a password.
    cause = getattr(error, "orig", None) or type(error).__name__
    details = getattr(error, "detail", [])
    return ": ".join(["the database", *details, str(cause)])
