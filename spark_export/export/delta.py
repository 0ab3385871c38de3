"""Writes the export as a Delta Lake table in `log/`: one commit per batch, each exactly once by its transaction id.

The tasks write the Parquet files as for any export. A commit names the files in the table's own log, together with
(application id, version). The version is the batch's last index. A run that finds this version in the table knows that
the batch is committed. Needs the package `deltalake`, no jar.
"""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from raftlog.cluster.api.text import how_to_install
from raftlog.spark_export.columns.schema import ARROW
from raftlog.spark_export.errors import ExportError, NotCheckedError
from raftlog.spark_export.export.manifest import DATA, FileEntry, Layout, Manifest, Next

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


def commit(folder: Path, following: Next) -> None:
    """Commits the batch to the table in `log/`, which is made with the first one, unless it is in already."""
    require()
    from deltalake import CommitProperties, DeltaTable, Transaction

    manifest = following.manifest
    schema, column = _schema(manifest.layout), manifest.layout.column
    table = DeltaTable.create(
        str(folder / DATA),
        schema,
        mode="ignore",
        partition_by=column,
        name="raftlog",
        description=f"the log {manifest.log}, exported by raftlog",
    )
    name = application(manifest.log)
    if (table.transaction_version(name) or 0) >= manifest.last:
        return
    table.create_write_transaction(
        [_action(entry, manifest.layout) for entry in following.added],
        "append",
        schema,
        partition_by=column,
        commit_properties=CommitProperties(
            custom_metadata={"raftlog.first": following.added[0].first, "raftlog.last": manifest.last},
            app_transactions=[Transaction(name, manifest.last)],
        ),
    )


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


def files(folder: Path, manifest: Manifest) -> list[Path]:
    """The files of the table's newest version. Raises NotCheckedError where it is not the one of the manifest."""
    require()
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(str(folder / DATA))
    except DeltaError as error:
        raise NotCheckedError(f"{folder / DATA} is no Delta table: {error}") from error
    if table.transaction_version(application(manifest.log)) != manifest.last:
        raise NotCheckedError(
            f"the Delta table in {folder / DATA} is not at index {manifest.last} as the manifest is: run the same "
            f"`raftlog export --append --to {folder}` again to finish it"
        )
    return sorted(Path(unquote(urlsplit(uri).path)) if "://" in uri else Path(uri) for uri in table.file_uris())


def data_files(folder: Path, manifest: Manifest) -> list[Path]:
    """The Parquet files of an export of either kind. Raises NotCheckedError as `files`."""
    if manifest.layout.table == "delta":
        return files(folder, manifest)
    return [folder / entry.name for entry in manifest.files]


def file_rows(folder: Path) -> list[int]:
    """How many rows each file of the newest version has."""
    from deltalake import DeltaTable

    actions = pa.table(DeltaTable(str(folder / DATA)).get_add_actions(flatten=True))
    return [int(rows) for rows in actions.column("num_records").to_pylist()]


def compact(folder: Path, target_bytes: int | None = None) -> int:
    """Has the table rewrite its small files as larger ones, in one commit that changes no row; how many went."""
    require()
    from deltalake import DeltaTable

    return int(DeltaTable(str(folder / DATA)).optimize.compact(target_size=target_bytes)["numFilesRemoved"])
