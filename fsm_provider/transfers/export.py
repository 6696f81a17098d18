"""Listings as files: records as rows with the same typed columns, whatever the data, sorted and
written.
"""

from __future__ import annotations

import csv
import gc
import hashlib
import logging
import marshal
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import chain
from operator import attrgetter, itemgetter
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple, get_args

from pydantic import AwareDatetime
from pydantic.fields import FieldInfo
from pydantic_core import to_json, to_jsonable_python

from fsm_provider.api.errors import FsmInputError, FsmResponseError
from fsm_provider.api.listing import Listing
from fsm_provider.api.models import AssetDynamicField, Form, Record, wire_name

logger: logging.Logger = logging.getLogger(__name__)

CACHE_KIB = 16 * 1024
"""Of the sort buffer, held in memory; the rest is on the disk."""
CHUNK_BYTES = 2 * 2**20
"""Bytes, as encoded, that are written at once; in Parquet, as a row group."""
PROGRESS_EVERY = 20_000
FORMULAS = frozenset("=+-@\t\r")
"""What begins a formula in a spreadsheet."""

EXTRA = "_extra"
"""The last column: JSON of fields without a column, and of values that do not fit theirs."""

Row = list[Any]
Encoder = Callable[[list[Row]], bytes]
Writer = Callable[[BinaryIO, Iterable[list[bytes]]], None]

_CREATE = "CREATE TABLE entries (id INTEGER PRIMARY KEY, sort_key, version, lines, content)"
_ADD = """INSERT INTO entries VALUES (?, ?, ifnull(?, ''), ?, ?) ON CONFLICT (id) DO UPDATE SET
    sort_key = excluded.sort_key, version = excluded.version,
    lines = excluded.lines, content = excluded.content
    WHERE (excluded.version, excluded.content) > (version, content)"""


class Column(NamedTuple):
    """A column.

    :param path: the attributes that lead to the value, joined by dots.
    :param kind: ``integer`` (64 bits), ``text``, or ``time``: ISO 8601 in UTC with microseconds.
    """

    name: str
    path: str
    kind: str


def _parse_integer(value: Any) -> int:
    if type(value) is not int or value.bit_length() > 63:
        raise TypeError
    return value


def _parse_time(value: Any) -> str:
    if type(value) is not datetime:
        raise TypeError
    text: str = to_jsonable_python(
        value
    )  # a third of astimezone and isoformat, which cost most of a row
    if text[-1] != "Z":
        text = to_jsonable_python(value.astimezone(UTC))
    return text if "." in text else f"{text[:-1]}.000000Z"


# All raise TypeError for another type.
_PARSERS: dict[str, Any] = {"integer": _parse_integer, "text": str.__str__, "time": _parse_time}
_TEXT_OR_NULL = frozenset({str, type(None)})
_KINDS: dict[Any, str] = {int: "integer", AwareDatetime: "time"}


class Schema:
    """The columns of a kind of record.

    A list of objects has the columns of one of them.

    :param model: the class of the records.
    :param without: a column to leave out; its values are not in ``_extra`` either.
    """

    def __init__(self, model: type[Record], *, without: str = "") -> None:
        self._without = without
        columns = [column for column in _columns_for(model) if column.name != without]
        self.columns: list[Column] = [*columns, Column(EXTRA, "", "text")]
        self.names: list[str] = [column.name for column in self.columns]
        self._parsers = {column.name: _PARSERS[column.kind] for column in columns}
        self._others = [
            (i, _PARSERS[kind]) for i, (_, _, kind) in enumerate(columns) if kind != "text"
        ]
        self._texts = itemgetter(*(i for i, (_, _, kind) in enumerate(columns) if kind == "text"))
        self._values = attrgetter(*(column.path for column in columns))
        nested = {column.path.rpartition(".")[0] for column in columns}
        self._extras = attrgetter(
            *(f"{path}.__pydantic_extra__".lstrip(".") for path in sorted(nested))
        )

    def row(self, record: Record) -> Row:
        try:
            if not any(self._extras(record)):
                row: Row = [*self._values(record), None]
                for position, parse in self._others:
                    if row[position] is not None:
                        row[position] = parse(row[position])
                if _TEXT_OR_NULL.issuperset(map(type, self._texts(row))):
                    return row
        except (AttributeError, TypeError, OverflowError):
            pass
        fitting: dict[str, int | str] = {}
        others: dict[str, Any] = {}
        self._sort(record, "", fitting, others)
        extra = to_json(dict(sorted(others.items())), by_alias=True, inf_nan_mode="null").decode()
        return [*map(fitting.get, self._parsers), extra if others else None]

    def _sort(
        self, record: Record, prefix: str, fitting: dict[str, int | str], others: dict[str, Any]
    ) -> None:
        for attribute in type(record).model_fields:
            column, value = f"{prefix}{wire_name(attribute)}", getattr(record, attribute)
            if value is None or column == self._without:
                continue
            if isinstance(value, Record):
                self._sort(value, f"{column}_", fitting, others)
                continue
            try:
                fitting[column] = self._parsers[column](value)
            except (
                KeyError,
                TypeError,
                OverflowError,
            ):  # the last: a time at the end of the calendar
                others[column] = value
        others.update((prefix + name, value) for name, value in (record.model_extra or {}).items())


def _columns_for(model: type[Record], prefix: str = "", path: str = "") -> Iterator[Column]:
    for attribute, field in model.model_fields.items():
        kind, name = _type_for(field), f"{prefix}{wire_name(attribute)}"
        if isinstance(kind, type) and issubclass(kind, Record):
            yield from _columns_for(kind, f"{name}_", f"{path}{attribute}.")
        else:
            yield Column(name, f"{path}{attribute}", _KINDS.get(kind, "text"))


def _type_for(field: FieldInfo) -> Any:
    """Return the type of a field's values: X for ``X | None`` or ``list[X] | None``, annotated or
    not.
    """
    kind: Any = field.annotation
    while alternatives := get_args(kind):
        kind = alternatives[0]
    return kind


class Entry(NamedTuple):
    """The rows of a record.

    :param id: 64 bits; of several entries with one id, the greatest ``(version, content)`` stays.
    :param sort_key: entries are sorted by it, None first, then by ``id``.
    :param lines: number of rows in ``content``.
    """

    id: int
    sort_key: int | str | None
    version: str | None
    lines: int
    content: bytes


def entries_for_forms(forms: Iterable[Form], schema: Schema, encode: Encoder) -> Iterator[Entry]:
    """Yield an entry for each form; of several versions, the sort buffer keeps the last updated."""
    times = itemgetter(*map(schema.names.index, ("createdOnDateTime", "lastUpdatedOnDateTime")))
    for form in forms:
        row = schema.row(form)
        created, updated = times(row)
        yield Entry(form.id, created, updated, 1, encode([row]))


def entries_for_asset_fields(
    fields: Iterable[AssetDynamicField], schema: Schema, encode: Encoder
) -> Iterator[Entry]:
    """Yield an entry for each record, with a row for each value in each use; a field may have
    several.
    """
    for field in fields:
        rows = [
            schema.row(field.model_copy(update={"values": value, "used_by": use}))
            for value in _elements(field.values)
            for use in _elements(field.used_by)
        ]
        content = encode(rows)
        digest = int.from_bytes(hashlib.sha256(content).digest()[:8]) >> 1
        yield Entry(digest, field.dynamic_field_id, "", len(rows), content)


def _elements(found: Any) -> list[Any]:
    """Return the elements of a list; None if it is empty, and what is no list itself."""
    return (found or [None]) if isinstance(found, list) else [found]


class SortBuffer:
    """Entries in a nameless file, which disappears with the process, even one that is killed."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", f"cache_size=-{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute(_CREATE)
        self.rows: int = 0

    def close(self) -> None:
        self._database.close()

    def fill(self, entries: Iterable[Entry]) -> None:
        self._database.execute("BEGIN")
        thresholds = gc.get_threshold()
        gc.set_threshold(
            10_000
        )  # else each page's records, which have no cycles, start a collection
        try:
            self._database.executemany(_ADD, _counted(entries))
        except OverflowError:
            raise FsmResponseError(
                "nothing is exported: an identifier has more than 64 bits"
            ) from None
        finally:
            gc.set_threshold(*thresholds)
        self._database.execute("CREATE INDEX sorted ON entries (sort_key, id)")

    def digest_of_identifiers(self) -> bytes:
        digest = hashlib.sha256()
        for (identifier,) in self._database.execute("SELECT id FROM entries ORDER BY id"):
            digest.update(b"%d," % identifier)
        return digest.digest()

    def chunks(self) -> Iterator[list[bytes]]:
        """Yield the content, sorted by time and id, and count its rows; a chunk never splits an
        entry.
        """
        chunk, size = [], 0
        query = "SELECT lines, content FROM entries ORDER BY sort_key, id"
        for lines, content in self._database.execute(query):
            self.rows += lines
            chunk.append(content)
            size += len(content)
            if size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def _counted(entries: Iterable[Entry]) -> Iterator[Entry]:
    for number, entry in enumerate(entries, start=1):
        yield entry
        if number % PROGRESS_EVERY == 0:
            logger.info("%s records listed", number)


@contextmanager
def read_completely(
    list_records: Callable[[], Listing], entries: Callable[[Listing], Iterable[Entry]]
) -> Iterator[SortBuffer]:
    """Yield a listing's entries, once they agree with its totals or with those of a second reading.

    :raises FsmResponseError: if they do not.
    """
    earlier, mismatch = b"", None
    for _ in range(2):
        with closing(SortBuffer()) as buffer:
            listing = list_records()
            buffer.fill(entries(listing))
            mismatch = listing.mismatch
            identifiers = buffer.digest_of_identifiers() if mismatch else earlier
            if identifiers == earlier:
                if mismatch:
                    logger.warning(
                        "Two readings of the listing gave the same records, which are exported: "
                        "the service's meta.totalRecords seems to count something else (%s)",
                        mismatch,
                    )
                yield buffer
                return
        if not earlier:
            logger.info("The listing is read once more: %s", mismatch)
        earlier = identifiers
    raise FsmResponseError(
        "nothing is exported: two readings of the listing differ from each other and from the "
        f"service's totals. {mismatch}. Retry when fewer records are changing"
    )


def format_for(name: str, schema: Schema, *, quote_formulas: bool) -> tuple[Encoder, Writer]:
    """Return what encodes the rows of an entry, and what writes chunks of such entries to a file.

    :raises FsmInputError: if the library that it needs is not installed.
    """
    if name != "parquet":
        encode = _csv_encoder(quote_formulas) if name == "csv" else _json_encoder(schema)
        header = [[encode([schema.names])]] if name == "csv" else []
        return encode, lambda file, chunks: file.writelines(map(b"".join, chain(header, chunks)))
    if not find_spec("pyarrow"):
        raise FsmInputError(
            "destination: a .parquet file needs pyarrow: install airflow-provider-fsm[parquet], "
            "or choose .jsonl or .csv"
        )
    return _encode_cells, lambda file, chunks: _write_parquet(file, schema, chunks)


def _json_encoder(schema: Schema) -> Encoder:
    names = schema.names
    return lambda rows: b"".join(
        [to_json(dict(zip(names, row, strict=True))) + b"\n" for row in rows]
    )


def _csv_encoder(quote_formulas: bool) -> Encoder:
    """RFC 4180 in UTF-8; csv's writer returns what its file's ``write`` returns."""
    echo: Any = SimpleNamespace(write=str)
    writer: Any = csv.writer(echo)

    def quoted(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and cell[:1] in FORMULAS else cell

    def encode(rows: list[Row]) -> bytes:
        cells = [map(quoted, row) for row in rows] if quote_formulas else rows
        return "".join(map(writer.writerow, cells)).encode()

    return encode


def _encode_cells(rows: list[Row]) -> bytes:
    return marshal.dumps(
        [*chain.from_iterable(rows)], 2
    )  # later versions encode equal rows differently


def _write_parquet(file: BinaryIO, schema: Schema, chunks: Iterable[list[bytes]]) -> None:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    types = {
        "integer": pyarrow.int64(),
        "text": pyarrow.string(),
        "time": pyarrow.timestamp("us", tz="UTC"),
    }
    columns = pyarrow.schema([(column.name, types[column.kind]) for column in schema.columns])
    width, pool = (
        len(columns),
        pyarrow.system_memory_pool(),
    )  # the default one returns little memory
    with parquet.ParquetWriter(file, columns, compression="zstd") as writer:
        for chunk in chunks:
            cells = [*chain.from_iterable(map(marshal.loads, chunk))]
            arrays = [pyarrow.array(cells[i::width], memory_pool=pool) for i in range(width)]
            writer.write_table(pyarrow.table(arrays, schema.names).cast(columns))
