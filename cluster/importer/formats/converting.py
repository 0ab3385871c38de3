"""Turns JSON arrays, Parquet and Arrow into lines of NDJSON, one object a row.

`raftlog.cluster.importer.inputs` calls it. The same input always gives the same bytes, so an import of it continues
exactly once like that of any file of lines.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Container, Iterable, Iterator
from typing import Any, BinaryIO, Final

import msgspec

from raftlog.cluster.importer.formats.lines import LONG_LINE_BYTES_MAX, InputColumn, InputError, pieces_of
from raftlog.cluster.importer.formats.rows import finite

ROWS_AT_ONCE: Final = 2_000
_BLANK: Final = " \t\r\n"


def json_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Each object of JSON arrays, or of objects one after the other, as one line. Raises InputError."""
    decoder, scan = codecs.getincrementaldecoder("utf-8")(), json.JSONDecoder().raw_decode
    text, at, number, line, is_array = "", 0, 0, 1, None
    source = iter(chunks)
    is_end = False
    while True:
        begin = at
        while at < len(text) and (text[at] in _BLANK or (text[at] == "," and (is_array or number))):
            at += 1
        line += text.count("\n", begin, at)
        if is_array is None and at < len(text):
            is_array = text[at] == "["
            at += is_array
            continue
        if is_array and text[at : at + 1] == "]":
            is_array, at = None, at + 1  # another array or object may follow
            continue
        end = -1
        if at < len(text):
            try:
                _, end = scan(text, at)
            except (ValueError, RecursionError) as error:
                if is_end or len(text) - at > LONG_LINE_BYTES_MAX:
                    why = error.msg if isinstance(error, json.JSONDecodeError) else error
                    raise InputError(
                        f"line {line}: value {number + 1} is not JSON, or cut: {why}; correct it, or give "
                        f"--format lines to keep every line as it is"
                    ) from error
        if end > 0 and (end < len(text) or is_end):  # a number at the end may go on in the next piece
            number += 1
            line += text.count("\n", at, end)
            yield text[at:end].replace("\r", " ").replace("\n", " ").encode() + b"\n"
            at = end
            continue
        if is_end:
            if is_array:
                raise InputError(f"line {line}: the array does not end after value {number}: the file is cut")
            return
        piece = next(source, None)
        is_end = piece is None
        try:
            text, at = text[at:] + decoder.decode(piece or b"", final=is_end), 0
        except UnicodeDecodeError as error:
            raise InputError(f"line {line} or later is not UTF-8: {error}; give --charset") from error


def parquet_lines(file: BinaryIO) -> tuple[tuple[InputColumn, ...], Iterator[bytes]]:
    """The columns of a Parquet file, and its rows as lines. Raises InputError."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"not a Parquet file: {error}") from error
    return _columns(table.schema_arrow), _rows(table.iter_batches(ROWS_AT_ONCE))


def arrow_lines(file: BinaryIO) -> tuple[tuple[InputColumn, ...], Iterator[bytes]]:
    """The columns of an Arrow file or stream, and its rows as lines. Raises InputError."""
    import pyarrow

    try:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        if is_file:
            opened = pyarrow.ipc.open_file(file)
            batches = (opened.get_batch(at) for at in range(opened.num_record_batches))
        else:
            opened = batches = pyarrow.ipc.open_stream(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"not an Arrow file or stream: {error}") from error
    return _columns(opened.schema), _rows(batches)


def _columns(schema: Any) -> tuple[InputColumn, ...]:
    return tuple(InputColumn(field.name, str(field.type)) for field in schema)


def _rows(batches: Iterable[Any]) -> Iterator[bytes]:
    import pyarrow

    try:
        for batch in batches:
            names = batch.schema.names
            if len({*names}) < len(names):
                raise InputError("two columns have the same name: rename one")
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                part = batch.slice(start, ROWS_AT_ONCE)
                cells = [_values(column) for column in part.columns]
                encode = msgspec.json.encode
                yield b"".join(
                    encode(dict(zip(names, row, strict=True)), enc_hook=_as_json) + b"\n"
                    for row in zip(*cells, strict=True)
                )
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"it cannot be read to its end: {error}") from error


def _values(column: Any) -> list[Any]:
    """The cells of a column as values that JSON carries without loss."""
    import pyarrow

    kind = column.type
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _values(column.dictionary_decode())
    if types.is_timestamp(kind):
        text = column.cast(pyarrow.string()).to_pylist()
        return [None if each is None else each.replace(" ", "T", 1) for each in text]
    if types.is_time(kind) or types.is_decimal(kind) or types.is_date(kind):
        return list(column.cast(pyarrow.string()).to_pylist())
    if types.is_duration(kind):
        return list(column.cast(pyarrow.int64()).to_pylist())
    if types.is_float16(kind):
        column = column.cast(pyarrow.float32())
        kind = column.type
    values: list[Any] = column.to_pylist()
    return [finite(each) for each in values] if types.is_floating(kind) or types.is_nested(kind) else values


def _as_json(value: Any) -> str:
    """A value that msgspec does not know, such as a time of pandas."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def rejected_lines(chunks: Iterable[bytes], files: Container[str] | None = None) -> Iterator[bytes]:
    """The lines in a file of rejected lines, as they were in the input, of all files or only of `files`.

    Raises InputError.
    """
    for number, line in enumerate(pieces_of(chunks), start=1):
        try:
            row = _decode_rejected(line)
        except msgspec.MsgspecError as error:
            raise InputError(f"line {number} is no rejected line of an import: {error}") from error
        if files is not None and row.file not in files:
            continue
        value = row.value.encode() if row.value is not None else base64.b64decode(row.value_b64 or "")
        yield value + b"\n"


class _RejectedRow(msgspec.Struct, frozen=True):
    value: str | None = None
    value_b64: str | None = None
    file: str | None = None


_decode_rejected: Final = msgspec.json.Decoder(_RejectedRow).decode
