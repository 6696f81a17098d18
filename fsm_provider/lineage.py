"""What a task read and wrote, for whoever collects it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath


def forms_of(fsm_conn_id: str) -> str:
    """Give the URI of a connection's forms, which those of its assets begin with."""
    return f"fsm://{quote(fsm_conn_id, safe='')}/forms"


def uri_of(path: ObjectStoragePath) -> str:
    """Give the URI of a file or folder, without the connection."""
    return f"{path.protocol or 'file'}://{path.path}"


def report(by: Any, *, inputs: Iterable[str] = (), outputs: Iterable[str] = ()) -> None:
    """Tell Airflow's collector, which does nothing unless somebody reads it.

    :param by: the hook or path that was used.
    """
    from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

    collector = get_hook_lineage_collector()
    for uri in inputs:
        collector.add_input_asset(context=by, uri=uri)
    for uri in outputs:
        collector.add_output_asset(context=by, uri=uri)


def openlineage(*, inputs: Iterable[str], outputs: Iterable[str]) -> Any:
    """Make what an operator gives to the OpenLineage provider, which alone calls for it."""
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.openlineage.extractors import (  # type: ignore[import-not-found,unused-ignore]
        OperatorLineage,
    )

    def dataset(uri: str) -> Any:
        parts = urlsplit(uri)
        if parts.netloc:
            return Dataset(f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/"))
        return Dataset(parts.scheme, parts.path)

    return OperatorLineage(inputs=list(map(dataset, inputs)), outputs=list(map(dataset, outputs)))
