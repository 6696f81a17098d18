"""Records as entries of the sort buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote

from fsm_provider.api.errors import FsmResponseError
from fsm_provider.api.models import AssetDynamicField, Form
from fsm_provider.transfers.export.schema import Row, Schema, one_of_each
from fsm_provider.transfers.export.sort_buffer import Entry
from fsm_provider.transfers.names import bounded_name

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for the partition of rows without a value."""


def entries_for_forms(
    forms: Iterable[Form], schema: Schema, encode: Callable[[Row], bytes], partition_by: str | None
) -> Iterator[Entry]:
    """Yield an entry for each form; of several versions, the sort buffer keeps the last updated.

    :param partition_by: ``day`` of creation in UTC, ``property``, or None.
    :raises FsmResponseError: for an identifier of more than 64 bits.
    """
    columns = [
        schema.names.index(name) for name in ("createdOnDateTime", "lastUpdatedOnDateTime", "propertyID")
    ]
    for form in forms:
        row = schema.row(form)
        created, updated, property_id = (str(row[column] or "") for column in columns)
        if partition_by == "day":
            folder = _folder("day", created[:10])
        else:
            folder = _folder("property", property_id) if partition_by else ""
        yield Entry(_checked(form.id), folder, created, updated, 1, encode(row))


def entries_for_asset_fields(
    fields: Iterable[AssetDynamicField], schema: Schema, encode: Callable[[Row], bytes]
) -> Iterator[Entry]:
    """Yield an entry for each field, with a row for each value in each use, in the service's order.

    :raises FsmResponseError: for an identifier of more than 64 bits.
    """
    for field in fields:
        rows = [schema.row(one) for one in one_of_each(field, "values", "used_by")]
        identifier = _checked(field.dynamic_field_id)
        yield Entry(identifier, "", "", "", len(rows), b"".join(map(encode, rows)))


def _checked(identifier: int) -> int:
    if identifier.bit_length() > 63:
        raise FsmResponseError(f"{identifier} is not exported: it has more than the 64 bits of an identifier")
    return identifier


@lru_cache(maxsize=4096)
def _folder(name: str, value: str) -> str:
    return bounded_name(f"{name}={quote(value, safe='') if value else NO_VALUE}") + "/"
