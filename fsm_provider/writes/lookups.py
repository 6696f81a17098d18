"""Look in the service for a job whose creation is uncertain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.validation import parse_count

if TYPE_CHECKING:
    from fsm_provider.api.payloads import JobRequest
    from fsm_provider.hooks.fsm import FsmHook

FindExisting = Callable[["FsmHook", "JobRequest"], int | str | None]
"""Given the hook and the request: the id of the job that is there, or None."""


def find_by(
    path: str, match: str = "customerReference", params: Mapping[str, Any] | None = None
) -> FindExisting:
    """Return a function that finds a job in a listing, for services that list jobs.

    A job is found if its field ``match`` has the value that was sent, and its property, if it names one, is
    the property.

    :param path: of the listing; ``{property_id}`` is replaced.
    :param match: a field of the request and of the records, under the service's name.
    :param params: query parameters, such as a filter on the time.
    """

    def find(hook: FsmHook, request: JobRequest) -> int | str | None:
        if (wanted := request.job.body().get(match)) is None:
            return None
        place = str(request.property_id)

        def is_there(record: dict[str, Any]) -> bool:
            named = record.get("propertyID")
            return named in (None, "") or str(named) == place

        found = {
            record["id"]
            for record in hook.paginate(path.format(property_id=place), params)
            if str(record.get(match)) == str(wanted) and is_there(record)
        }
        if len(found) > 1:
            raise FsmInputError(f"{match}: {len(found)} jobs have {wanted!r}: {sorted(found)}")
        return found.pop() if found else None

    return find


def find_job(find_existing: FindExisting, request: JobRequest, hook: FsmHook) -> dict[str, Any] | None:
    """Return what the ledger keeps of the job that ``find_existing`` finds, None if it finds none.

    :raises FsmInputError: if it returns anything else than an id or None.
    """
    job_id = find_existing(hook, request)
    return None if job_id is None else {"id": parse_count("find_existing", job_id)}
