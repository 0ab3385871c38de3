"""Reads and writes the manifest of an export: its content as plain JSON, written last and at once.

`.unfinished/` beside it holds the plan of the batch that is being written. Once the batch's files are whole, it also
holds the next manifest. A run that finds that manifest puts its files in place.
"""

import os
import re
import uuid
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from raftlog.cluster.api.status import DIGEST_FORMAT
from raftlog.cluster.api.values import Position
from raftlog.spark_export.columns.schema import ARROW, SCHEMA_VERSION
from raftlog.spark_export.errors import CannotWriteError, NotCheckedError, UsageError
from raftlog.spark_export.export.cluster_digest import Digests
from raftlog.spark_export.export.place import Place, StorePlace

FORMAT: Final = "raftlog-export"
VERSION: Final = 1
NAME: Final = "manifest.json"
DATA: Final = "log"
INTERNAL: Final = "internal"
"""Of an export of user records: where the other records are, which prove it."""
UNFINISHED: Final = ".unfinished"
PLAN: Final = "plan.json"
NEXT: Final = "next.json"
_FILE: Final = re.compile(r"index-(\d{16})-(\d{16})(?:-[0-9a-f]{32})?\.parquet")
"""In a store there is the number of the writer too: it has no rename, so every writer has names of its own."""

T = TypeVar("T")

PartitionBy = Literal["none", "index", "day"]
Table = Literal["parquet", "delta"]
Kept = Literal["user", "all"]


class Layout(msgspec.Struct, frozen=True):
    """How the rows are laid out: as what kind of table, in which folders, how many go into one file, and which of them
    are in `log/`. The others are in `internal/`, in a file for each file of `log/`."""

    table: Table = "parquet"
    partition_by: PartitionBy = "none"
    partition_records: int = 10_000_000  # of one folder, when partitioned by index
    records_per_file: int = 500_000
    records: Kept = "all"

    @property
    def column(self) -> str | None:
        """The name of the partition column, if there is one."""
        return {"none": None, "index": "index_from", "day": "day"}[self.partition_by]


class Companion(msgspec.Struct, frozen=True):
    """The file in `internal/` with the records of a range that are no user records, in order."""

    name: str
    rows: int
    bytes: int
    sha256: str


class FileEntry(msgspec.Struct, frozen=True):
    """One Parquet file: the records `first` to `last`, in order. Its name is relative to the folder.

    Where it has a companion, it holds the user records of that range alone.
    """

    name: str
    first: int
    last: int
    rows: int
    user: int  # user records among them
    bytes: int
    sha256: str
    time_min_ms: int  # of all records of the range
    time_max_ms: int
    internal: Companion | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The files of the range; the one that a reader of `log/` sees comes last."""
        return (self.name,) if self.internal is None else (self.internal.name, self.name)

    @property
    def count(self) -> int:
        """How many records the files of the range hold."""
        return self.rows + (0 if self.internal is None else self.internal.rows)


class Records(msgspec.Struct, frozen=True):
    """How many records; `total` = `user` + `internal`."""

    total: int
    user: int
    internal: int


class Column(msgspec.Struct, frozen=True):
    """A column and its Arrow type."""

    name: str
    type: str


class Manifest(msgspec.Struct, frozen=True):
    """Everything about what an export holds. The range is `first` to `last`, both included."""

    log: str
    position: Position  # where the next batch, export or consumer goes on
    first: int
    last: int
    records: Records
    time_min_ms: int
    time_max_ms: int
    files: tuple[FileEntry, ...]  # of a Delta table in a folder none: its own log lists them
    columns: tuple[Column, ...]
    digests: Digests
    layout: Layout
    created_ms: int
    updated_ms: int
    software: str
    format: str = FORMAT
    version: int = VERSION
    schema_version: int = SCHEMA_VERSION


class Plan(msgspec.Struct, frozen=True):
    """The batch that is being written: kept beside its files so that another run goes on with the very same."""

    log: str
    first: int
    last: int
    layout: Layout
    digests: Digests | None = None
    version: int = VERSION


class NextStep(msgspec.Struct, frozen=True):
    """A batch or a compaction whose files are whole. The remaining steps put them in place and write the manifest."""

    manifest: Manifest
    run: str  # the folder in `.unfinished` that holds the files
    added: tuple[FileEntry, ...]
    replaces: bool = False  # the run's folder holds all files, and takes the place of `log/`


class _AnyManifest(msgspec.Struct):
    """What every version of a manifest has."""

    format: str
    version: int
    schema_version: int


_KNOWN: Final = msgspec.json.Decoder(_AnyManifest)
_MANIFEST: Final = msgspec.json.Decoder(Manifest)
_PLAN: Final = msgspec.json.Decoder(Plan)
_NEXT: Final = msgspec.json.Decoder(NextStep)


def columns() -> tuple[Column, ...]:
    """The columns as this version writes them."""
    return tuple(Column(field.name, str(field.type)) for field in ARROW)


def file_name(first: int, last: int) -> str:
    """The name of the file that holds these records."""
    return f"index-{first:016d}-{last:016d}.parquet"


def written_by(entry: FileEntry, writer: str) -> FileEntry:
    """The entry with the names that the files of this writer have in a store."""
    own, beside = entry.name.replace(".parquet", f"-{writer}.parquet"), entry.internal
    if beside is not None:
        beside = msgspec.structs.replace(beside, name=beside.name.replace(".parquet", f"-{writer}.parquet"))
    return msgspec.structs.replace(entry, name=own, internal=beside)


def range_of(name: str) -> tuple[int, int] | None:
    """The records that a file of that name holds, or None where it is none of ours."""
    found = _FILE.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def as_text(value: msgspec.Struct) -> bytes:
    """The bytes of a manifest or a plan."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def write_aside(path: Path, value: msgspec.Struct) -> None:
    """Writes a file so that it is there whole or not at all, also after a power failure. Raises CannotWriteError."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(as_text(value))
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise CannotWriteError(
            f"{path} cannot be written: {error.strerror}; free disk space or fix the folder, and run the same "
            f"command again"
        ) from error


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_plan(folder: Place) -> Plan | None:
    """The plan of the batch under way in that folder. Raises UsageError where it cannot be read."""
    plan = _read_unfinished(folder, PLAN, _PLAN)
    if plan is not None and plan.version != VERSION:
        raise UsageError(
            f"the unfinished batch in {folder} is of version {plan.version}, this raftlog writes {VERSION}: finish it "
            f"with the raftlog that began it, or remove {folder / UNFINISHED}"
        )
    return plan


def read_next(folder: Place) -> NextStep | None:
    """The batch that is whole but not yet in place. Raises UsageError if it cannot be read."""
    return _read_unfinished(folder, NEXT, _NEXT)


def _read_unfinished(folder: Place, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    path = folder / UNFINISHED / name
    try:
        return decoder.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise UsageError(f"{folder} is a file: name a folder") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{path} is damaged ({error}); remove {folder / UNFINISHED} to begin that batch again"
        ) from error


def find_manifest(folder: Place) -> Manifest | None:
    """The manifest, or None where there is none. Raises NotCheckedError where it cannot be trusted."""
    path = folder / NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise NotCheckedError(f"{path} cannot be read: {error}") from error
    return as_manifest(path, text)


def as_manifest(path: Place, text: bytes) -> Manifest:
    """The manifest that these bytes are. Raises NotCheckedError where it cannot be trusted."""
    try:
        known = _KNOWN.decode(text)
        if (known.format, known.version, known.schema_version) != (FORMAT, VERSION, SCHEMA_VERSION):
            raise NotCheckedError(
                f"{path} is of format {known.format} version {known.version}, columns version "
                f"{known.schema_version}; this raftlog knows {FORMAT} {VERSION}, {SCHEMA_VERSION}: use the one that "
                f"wrote it, or export again"
            )
        manifest = _MANIFEST.decode(text)
    except msgspec.MsgspecError as error:
        raise NotCheckedError(
            f"{path} is no manifest of an export ({error}): put the right one back, or export into a new place"
        ) from error
    if manifest.digests.format != DIGEST_FORMAT:
        raise NotCheckedError(
            f"{path} has digests of format {manifest.digests.format}, this raftlog knows {DIGEST_FORMAT}: use the one "
            "that wrote it, or export again"
        )
    return manifest


def internal_files(folder: Place, manifest: Manifest) -> list[Path] | list[StorePlace]:
    """The files of `internal/` up to the end of the manifest."""
    if isinstance(folder, StorePlace):
        return [folder / entry.internal.name for entry in manifest.files if entry.internal is not None]
    found = {path: range_of(path.name) for path in sorted((folder / INTERNAL).glob("**/*.parquet"))}
    return [path for path, indexes in found.items() if indexes is not None and indexes[1] <= manifest.last]


def read_manifest(folder: Place) -> Manifest:
    """The manifest of an export. Raises NotCheckedError where there is none, or it cannot be trusted."""
    manifest = find_manifest(folder)
    if manifest is not None:
        return manifest
    if (folder / UNFINISHED).exists():
        raise NotCheckedError(
            f"the export in {folder} is not finished: run the same `raftlog export --to {folder}` again to go on"
        )
    raise NotCheckedError(f"{folder} holds no export: there is no {NAME}")


def contradictions(manifest: Manifest) -> list[str]:
    """Where the manifest does not even agree with itself."""
    found = []
    expected = manifest.first
    for entry in manifest.files:
        indexes = (entry.first, entry.last)
        if (
            entry.first != expected
            or entry.last - entry.first + 1 != entry.count
            or range_of(Path(entry.name).name) != indexes
        ):
            found.append(f"the manifest lists {entry.name} with {entry.count} rows where index {expected} is due")
        expected = entry.last + 1
        is_split = entry.internal is not None
        if is_split != (manifest.layout.records == "user") or (is_split and entry.user != entry.rows):
            found.append(f"the manifest's layout and its entry of {entry.name} are of different records")
    if manifest.layout.table == "parquet" and expected != manifest.last + 1:
        found.append(f"the manifest's files end before index {expected}, its range at {manifest.last}")
    expected = manifest.first
    for part in manifest.digests.parts:
        if part.first != expected:
            found.append(f"the manifest's digests have a part from index {part.first} on where {expected} is due")
        expected = part.last + 1
    if expected != manifest.last + 1:
        found.append(f"the manifest's digests end before index {expected}, its range at {manifest.last}")
    if manifest.records.total != manifest.last - manifest.first + 1:
        found.append(f"the manifest counts {manifest.records.total} records in [{manifest.first}, {manifest.last}]")
    if manifest.records.user + manifest.records.internal != manifest.records.total:
        found.append("the manifest's user and internal records do not add up to its total")
    if manifest.position != Position(manifest.log, {"0": manifest.last + 1}):
        found.append(f"the manifest's position is not the one after index {manifest.last} of its log")
    if manifest.columns != columns():
        found.append("the manifest lists other columns than this version's")
    return found
