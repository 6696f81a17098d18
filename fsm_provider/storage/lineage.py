"""Report what a task read and wrote to Airflow's lineage collector and OpenLineage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath


def uri_for_records(fsm_conn_id: str, records: str) -> str:
    """Return the URI of a connection's ``forms`` or other records, a prefix of its assets' URIs."""
    return f"fsm://{quote(fsm_conn_id, safe='')}/{records}"


def uri_for(path: ObjectStoragePath) -> str:
    return f"{path.protocol or 'file'}://{path.path}"


def report(by: Any, *, inputs: Iterable[str] = (), outputs: Iterable[str] = ()) -> None:
    """Report to Airflow's lineage collector, which does nothing unless a plugin reads it.

    :param by: the hook or path that was used.
    """
    from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

    collector = get_hook_lineage_collector()
    for uri in inputs:
        collector.add_input_asset(context=by, uri=uri)
    for uri in outputs:
        collector.add_output_asset(context=by, uri=uri)


def openlineage(*, inputs: Iterable[str], outputs: Iterable[str]) -> Any:
    """Return an operator's lineage for the OpenLineage provider; only that provider calls this."""
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
