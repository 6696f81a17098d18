"""The clients that are compared: each lists forms, creates jobs, or both, as a user would with it.

A listing takes a base URL and gives the forms; a creation takes a base URL and (property, payload)
pairs and gives the identifiers of the jobs. They are named here and imported where they run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

OURS = "ours"
REFERENCE = "session"
LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to do the work.

    :param typed: whether it gives objects rather than dictionaries.
    """

    label: str
    function: str
    typed: bool = True


LISTINGS = {
    OURS: Variant("FsmClient.list_forms", "ours:forms"),
    REFERENCE: Variant("requests.Session, untyped", "session:forms", typed=False),
    "hook": Variant("HttpHook, untyped", "http_hook:forms", typed=False),
    "hook_typed": Variant("HttpHook, typed", "http_hook:typed_forms"),
    "operator": Variant("HttpOperator, untyped", "http_operator:forms", typed=False),
    "operator_typed": Variant("HttpOperator, typed", "http_operator:typed_forms"),
    "dlt": Variant("dlt RESTClient, untyped", "dlt_client:forms", typed=False),
    LIMIT: Variant("http.client and msgspec, typed (the limit)", "limit:forms"),
}

CREATIONS = {
    OURS: Variant("FsmClient.create_job", "ours:create_jobs"),
    REFERENCE: Variant("requests.Session", "session:create_jobs"),
    "hook": Variant("HttpHook, one instance", "http_hook:create_jobs"),
    "operator": Variant("HttpOperator", "http_operator:create_jobs"),
    LIMIT: Variant("http.client (the limit)", "limit:create_jobs"),
}

HOOKS = {
    OURS: Variant("FsmHook.list_forms", "ours:forms_by_hook"),
    "hook": LISTINGS["hook"],
    "operator": LISTINGS["operator"],
}


def function_for(variant: Variant) -> Any:
    """Import the function of a variant."""
    if not variant.function.startswith("dlt_client:"):
        without_simplejson()
    module, _, name = variant.function.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), name)


def without_simplejson() -> None:
    """Hide what dlt brings along: requests would parse with it instead of ``json``."""
    sys.modules["simplejson"] = None  # type: ignore[assignment]
