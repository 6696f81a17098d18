"""Listings as files: records as rows with typed columns, the same for any data, sorted and written.

A record becomes rows of values, and these become bytes (:class:`EncodedRecord`). A
:class:`SortBuffer` sorts them, on the disk. A writer writes them to the file.
"""

import csv
import gc
import hashlib
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from itertools import chain, product
from operator import attrgetter, itemgetter
from typing import Any, BinaryIO, NamedTuple, get_args

from pydantic import AwareDatetime
from pydantic_core import from_json, to_json, to_jsonable_python

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
"""Makes bytes of the rows of a record."""
Writer = Callable[[BinaryIO, Iterable[list[bytes]]], None]
"""Writes chunks of what its encoder made to a file."""

_CREATE = "CREATE TABLE records (id INTEGER PRIMARY KEY, sort_key, version, row_count, content)"
_ADD = """INSERT INTO records VALUES (?, ?, ifnull(?, ''), ?, ?) ON CONFLICT (id) DO UPDATE SET
    sort_key = excluded.sort_key, version = excluded.version,
    row_count = excluded.row_count, content = excluded.content
    WHERE (excluded.version, excluded.content) > (version, content)"""


class Column(NamedTuple):
    """A column.

    :param path: the attributes that lead to the value, joined by dots.
    :param kind: ``integer`` (64 bits), ``text``, or ``time``: ISO 8601 in UTC with microseconds.
    """

    name: str
    path: str
    kind: str


def _integer_cell(value: Any) -> int:
    if type(value) is not int or value.bit_length() > 63:
        raise TypeError
    return value


def _text_cell(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _time_cell(value: Any) -> str:
    if type(value) is not datetime:
        raise TypeError
    text: str = to_jsonable_python(value)  # with isoformat, an export would take 12 % longer
    if not text.endswith("Z"):
        text = to_jsonable_python(value.astimezone(UTC))
    return text if "." in text else f"{text[:-1]}.000000Z"


_CELLS: dict[str, Callable[[Any], int | str]] = {
    "integer": _integer_cell,
    "text": _text_cell,
    "time": _time_cell,
}
"""By a column's kind, what makes its cell of a value; all raise TypeError for another type."""
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
        self._parsers = {column.name: _CELLS[column.kind] for column in columns}
        self._usual_values = _UsualValues(columns)

    def row(self, record: Record) -> Row:
        values = self._usual_values.read(record)
        if values is not None:
            return [*values, None]
        fitting: dict[str, int | str] = {}
        others: dict[str, Any] = {}
        self._distribute(record, "", fitting, others)
        extra = None
        if others:
            in_order = dict(sorted(others.items()))
            extra = to_json(in_order, by_alias=True, inf_nan_mode="null").decode()
        return [*map(fitting.get, self._parsers), extra]

    def _distribute(
        self, record: Record, prefix: str, fitting: dict[str, int | str], others: dict[str, Any]
    ) -> None:
        """Put each value of a record into ``fitting``, by its column, or into ``others``."""
        for attribute in type(record).model_fields:
            column = f"{prefix}{wire_name(attribute)}"
            value = getattr(record, attribute)
            if value is None or column == self._without:
                continue
            if isinstance(value, Record):
                self._distribute(value, f"{column}_", fitting, others)
                continue
            try:
                fitting[column] = self._parsers[column](value)
            except (KeyError, TypeError, OverflowError):  # the last: at the end of the calendar
                others[column] = value
        for name, value in (record.model_extra or {}).items():
            others[prefix + name] = value


class _UsualValues:
    """The values of a record that fits its columns, as nearly all do.

    It asks a record for all values at once. An export to JSON Lines takes 22 microseconds a form;
    without this it would take 55.
    """

    def __init__(self, columns: list[Column]) -> None:
        self._values = attrgetter(*[column.path for column in columns])
        objects = {column.path.rpartition(".")[0] for column in columns}
        self._extras = attrgetter(*[f"{path}.__pydantic_extra__".lstrip(".") for path in objects])
        kinds = [column.kind for column in columns]
        # Each kind of record has several texts: of a single index, itemgetter would give no tuple.
        self._texts = itemgetter(*[index for index, kind in enumerate(kinds) if kind == "text"])
        self._parsers = {index: _CELLS[kind] for index, kind in enumerate(kinds) if kind != "text"}

    def read(self, record: Record) -> Row | None:
        """Return a record's values by column; None if one does not fit, or has no column."""
        try:
            values = list(self._values(record))
            extras = self._extras(record)
            for index, parse in self._parsers.items():
                if values[index] is not None:
                    values[index] = parse(values[index])
        except (AttributeError, TypeError, OverflowError):
            return None
        for text in self._texts(values):
            if text is not None and type(text) is not str:
                return None
        return None if any(extras) else values


def _columns_for(model: type[Record], prefix: str = "", path: str = "") -> Iterator[Column]:
    for attribute, field in model.model_fields.items():
        name = f"{prefix}{wire_name(attribute)}"
        kind: Any = field.annotation
        while get_args(kind):  # X for X | None or list[X] | None, where X may be annotated
            kind = get_args(kind)[0]
        if isinstance(kind, type) and issubclass(kind, Record):
            yield from _columns_for(kind, f"{name}_", f"{path}{attribute}.")
        else:
            yield Column(name, f"{path}{attribute}", _KINDS.get(kind, "text"))


class EncodedRecord(NamedTuple):
    """A record's rows, as bytes for a file.

    :param id: 64 bits; of several records with one id, the greatest ``(version, content)`` stays.
    :param sort_key: records are sorted by it, None first, then by ``id``.
    :param row_count: number of rows in ``content``.
    """

    id: int
    sort_key: int | str | None
    version: str | None
    row_count: int
    content: bytes


def encode_forms(forms: Iterable[Form], schema: Schema, encode: Encoder) -> Iterator[EncodedRecord]:
    """Encode each form; of several versions, the sort buffer keeps the last updated."""
    created = schema.names.index("createdOnDateTime")
    updated = schema.names.index("lastUpdatedOnDateTime")
    for form in forms:
        row = schema.row(form)
        yield EncodedRecord(form.id, row[created], row[updated], 1, encode([row]))


def encode_asset_fields(
    fields: Iterable[AssetDynamicField], schema: Schema, encode: Encoder
) -> Iterator[EncodedRecord]:
    """Encode each record of a field, with a row for each value in each use.

    A field may have several records, so what tells them apart is their content.
    """
    for field in fields:
        rows = []
        for value, use in product(_elements(field.values), _elements(field.used_by)):
            with_one_value = field.model_copy(update={"values": value, "used_by": use})
            rows.append(schema.row(with_one_value))
        content = encode(rows)
        digest = int.from_bytes(hashlib.sha256(content).digest()[:8]) >> 1
        yield EncodedRecord(digest, field.dynamic_field_id, "", len(rows), content)


def _elements(value: Any) -> list[Any]:
    """Return the elements of a list: None for an empty list, and itself for what is no list."""
    if not isinstance(value, list):
        return [value]
    return value or [None]


class SortBuffer:
    """Records in a nameless file, which disappears with the process, even one that is killed.

    It is filled once, and then read in order. Who makes it closes it.

    :ivar rows: how many rows :meth:`chunks` has yielded.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode=OFF")
        self._database.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        self._database.execute(_CREATE)
        self.rows: int = 0

    def close(self) -> None:
        self._database.close()

    def fill(self, records: Iterable[EncodedRecord]) -> None:
        self._database.execute("BEGIN")
        try:
            with _rare_garbage_collections():
                self._database.executemany(_ADD, _logging_progress(records))
        except OverflowError:
            raise FsmResponseError(
                "nothing is exported: an identifier has more than 64 bits"
            ) from None
        self._database.execute("CREATE INDEX sorted ON records (sort_key, id)")

    def digest_of_identifiers(self) -> bytes:
        digest = hashlib.sha256()
        for (identifier,) in self._database.execute("SELECT id FROM records ORDER BY id"):
            digest.update(b"%d," % identifier)
        return digest.digest()

    def chunks(self) -> Iterator[list[bytes]]:
        """Yield the content, sorted by ``sort_key`` and ``id``, and count its rows.

        A chunk never splits a record.
        """
        chunk = []
        size = 0
        query = "SELECT row_count, content FROM records ORDER BY sort_key, id"
        for row_count, content in self._database.execute(query):
            self.rows += row_count
            chunk.append(content)
            size += len(content)
            if size >= CHUNK_BYTES:
                yield chunk
                chunk = []
                size = 0
        if chunk:
            yield chunk


@contextmanager
def _rare_garbage_collections() -> Iterator[None]:
    """Let Python collect garbage rarely: else each page's records, without cycles, start it.

    An export of 40,000 forms takes 0.91 s of a task's process; without this it would take 1.15 s.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(10_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _logging_progress(records: Iterable[EncodedRecord]) -> Iterator[EncodedRecord]:
    for number, record in enumerate(records, start=1):
        yield record
        if number % PROGRESS_EVERY == 0:
            logger.info("%s records listed", number)


@contextmanager
def read_completely(
    list_records: Callable[[], Listing], encode: Callable[[Listing], Iterable[EncodedRecord]]
) -> Iterator[SortBuffer]:
    """Yield a buffer of a listing, as complete as the service's totals can tell.

    If their number differs, the listing is read once more. That reading is good if it agrees with
    its totals, or has the records of the first one.

    :raises FsmResponseError: if it is not good.
    """
    with closing(SortBuffer()) as buffer:
        listing = list_records()
        buffer.fill(encode(listing))
        mismatch = listing.mismatch
        if mismatch is None:
            yield buffer
            return
        identifiers = buffer.digest_of_identifiers()
    logger.info("The listing is read once more: %s", mismatch)
    with closing(SortBuffer()) as buffer:
        listing = list_records()
        buffer.fill(encode(listing))
        mismatch = listing.mismatch
        if mismatch is not None:
            if buffer.digest_of_identifiers() != identifiers:
                raise FsmResponseError(
                    "nothing is exported: two readings of the listing differ from each other and "
                    f"from the service's totals. {mismatch}. Retry when fewer records are changing"
                )
            logger.warning(
                "Two readings of the listing gave the same records, which are exported: "
                "the service's meta.totalRecords seems to count something else (%s)",
                mismatch,
            )
        yield buffer


def format_for(
    name: str, schema: Schema, quote_formulas: bool, encoding: str
) -> tuple[Encoder, Writer]:
    """Return the encoder and the writer of a format.

    :param name: ``jsonl``, ``csv`` or ``parquet``.
    :param encoding: of CSV: ``utf-8``, or ``utf-8-sig`` with a byte-order mark.
    :raises FsmInputError: if the library that it needs is not installed.
    """
    if name == "jsonl":
        return partial(_encode_json, schema), _write_text
    if name == "csv":
        return _csv_format(schema, quote_formulas, encoding)
    if not find_spec("pyarrow"):
        raise FsmInputError(
            "destination: a .parquet file needs pyarrow: install airflow-provider-fsm[parquet], "
            "or choose .jsonl or .csv"
        )
    return _encode_cells, partial(_write_parquet, schema)


def _write_text(file: BinaryIO, chunks: Iterable[list[bytes]]) -> None:
    for chunk in chunks:
        file.write(b"".join(chunk))


def _encode_json(schema: Schema, rows: list[Row]) -> bytes:
    lines = [to_json(dict(zip(schema.names, row, strict=True))) + b"\n" for row in rows]
    return b"".join(lines)


def _csv_format(schema: Schema, quote_formulas: bool, encoding: str) -> tuple[Encoder, Writer]:
    """RFC 4180 in UTF-8."""
    csv_writer: Any = csv.writer(_ReturnsText())

    def encode(rows: list[Row]) -> bytes:
        if quote_formulas:
            rows = [_quote_formulas(row) for row in rows]
        return "".join(map(csv_writer.writerow, rows)).encode()

    def write(file: BinaryIO, chunks: Iterable[list[bytes]]) -> None:
        file.write(csv_writer.writerow(schema.names).encode(encoding))
        _write_text(file, chunks)

    return encode, write


class _ReturnsText:
    """A file whose ``write`` returns the text: csv's writer returns what that does."""

    def write(self, text: str) -> str:
        return text


def _quote_formulas(row: Row) -> Row:
    quoted = []
    for cell in row:
        is_formula = isinstance(cell, str) and cell[:1] in FORMULAS
        quoted.append(f"'{cell}" if is_formula else cell)
    return quoted


def _encode_cells(rows: list[Row]) -> bytes:
    """Encode the cells of rows, one after the other."""
    return to_json(list(chain.from_iterable(rows)))


def _write_parquet(schema: Schema, file: BinaryIO, chunks: Iterable[list[bytes]]) -> None:
    """Write each chunk as a row group."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    types = {
        "integer": pyarrow.int64(),
        "text": pyarrow.string(),
        "time": pyarrow.timestamp("us", tz="UTC"),
    }
    columns = pyarrow.schema([(column.name, types[column.kind]) for column in schema.columns])
    width = len(columns)
    pool = pyarrow.system_memory_pool()  # the default one returns little memory
    with parquet.ParquetWriter(file, columns, compression="zstd") as writer:
        for chunk in chunks:
            cells = []
            for content in chunk:
                cells.extend(from_json(content, cache_strings="none"))
            arrays = [
                pyarrow.array(cells[start::width], memory_pool=pool) for start in range(width)
            ]
            writer.write_table(pyarrow.table(arrays, schema.names).cast(columns))
