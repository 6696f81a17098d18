"""What records come to in the spool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote

from fsm_provider.api.errors import FsmResponseError
from fsm_provider.api.models import AssetDynamicField, Form
from fsm_provider.exports.schema import Row, Schema, one_of_each
from fsm_provider.exports.spool import Entry

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive calls the partition of rows without a value."""


def entries_of_forms(
    forms: Iterable[Form], schema: Schema, encode: Callable[[Row], bytes], partition_by: str | None
) -> Iterator[Entry]:
    """Make a row of each form; of several versions, the last updated one is to stay.

    :param partition_by: ``day`` of creation in UTC, ``property``, or None.
    :raises FsmResponseError: for an identifier that no column of integers can hold.
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


def entries_of_asset_fields(
    fields: Iterable[AssetDynamicField], schema: Schema, encode: Callable[[Row], bytes]
) -> Iterator[Entry]:
    """Make a row of each value of a field in each of its uses, in the service's order.

    :raises FsmResponseError: for an identifier that no column of integers can hold.
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
    return f"{name}={quote(value, safe='') if value else NO_VALUE}/"
