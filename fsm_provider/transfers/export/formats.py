"""File formats: how each encodes a row, and writes a file of many rows."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from io import BytesIO, RawIOBase
from typing import Any, NamedTuple

from pydantic_core import to_json

from fsm_provider.api.errors import FsmInputError
from fsm_provider.transfers.export.schema import Row, Schema


class Format(NamedTuple):
    """A format.

    :param encoder: makes a function that encodes a row, for a schema.
    :param write: writes a file of encoded rows; a chunk never splits a row.
    """

    encoder: Callable[[Schema], Callable[[Row], bytes]]
    write: Callable[[RawIOBase, Schema, Iterable[bytes]], None]


def format_for(name: str) -> Format:
    """Return the format of that name.

    :raises FsmInputError: if the library that it needs is not installed.
    """
    if name == "parquet" and not find_spec("pyarrow"):
        raise FsmInputError(
            "format: 'parquet' needs pyarrow: install airflow-provider-fsm[parquet], or choose jsonl or csv"
        )
    return _FORMATS[name]


def _json_encoder(schema: Schema) -> Callable[[Row], bytes]:
    names = schema.names

    def encode(row: Row) -> bytes:
        return to_json(dict(zip(names, row, strict=True))) + b"\n"

    return encode


def _write_json(file: RawIOBase, schema: Schema, chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        file.write(chunk)


class _Echo:
    def write(self, text: str) -> str:
        return text


def _csv_encoder(schema: Schema) -> Callable[[Row], bytes]:
    """RFC 4180 in UTF-8; csv's writer returns what its file's ``write`` returns."""
    writer: Any = csv.writer(_Echo())

    def encode(row: Row) -> bytes:
        line: str = writer.writerow(row)
        return line.encode()

    return encode


def _write_csv(file: RawIOBase, schema: Schema, chunks: Iterable[bytes]) -> None:
    file.write(_csv_encoder(schema)(list(schema.names)))
    _write_json(file, schema, chunks)


def _write_parquet(file: RawIOBase, schema: Schema, chunks: Iterable[bytes]) -> None:
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


_FORMATS = {
    "jsonl": Format(_json_encoder, _write_json),
    "csv": Format(_csv_encoder, _write_csv),
    "parquet": Format(_json_encoder, _write_parquet),
}
