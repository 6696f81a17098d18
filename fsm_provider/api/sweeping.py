"""A sweep over the completed forms (4.3), read through a client."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from fsm_provider.api.client import FsmClient, Params
from fsm_provider.api.endpoints import LIST_FORMS
from fsm_provider.api.forms import FormFilter, FormFilters, reference_to
from fsm_provider.api.models import Form, Page
from fsm_provider.api.sweeps import Swept, start_of


def sweep_forms(client: FsmClient, filters: FormFilters, params: Params | None = None) -> Swept:
    """Read a listing of forms to its end.

    :param filters: as :class:`~fsm_provider.api.forms.FormFilter` takes them; each is also checked on
        this side.
    :param params: query parameters that the specification does not show.
    :raises FsmError: where it was not read to its end; then nothing of it counts.
    """
    wanted = FormFilter(**filters)
    asked, began = datetime.now(UTC), time.monotonic()
    started, references, others = None, [], 0
    pages = client.pages(LIST_FORMS.path, LIST_FORMS.response, {**(params or {}), **wanted.params()})
    for page in pages:
        if started is None:
            served = _server_time(page)
            took = timedelta(seconds=time.monotonic() - began)
            started = start_of(served - took if served else None, asked)
        forms: list[Form] = page.data
        matching = [reference_to(form) for form in forms if wanted.matches(form)]
        others += len(forms) - len(matching)
        references += matching
    return Swept(references=references, started=started or asked, others=others)


def _server_time(page: Page[Any]) -> datetime | None:
    """Give the time of an answer (2.5), None where it tells none that can be read."""
    told = page.meta.server_time if page.meta else None
    return told if isinstance(told, datetime) and told.tzinfo else None
