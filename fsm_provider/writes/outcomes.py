"""The outcome of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from fsm_provider.api.job_urls import job_url


class JobOutcome(TypedDict):
    """The outcome of one input: no less and no more than is known.

    ``created``: by this attempt. ``existing``: the ledger knew its id when this attempt began, or
    ``existing_jobs`` names it. ``rejected``: the service refused it, and would again; after a 409 it may
    exist already. ``uncertain``: it may exist or not. ``not_created``: it does not exist, and another attempt
    may create it. ``unknown``: what earlier attempts did could not be read, or concerns other
    input, so that this input was refused. ``valid``: in a dry run.

    ``by`` is the task that has sent it before, as ``dag_id``, ``run_id``, ``task_id`` and ``map_index`` (and
    ``airflow``, if it has a name), if the ledger is in a database; else None, as only an earlier attempt of
    the same task can have.
    """

    index: int
    key: str
    propertyID: int | str
    customerReference: str | None
    outcome: Literal["created", "existing", "rejected", "uncertain", "not_created", "unknown", "valid"]
    jobID: int | None
    link: str | None
    by: dict[str, Any] | None
    error: str | None


def kept_job(job_id: int, link: str | None) -> dict[str, Any]:
    """Return what the ledger keeps of a job, under the service's names."""
    return {"id": job_id, "links": {"self": link}}


def id_and_link(kept: Mapping[str, Any]) -> tuple[int, str | None]:
    """Return the id and the URL of a job that the ledger keeps."""
    return kept["id"], job_url(kept)
