"""The outcome of a job."""

from __future__ import annotations

from typing import Literal, TypedDict


class JobOutcome(TypedDict):
    """The outcome of one input: no less and no more than is known.

    ``created``: by this attempt. ``existing``: the ledger knew its id when this attempt began, or
    ``existing_jobs`` names it. ``rejected``: the service refused it, and would again; after a 409 it may
    exist already. ``uncertain``: it may exist or not. ``not_created``: it does not exist, and another attempt
    may create it. ``unknown``: what earlier attempts did could not be read, or concerns other
    input, so that this input was refused. ``valid``: in a dry run.
    """

    index: int
    key: str
    propertyID: int | str
    customerReference: str | None
    outcome: Literal["created", "existing", "rejected", "uncertain", "not_created", "unknown", "valid"]
    jobID: int | None
    link: str | None
    error: str | None
