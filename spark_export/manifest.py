"""The manifest of an export: what is in the folder, as plain JSON, written last and at once."""

import os
import re
import uuid
from pathlib import Path
from typing import Final

import msgspec

from cluster.wire import Position
from spark_export.cluster_digest import Digests
from spark_export.errors import NotCheckedError, UsageError
from spark_export.schema import ARROW, SCHEMA_VERSION

FORMAT: Final = "raftlog-export"
VERSION: Final = 1
NAME: Final = "manifest.json"
DATA: Final = "log"
UNFINISHED: Final = ".unfinished"
_FILE: Final = re.compile(r"index-(\d{16})-(\d{16})\.parquet")


class FileEntry(msgspec.Struct, frozen=True):
    """One Parquet file: the records `first` to `last`, in order. Its name is relative to the folder."""

    name: str
    first: int
    last: int
    rows: int
    user: int  # user records among them
    bytes: int
    sha256: str
    time_min_ms: int
    time_max_ms: int


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
    """Everything about a finished export. The range is `first` to `last`, both included."""

    log: str
    position: Position  # where the next export or consumer goes on
    first: int
    last: int
    records: Records
    time_min_ms: int
    time_max_ms: int
    files: list[FileEntry]
    columns: list[Column]
    digests: Digests | None  # None: the cluster no longer remembered them
    created_ms: int
    software: str
    format: str = FORMAT
    version: int = VERSION
    schema_version: int = SCHEMA_VERSION


class Plan(msgspec.Struct, frozen=True):
    """What an unfinished export will be: kept beside its files so that another run goes on with the very same."""

    log: str
    first: int
    last: int
    records_per_file: int
    digests: Digests | None = None
    format: str = "raftlog-export-plan"
    version: int = VERSION


def columns() -> list[Column]:
    """The columns as this version writes them."""
    return [Column(field.name, str(field.type)) for field in ARROW]


def file_name(first: int, last: int) -> str:
    """The name of the file that holds these records."""
    return f"index-{first:016d}-{last:016d}.parquet"


def range_of(name: str) -> tuple[int, int] | None:
    """The records that a file of that name holds, or None where it is none of ours."""
    found = _FILE.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def write_aside(path: Path, value: msgspec.Struct) -> None:
    """Writes a file so that it is there whole or not at all, also after a power failure."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with aside.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_plan(folder: Path) -> Plan | None:
    """The plan of an unfinished export in that folder. Raises UsageError where it cannot be read."""
    path = folder / UNFINISHED / "plan.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is damaged ({error}); remove {path.parent} to begin the export anew") from error


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished export. Raises NotCheckedError where there is none, or it cannot be trusted."""
    path = folder / NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        if (folder / UNFINISHED).exists():
            raise NotCheckedError(
                f"the export in {folder} is not finished: run the same `raftlog export --to {folder}` again to go on"
            ) from error
        raise NotCheckedError(f"{folder} holds no export: there is no {NAME}") from error
    except OSError as error:
        raise NotCheckedError(f"{path} cannot be read: {error}") from error
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.MsgspecError as error:
        raise NotCheckedError(f"{path} is no manifest of an export: {error}") from error
    if (manifest.format, manifest.version, manifest.schema_version) != (FORMAT, VERSION, SCHEMA_VERSION):
        raise NotCheckedError(
            f"{path} is of format {manifest.format} version {manifest.version}, columns version "
            f"{manifest.schema_version}; this raftlog knows {FORMAT} {VERSION}, {SCHEMA_VERSION}: use a newer one"
        )
    return manifest


def contradictions(manifest: Manifest) -> list[str]:
    """Where the manifest does not even agree with itself."""
    found = []
    expected = manifest.first
    for entry in manifest.files:
        if entry.first != expected or entry.last - entry.first + 1 != entry.rows or range_of(Path(entry.name).name) != (
            entry.first, entry.last,
        ):  # fmt: skip
            found.append(f"the manifest lists {entry.name} with {entry.rows} rows where index {expected} is due")
        expected = entry.last + 1
    if expected != manifest.last + 1:
        found.append(f"the manifest's files end before index {expected}, its range at {manifest.last}")
    if manifest.records.total != manifest.last - manifest.first + 1:
        found.append(f"the manifest counts {manifest.records.total} records in [{manifest.first}, {manifest.last}]")
    if manifest.records.user + manifest.records.internal != manifest.records.total:
        found.append("the manifest's user and internal records do not add up to its total")
    if manifest.position != Position(manifest.log, {"0": manifest.last + 1}):
        found.append(f"the manifest's position is not the one after index {manifest.last} of its log")
    if manifest.columns != columns():
        found.append("the manifest lists other columns than this version's")
    return found
