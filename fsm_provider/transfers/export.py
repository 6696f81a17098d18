"""Listings as files: rows of records, sorted on the local disk, then written in one of several formats."""

from __future__ import annotations

import csv
import hashlib
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from io import BytesIO
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

from pydantic_core import to_json

from fsm_provider.api.errors import FsmInputError, FsmResponseError
from fsm_provider.api.listing import Listing
from fsm_provider.api.models import AssetDynamicField, Form
from fsm_provider.transfers.schema import Row, Schema, one_of_each

logger: logging.Logger = logging.getLogger(__name__)

CACHE_KIB = 16 * 1024
"""Of the sort buffer, held in memory; the rest is on the disk."""
CHUNK_BYTES = 4 * 2**20
"""Bytes written at once; a Parquet row group is about as much JSON."""
PROGRESS_EVERY = 20_000
FORMULAS = frozenset("=+-@\t\r")
"""What begins a formula in a spreadsheet."""

_CREATE = """CREATE TABLE entries (
    id INTEGER PRIMARY KEY, sort_time TEXT, version TEXT, lines INTEGER, content BLOB
)"""
_ADD = """INSERT INTO entries VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    sort_time = excluded.sort_time, version = excluded.version,
    lines = excluded.lines, content = excluded.content
    WHERE (excluded.version, excluded.content) > (version, content)"""


class Entry(NamedTuple):
    """The rows of a record.

    :param id: 64 bits; of several entries with one id, the greatest ``(version, content)`` stays.
    :param sort_time: entries are sorted by it, then by ``id``.
    :param lines: number of rows in ``content``.
    """

    id: int
    sort_time: str
    version: str
    lines: int
    content: bytes


def entries_for_forms(
    forms: Iterable[Form], schema: Schema, encode: Callable[[Row], bytes]
) -> Iterator[Entry]:
    """Yield an entry for each form; of several versions, the sort buffer keeps the last updated."""
    columns = [schema.names.index(name) for name in ("createdOnDateTime", "lastUpdatedOnDateTime")]
    for form in forms:
        row = schema.row(form)
        created, updated = (str(row[column] or "") for column in columns)
        yield Entry(form.id, created, updated, 1, encode(row))


def entries_for_asset_fields(
    fields: Iterable[AssetDynamicField], schema: Schema, encode: Callable[[Row], bytes]
) -> Iterator[Entry]:
    """Yield an entry for each field, with a row for each value in each use, in the service's order."""
    for field in fields:
        rows = [schema.row(one) for one in one_of_each(field, "values", "used_by")]
        yield Entry(field.dynamic_field_id, "", "", len(rows), b"".join(map(encode, rows)))


class SortBuffer:
    """Entries in a nameless file, which disappears with the process, even one that is killed.

    SQLite puts it in ``SQLITE_TMPDIR`` or ``TMPDIR``, else in ``/var/tmp``. It is about as large as what is
    written from it.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", f"cache_size=-{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute(_CREATE)
        self.rows = 0

    def close(self) -> None:
        self._database.close()

    def fill(self, entries: Iterable[Entry]) -> None:
        self._database.execute("BEGIN")
        self._database.executemany(_ADD, _with_progress(entries))
        self._database.execute("CREATE INDEX sorted ON entries (sort_time, id)")

    def digest_of_identifiers(self) -> bytes:
        """Return a digest of the set of ids."""
        digest = hashlib.sha256()
        for (identifier,) in self._database.execute("SELECT id FROM entries ORDER BY id"):
            digest.update(b"%d," % identifier)
        return digest.digest()

    def chunks(self) -> Iterator[bytes]:
        """Yield the content, sorted by time and id, and count its rows; a chunk never splits an entry."""
        chunk, size = [], 0
        for lines, content in self._database.execute(
            "SELECT lines, content FROM entries ORDER BY sort_time, id"
        ):
            self.rows += lines
            chunk.append(content)
            size += len(content)
            if size >= CHUNK_BYTES:
                yield b"".join(chunk)
                chunk, size = [], 0
        if chunk:
            yield b"".join(chunk)


def _with_progress(entries: Iterable[Entry]) -> Iterator[Entry]:
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
                        "Two readings of the listing gave the same records, which are exported: the "
                        "service's meta.totalRecords seems to count something else (%s)",
                        mismatch,
                    )
                yield buffer
                return
        if not earlier:
            logger.info("The listing is read once more: %s", mismatch)
        earlier = identifiers
    raise FsmResponseError(
        "nothing is exported: two readings of the listing differ from each other and from the service's "
        f"totals. {mismatch}. Retry when fewer records are changing"
    )


class Format(NamedTuple):
    """How a row is encoded, and how a file of encoded rows is written; a chunk never splits a row."""

    encode: Callable[[Row], bytes]
    write: Callable[[BinaryIO, Iterable[bytes]], None]


def format_for(name: str, schema: Schema, *, quote_formulas: bool) -> Format:
    """Return the format with that suffix.

    :raises FsmInputError: if the library that it needs is not installed.
    """
    if name == "csv":
        encode = _csv_encoder(quote_formulas)
        return Format(
            encode, lambda file, chunks: _write_chunks(file, chain([encode([*schema.names])], chunks))
        )
    if name == "jsonl":
        return Format(_json_encoder(schema), _write_chunks)
    if not find_spec("pyarrow"):
        raise FsmInputError(
            "destination: a .parquet file needs pyarrow: install airflow-provider-fsm[parquet], or choose "
            ".jsonl or .csv"
        )
    return Format(_json_encoder(schema), lambda file, chunks: _write_parquet(file, schema, chunks))


def _json_encoder(schema: Schema) -> Callable[[Row], bytes]:
    names = schema.names

    def encode(row: Row) -> bytes:
        return to_json(dict(zip(names, row, strict=True))) + b"\n"

    return encode


class _Echo:
    def write(self, text: str) -> str:
        return text


def _csv_encoder(quote_formulas: bool) -> Callable[[Row], bytes]:
    """RFC 4180 in UTF-8; csv's writer returns what its file's ``write`` returns."""
    writer: Any = csv.writer(_Echo())

    def encode(row: Row) -> bytes:
        line: str = writer.writerow(row)
        return line.encode()

    def encode_quoted(row: Row) -> bytes:
        return encode(
            [f"'{cell}" if isinstance(cell, str) and cell[:1] in FORMULAS else cell for cell in row]
        )

    return encode_quoted if quote_formulas else encode


def _write_chunks(file: BinaryIO, chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        file.write(chunk)


def _write_parquet(file: BinaryIO, schema: Schema, chunks: Iterable[bytes]) -> None:
    """Write a row group for each chunk of JSON lines."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import json, parquet

    types = {"integer": pyarrow.int64(), "text": pyarrow.string(), "time": pyarrow.timestamp("us", tz="UTC")}
    columns = pyarrow.schema([(column.name, types[column.kind]) for column in schema.columns])
    parsing = json.ParseOptions(explicit_schema=columns, unexpected_field_behavior="error")
    pool = pyarrow.system_memory_pool()  # the default one returns little memory
    with parquet.ParquetWriter(file, columns, compression="zstd") as writer:
        for chunk in chunks:
            reading = json.ReadOptions(use_threads=False, block_size=len(chunk) + 1)
            writer.write_table(json.read_json(BytesIO(chunk), reading, parsing, pool))
