"""Writes the export as a Delta Lake table in `log/`: one commit per batch, each exactly once by its transaction id.

The tasks write the Parquet files as for any export. A commit names the files in the table's own log, together with
(application id, version). The version is the batch's last index. A run that finds this version in the table knows that
the batch is committed. Needs the package `deltalake`, no jar.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa

from raftlog.cluster.api.text import how_to_install
from raftlog.cluster.stores import object_place
from raftlog.spark_export.columns.schema import ARROW
from raftlog.spark_export.errors import ExportError, NotCheckedError, UsageError
from raftlog.spark_export.export.manifest import DATA, NAME, FileEntry, Layout, Manifest, as_manifest, as_text
from raftlog.spark_export.export.place import Place, StorePlace, of_export

_MANIFEST: Final = "raftlog.manifest"
"""In each commit to a table in a store: the manifest then, with the files of that batch alone."""
LOG: Final = f"{DATA}/_delta_log/"
_COMMIT: Final = re.compile(re.escape(LOG) + r"\d{20}\.json")
_NAME: Final = "raftlog"
_PARTITION_TYPES: Final = {"day": pa.date32(), "index_from": pa.int64()}


class DeltaMissingError(ExportError):
    """The package that writes Delta tables is not installed."""

    exit_code = 8


def require() -> None:
    """Raises DeltaMissingError where the package is missing: before Spark is started for nothing."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise DeltaMissingError(
            f"a Delta table needs the package deltalake, which is not installed: {how_to_install('spark', 'delta')}"
        ) from error


def application(log_id: str) -> str:
    """The application id of this log's transactions in the table."""
    return f"raftlog-export {log_id}"


def commit(
    place: Place,
    manifest: Manifest,
    added: Sequence[FileEntry],
    due: int | None = None,
    notes: dict[str, Any] | None = None,
) -> None:
    """Commits the batch to the table in `log/`, which is made with the first one, unless it is in already.

    With `due` only if that is the last index in the very version of the table on which the commit is built. Raises
    CommitFailedError of deltalake where another commit of this log came after that version.
    """
    require()
    from deltalake import CommitProperties, DeltaTable, Transaction

    schema, column = _schema(manifest.layout), manifest.layout.column
    table = DeltaTable.create(
        str(place / DATA),
        schema,
        mode="ignore",
        partition_by=column,
        name=_NAME,
        description=f"the log {manifest.log}, exported by raftlog",
        storage_options=_options(place),
    )
    name = application(manifest.log)
    last = table.transaction_version(name) or 0
    if last >= manifest.last or due not in (None, last):
        return
    table.create_write_transaction(
        [_action(entry, manifest.layout) for entry in added],
        "append",
        schema,
        partition_by=column,
        commit_properties=CommitProperties(
            custom_metadata={"raftlog.first": added[0].first, "raftlog.last": manifest.last} | (notes or {}),
            app_transactions=[Transaction(name, manifest.last)],
        ),
    )


def commit_alone(place: StorePlace, before: Manifest | None, manifest: Manifest, added: Sequence[FileEntry]) -> bool:
    """Commits to a table in a store, with the manifest and these files in the commit; False if another run did.

    The transaction of the log in the table decides, as the table's own conditional writes do: one run's commit counts.
    """
    require()
    own = as_text(msgspec.structs.replace(manifest, files=tuple(added))).decode()
    due = 0 if before is None else before.last
    with _told(place, "CommitFailedError"):  # also raised if the answer to this commit was lost, and it was sent again
        commit(place, manifest, added, due, {_MANIFEST: own})
    return committed(place, before) == manifest


def committed(place: StorePlace, known: Manifest | None) -> Manifest | None:
    """The manifest by the commits of a table in a store that follow the `known` one. None: no batch is committed.

    Raises NotCheckedError where a commit is gone that is not in `known`, UsageError for another program's table.
    """
    require()
    table = None
    with _told(place, "TableNotFoundError"):
        table = _table(place)
    if table is None:
        return known
    if table.metadata().name != _NAME:
        raise UsageError(f"{place / DATA} is a Delta table of another program: name another prefix")
    due = 1 if known is None else known.last + 1
    batches: list[Manifest] = []
    for name in sorted(filter(_COMMIT.fullmatch, (place / DATA / "_delta_log").listed()), reverse=True):
        lines = [json.loads(line) for line in (place / name).read_bytes().splitlines()]
        notes: dict[str, Any] = next((line["commitInfo"] for line in lines if "commitInfo" in line), {})
        if notes.get("raftlog.last", due) < due:
            break
        if _MANIFEST in notes:
            batches.insert(0, as_manifest(place / name, notes[_MANIFEST].encode()))
    if not batches:
        return known
    files = (() if known is None else known.files) + tuple(entry for each in batches for entry in each.files)
    if files[0].first != batches[-1].first or any(one.last + 1 != next.first for one, next in pairwise(files)):
        raise NotCheckedError(
            f"the Delta table in {place / DATA} no longer has all commits of this log, and {place / NAME} lacks them "
            f"too: put that object back, or export into a new place"
        )
    return msgspec.structs.replace(batches[-1], files=files)


@contextmanager
def _told(place: Place, ends: str = "") -> Iterator[None]:
    """What deltalake says of a table in a store, as an error for people; an error of the kind `ends` just ends it."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        if isinstance(place, Path):
            raise
        if type(error).__name__ != ends:
            raise NotCheckedError(
                f"the Delta table in {place / DATA} cannot be read or changed: {str(error).partition(chr(10))[0]}"
            ) from error


def _options(place: Place) -> dict[str, str] | None:
    """What the table's own client of the store needs beside the environment."""
    if isinstance(place, Path):
        return None
    patience, is_s3 = f"{object_place.STORE_PATIENCE_S}s", place.root.startswith("s3://")
    found = {"timeout": patience, "retry_timeout": patience} | ({"conditional_put": "etag"} if is_s3 else {})
    with of_export():
        return found | object_place.options(place.root)


def _table(place: Place) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(str(place / DATA), storage_options=_options(place))


def _schema(layout: Layout) -> Any:
    from deltalake import Schema

    column = layout.column
    return Schema.from_arrow(ARROW if column is None else ARROW.append(pa.field(column, _PARTITION_TYPES[column])))


def _action(entry: FileEntry, layout: Layout) -> Any:
    from deltalake.transaction import AddAction

    path = Path(entry.name).relative_to(DATA).as_posix()
    values: dict[str, str | None] = {}
    if layout.column is not None:
        values[layout.column] = path.split("/")[0].partition("=")[2]
    stats = {
        "numRecords": entry.rows,
        "minValues": {"index": entry.first, "time": _iso(entry.time_min_ms)},
        "maxValues": {"index": entry.last, "time": _iso(entry.time_max_ms)},
        "nullCount": {"index": 0, "time": 0},
        "tightBounds": entry.internal is None,  # else these are the bounds of internal records, too
    }
    return AddAction(path, entry.bytes, values, int(time.time() * 1000), True, json.dumps(stats))


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def files(folder: Place, manifest: Manifest) -> list[Place]:
    """The files of the table's newest version. Raises NotCheckedError where it is not the one of the manifest."""
    require()
    from deltalake.exceptions import DeltaError

    try:
        table = _table(folder)
    except DeltaError as error:
        raise NotCheckedError(f"{folder / DATA} is no Delta table: {error}") from error
    if table.transaction_version(application(manifest.log)) != manifest.last:
        raise NotCheckedError(
            f"the Delta table in {folder / DATA} is not at index {manifest.last} as the manifest is: run the same "
            f"`raftlog export --append --to {folder}` again to finish it"
        )
    return sorted((_file(folder, uri) for uri in table.file_uris()), key=str)


def _file(folder: Place, uri: str) -> Place:
    if isinstance(folder, StorePlace):
        return folder / unquote(uri.removeprefix(f"{folder}/"))
    return Path(unquote(urlsplit(uri).path)) if "://" in uri else Path(uri)


def data_files(folder: Place, manifest: Manifest) -> list[Place]:
    """The Parquet files of an export of either kind. Raises NotCheckedError as `files`."""
    if manifest.layout.table == "delta":
        return files(folder, manifest)
    return [folder / entry.name for entry in manifest.files]


def file_sizes(folder: Place, manifest: Manifest) -> list[int]:
    """How many bytes each of them has."""
    if manifest.layout.table == "delta":
        return _of_files(folder, "size_bytes")
    return [entry.bytes for entry in manifest.files]


def file_rows(folder: Place) -> list[int]:
    """How many rows each file of the newest version has."""
    return _of_files(folder, "num_records")


def _of_files(folder: Place, column: str) -> list[int]:
    actions = pa.table(_table(folder).get_add_actions(flatten=True))
    return [int(value) for value in actions.column(column).to_pylist()]


def compact(folder: Place, target_bytes: int | None = None) -> int:
    """Has the table rewrite its small files as larger ones, in one commit that changes no row; how many went."""
    require()
    with _told(folder):
        return int(_table(folder).optimize.compact(target_size=target_bytes)["numFilesRemoved"])


def vacuum(place: StorePlace, age_s: float) -> None:
    """Deletes files that the table has not named for so long."""
    with _told(place):
        table, hours = _table(place), int(age_s // 3600)
        if table.vacuum(hours, enforce_retention_duration=False, full=True):  # a dry run: it makes no commit
            table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
