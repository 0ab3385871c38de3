"""Sorts the files of an import by how each is read: files that are read alike are of one kind; pure.

`raftlog.cluster.importer.files` calls it before anything is written. Each kind has its own schema in the log, so a
reader finds the columns of every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from raftlog.cluster.importer.formats.deciding import InputDecision
from raftlog.cluster.importer.formats.lines import InputColumn, InputFormat, InputOptions
from raftlog.cluster.importer.formats.rows import common_type


class FileKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How files are read, and the name by which queries find their records."""

    reading: InputOptions
    source: str


class ImportDecisions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an import decided when it began: its files, how each is read, and the options that the same command has."""

    files: tuple[str, ...]
    kinds: tuple[FileKind, ...]
    places: tuple[int, ...]
    options: dict[str, Any]


class FilePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in the files of an import, and the counts up to it. Offsets are bytes of the current file, hashes
    SHA-256 (hex)."""

    file: int = 0  # the number of files before the current one
    inode: int = 0  # of the current file, while it is followed
    offset: int = 0
    line: int = 1  # the first line after the offset
    hash: str = ""  # of the file up to `offset`
    rejected: int = 0
    rejected_bytes: int = 0  # size of the file of rejected lines
    without_time: int = 0  # records whose time could not be read
    latest_ms: int | None = None  # the newest time that the lines before it could have
    done: bool = False  # all files are imported


_position: Final = msgspec.json.Decoder(FilePosition).decode
_decisions: Final = msgspec.json.Decoder(ImportDecisions).decode


def as_position(kept: Any) -> FilePosition:
    """A position as the state of a copy has it; None is the beginning."""
    return _position(msgspec.json.encode(kept or {}))


def as_decisions(kept: Any) -> ImportDecisions:
    """The decisions as the state of a copy has them."""
    return _decisions(msgspec.json.encode(kept))


class FileKinds(NamedTuple):
    """The kinds of an import, and the place among them of the kind of each file."""

    kinds: tuple[FileKind, ...]
    places: tuple[int, ...]


def sorted_by_kind(names: Sequence[str], found: Sequence[InputDecision | None], source: str) -> FileKinds:
    """The kinds of the files; None is an empty file, which goes with the one before it.

    A single kind is named `source`, each of several by its first file. A file without rows takes a kind with the same
    names of columns, since its times cannot be read. A column gets the type that holds the values of all files.
    """
    members: dict[Any, list[int]] = {}
    places: list[Any] = [None] * len(names)
    for number, decided in enumerate(found):
        if decided is not None and decided.has_rows:
            places[number] = _key(decided.reading)
            members.setdefault(places[number], []).append(number)
    for number, decided in enumerate(found):
        if decided is not None and not decided.has_rows:
            alike = (key for key in members if replace(key, times=None) == _key(decided.reading))
            places[number] = next(alike, _key(decided.reading))
            members.setdefault(places[number], []).append(number)
    kinds, taken = [], set[str]()
    for numbers in members.values():
        alike_files = [each for number in numbers if (each := found[number]) is not None]
        first = names[numbers[0]]
        name = source if len(members) == 1 else Path(first).name
        name = first if name in taken else name
        taken.add(name)
        kinds.append(
            FileKind(replace(alike_files[0].reading, types=_types([each.types for each in alike_files])), name)
        )
    order = [*members]
    of: list[int] = []
    for key in places:
        of.append(order.index(key) if key is not None else of[-1] if of else 0)
    return FileKinds(tuple(kinds), tuple(of))


def _key(reading: InputOptions) -> InputOptions:
    """The reading without the parts that differ in a kind. The columns of Parquet and Arrow have exact types."""
    times = reading.times and replace(reading.times, latest_ms=None)
    types = reading.types if reading.format in (InputFormat.PARQUET, InputFormat.ARROW) else ()
    return replace(reading, times=times, types=types, charset="")


def _types(found: Sequence[Sequence[InputColumn]]) -> tuple[InputColumn, ...]:
    """The columns of all files. A type is empty where a file has no value in the column."""
    columns: dict[str, list[str]] = {}
    for types in found:
        for column in types:
            columns.setdefault(column.name, []).extend([column.type] if column.type else [])
    return tuple(InputColumn(name, common_type(types or ["string"])) for name, types in columns.items())
