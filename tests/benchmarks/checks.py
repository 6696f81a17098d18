"""What ``HttpEventTrigger`` asks of a response. It loads this module anew at each poll."""

from __future__ import annotations

from requests import Response


async def has_form(response: Response) -> bool:
    """Return whether the listing holds a form."""
    return bool(response.json()["data"])
