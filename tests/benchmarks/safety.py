"""What the checks of responses cost, as a share of the listing or the creation that they belong to."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from functools import partial
from importlib import import_module
from typing import Any, Union, get_args, get_type_hints

from tests.benchmarks import clients, pages
from tests.benchmarks.case import Case, Extent
from tests.benchmarks.clients import CREATIONS, LISTINGS, OURS
from tests.benchmarks.listing import check
from tests.benchmarks.results import Goal, Round, Row
from tests.benchmarks.rounds import Task
from tests.benchmarks.server import Service

_REPEATS = 5
_LABELS = {
    "types": "types are checked strictly: our models less plain ones of the same fields",
    "lenient": "a page that does not parse is parsed again: looking for that on pages that do",
    "paging": "cursors, repeated pages and the service's totals",
    "echo": "the response is that of the job that was asked for",
}
_GOAL = Goal(at_most=0.05)


def measure(port: int, page_count: int, jobs: int) -> dict[str, float]:
    """Give the share of each check."""
    from fsm_provider.api.models import Form, Job, Page
    from fsm_provider.api.parsing import parse_page

    import_module("airflow.sdk")
    service = Service(port)
    bodies = [pages.response(number, page_count, pages.forms_of_page(number)) for number in range(page_count)]
    models: dict[str, Any] = {"ours": Page[Form], "plain": _page_of(_plain(Form))}
    context = {"timezone": UTC}

    def parse(kind: str) -> None:
        for body in bodies:
            models[kind].model_validate_json(body, context=context)

    def parse_leniently() -> None:
        for number, body in enumerate(bodies, start=1):
            parse_page(body, Form, number=number, timezone=UTC)

    parsed = [models["ours"].model_validate_json(body) for body in bodies]
    gc.collect()
    listing = _cpu(partial(_list, service.listing(0, page_count), page_count))
    ours = _cpu(partial(parse, "ours"))
    payloads = [(number, pages.job_payload(number)) for number in range(jobs)]
    create = clients.function_for(CREATIONS[OURS])
    creation = _cpu(lambda: list(create(service.listing(0, 0), payloads)))
    job = Job.model_validate(_job(7))
    return {
        "types": (ours - _cpu(partial(parse, "plain"))) / listing,
        "lenient": (_cpu(parse_leniently) - ours) / listing,
        "paging": _cpu(partial(_page_through, parsed)) / listing,
        "echo": _cpu(partial(_check_echoes, job, jobs)) / creation,
    }


def _cpu(work: Callable[[], object]) -> float:
    """Give the least CPU of some repeats: each does the same, and only other work can add to it."""
    taken = []
    for _ in range(_REPEATS):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def _list(base_url: str, page_count: int) -> None:
    check(clients.function_for(LISTINGS[OURS])(base_url), LISTINGS[OURS], 0, page_count)


def _page_through(parsed: list[Any]) -> None:
    from fsm_provider.api.listing import CursorPaginator, Listing

    listing = Listing(
        "", CursorPaginator("cursor", max_pages=len(parsed)), lambda at: parsed[at.page_number - 1]
    )
    while not listing.finished:
        listing.next_page()


def _check_echoes(job: Any, jobs: int) -> None:
    from fsm_provider.api.client import check_job
    from fsm_provider.api.payloads import JobRequest

    request = JobRequest.model_validate({"property_id": 7, "job": pages.job_payload(7)})
    for _ in range(jobs):
        check_job(job, request=request, hide=str)


def _job(property_id: int) -> Any:
    from pydantic_core import from_json

    return from_json(pages.job(property_id))


def _plain(model: Any) -> Any:
    """Make a model of the same fields, with the types that stand there, checked as pydantic does."""
    from pydantic import BaseModel, create_model

    hints = {name: hint for name, hint in get_type_hints(model).items() if name in model.model_fields}
    fields: dict[str, Any] = {
        name: (_plain_type(hint), ... if model.model_fields[name].is_required() else None)
        for name, hint in hints.items()
    }
    base = type("PlainRecord", (BaseModel,), {"model_config": model.model_config | {"defer_build": False}})
    return create_model(model.__name__, __base__=base, **fields)


def _plain_type(hint: Any) -> Any:
    from pydantic import BaseModel

    members: Iterable[Any] = get_args(hint) or (hint,)
    plain = [_plain(one) if isinstance(one, type) and issubclass(one, BaseModel) else one for one in members]
    return Union[tuple(plain)]  # noqa: UP007 - of members that are not known here


def _page_of(form: Any) -> Any:
    from pydantic import create_model

    from fsm_provider.api.models import Meta, Pagination, Record

    return create_model(
        "PlainPage",
        __base__=Record,
        meta=(Meta | None, None),
        pagination=(Pagination | None, None),
        data=(list[form], ...),
    )


def _tasks(extent: Extent, port: int) -> list[Task]:
    arguments = {"port": port, "page_count": extent.sizes[1], "jobs": extent.jobs}
    return [Task("checks", "safety:measure", arguments)]


def _rows(extent: Extent, rounds: Sequence[Round]) -> list[Row]:
    return [
        Row(
            "cost of checking responses, CPU / the whole operation",
            label,
            "x",
            [measured["checks"][name] for measured in rounds],
            _GOAL,
        )
        for name, label in _LABELS.items()
    ]


CASE = Case(_tasks, _rows)
