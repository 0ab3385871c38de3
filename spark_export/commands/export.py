"""Defines the commands that move and prove rows: export, export compact and verify.

They run in this process, or in Spark if there are many rows. Spark is imported only then. docs/spark.md has exit codes.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cluster.api.text import counted
from raftlog.cluster.cli.frame.option_groups import spread
from raftlog.cluster.cli.frame.stopping import StopSignal, interrupted
from raftlog.spark_export import errors
from raftlog.spark_export.commands import analyze
from raftlog.spark_export.commands.frame import (
    ClusterOptions,
    EngineOptions,
    RecordsChoice,
    reported,
    say,
    say_ending,
    start_engine,
    where,
)
from raftlog.spark_export.export.progress import bar

if TYPE_CHECKING:
    from raftlog.spark_export.export.cluster_digest import Digests
    from raftlog.spark_export.export.manifest import Layout, Manifest
    from raftlog.spark_export.export.place import Place


class Format(StrEnum):
    """What kind of table."""

    PARQUET = "parquet"
    DELTA = "delta"


class PartitionBy(StrEnum):
    """Into which folders."""

    NONE = "none"
    INDEX = "index"
    DAY = "day"


Folder = Annotated[str, typer.Argument(help="The folder of an export, or s3://BUCKET/PREFIX.", metavar="DIR")]
SummaryJson = Annotated[bool, typer.Option("--summary-json", help="Print the summary as one JSON object.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    export = typer.Typer(invoke_without_command=True, help=export_command.__doc__)
    export.callback()(spread(export_command))
    export.command("compact")(spread(compact_command))
    app.add_typer(export, name="export")
    app.command("verify")(spread(verify_command))
    analyze.register(app)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """Which files an export has."""

    form: Annotated[
        Format | None,
        typer.Option("--format", help="Files, or a Delta Lake table, which needs the extra delta. (default: parquet)"),
    ] = None
    partition_by: Annotated[
        PartitionBy | None,
        typer.Option(
            "--partition-by", help="Folders of so many indexes, or of a day (UTC, of the entry's time). (default: none)"
        ),
    ] = None
    partition_records: Annotated[
        int | None, typer.Option(min=1, help="Indexes in one folder, by index. (default: 10000000)")
    ] = None
    records_per_file: Annotated[
        int | None, typer.Option(min=1, help="Most records in one Parquet file. (default: 500000)")
    ] = None
    records: Annotated[
        RecordsChoice | None,
        typer.Option(
            "--records",
            help="user: DIR/log holds no repetitions, sessions and other internal records; these "
            "are in DIR/internal. (default: user)",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthOptions:
    """How an export goes on as the log grows."""

    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as the log grows, until Ctrl-C (or --to-index is reached).")
    ] = False
    append: Annotated[
        bool, typer.Option("--append", help="Go on with the export that is there, up to the end that the log has now.")
    ] = False
    batch_records: Annotated[
        int, typer.Option(min=1, help="With --follow or --append: most records that are put in place at once.")
    ] = 1_000_000
    every: Annotated[
        float, typer.Option(min=0, help="With --follow: seconds from one batch to the next, unless there is much.")
    ] = 5.0
    compact_files: Annotated[
        int, typer.Option(min=0, help="With --follow or --append: join small files once there are so many; 0: never.")
    ] = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryOptions:
    """The summary that is printed."""

    top_keys: Annotated[int, typer.Option(min=0, help="Show so many of the most frequent keys.")] = 0
    summary_json: SummaryJson = False


def export_command(
    context: typer.Context,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="The folder of the export, or s3://BUCKET/PREFIX (extra store); an unfinished export is continued.",
            metavar="DIR",
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--from", min=1, help="First index. (default: the oldest that is kept)")
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--to-index", min=1, help="Last index, the end of an entry. (default: the committed end)"),
    ] = None,
    *,
    cluster: ClusterOptions,
    engine: EngineOptions,
    layout: LayoutOptions,
    growth: GrowthOptions,
    shown: SummaryOptions,
) -> None:
    """Export the log to Parquet files or a Delta table, with a manifest that `raftlog verify` proves.

    After a kill at any moment, the same command continues. Each row is in DIR/log once, also for readers during the
    export.
    """
    if context.invoked_subcommand is not None:
        return
    started = time.monotonic()
    with reported():
        from raftlog.spark_export.export.delta import data_files
        from raftlog.spark_export.export.export import ExportRange, Mode, export, waiting
        from raftlog.spark_export.export.manifest import find_manifest
        from raftlog.spark_export.export.place import place_of
        from raftlog.spark_export.fetch.door import parse_endpoints

        if to is None:
            raise errors.UsageError("--to is missing: name the folder of the export")
        if growth.follow and growth.append:
            raise errors.UsageError("--follow and --append are two things: give one")
        folder = place_of(to)
        mode: Mode = "follow" if growth.follow else "append" if growth.append else "once"
        urls = parse_endpoints(where(context, cluster.endpoints))
        stop = StopSignal()
        wanted = ExportRange(
            urls,
            folder,
            first,
            last,
            _layout(folder, layout),
            mode,
            growth.batch_records,
            growth.every,
            growth.compact_files,
            cluster.timeout,
            stop,
        )
        before = find_manifest(folder)
        chosen = start_engine(engine, lambda: waiting(wanted))
        hearing = interrupted(stop, lambda: say_ending("after this batch")) if growth.follow else nullcontext()
        with bar("exporting") as tell, hearing:
            manifest = export(chosen, wanted, tell)
        counted = chosen.rows(data_files(folder, manifest)).top_keys(shown.top_keys) if shown.top_keys else []
        keys = [{"key": key.decode("utf-8", "backslashreplace"), "count": count} for key, count in counted]
        summary = _summary(manifest, before, folder, time.monotonic() - started) | {"top_keys": keys}
    if shown.summary_json:
        print(json.dumps(summary))
    else:
        _show_export(summary)


def compact_command(
    folder: Folder,
    *,
    engine: EngineOptions,
    summary_json: SummaryJson = False,
) -> None:
    """Join the small files of an export; readers of DIR/log see every row once meanwhile."""
    with reported():
        from raftlog.spark_export.export.compaction import compact
        from raftlog.spark_export.export.manifest import find_manifest
        from raftlog.spark_export.export.place import place_of

        where_to = place_of(folder)

        def records() -> int:
            found = find_manifest(where_to)
            return 0 if found is None else found.records.total

        before, after = compact(start_engine(engine, records), where_to)
    if summary_json:
        print(json.dumps({"folder": str(folder), "files_before": before, "files": after}))
    else:
        print(
            f"compacted {before} files to {after}"
            if after < before
            else f"nothing to compact: {counted(after, 'file')}"
        )


def verify_command(
    context: typer.Context,
    folder: Folder,
    offline: Annotated[
        bool, typer.Option("--offline", help="Compare with the digests in the manifest: not independent of it.")
    ] = False,
    *,
    cluster: ClusterOptions,
    engine: EngineOptions,
    summary_json: SummaryJson = False,
) -> None:
    """Prove that an export is what the cluster committed: its files are compared with the cluster's digests."""
    with reported():
        from raftlog.spark_export.export.cluster_digest import cluster_digests, range_digest
        from raftlog.spark_export.export.manifest import read_manifest
        from raftlog.spark_export.export.place import place_of
        from raftlog.spark_export.export.verify import verify
        from raftlog.spark_export.fetch.door import NodeRotation, bounds, parse_endpoints

        export = place_of(folder)
        manifest = read_manifest(export)
        digests = digest_of = None
        source = "the manifest"
        with ThreadPoolExecutor(1, "raftlog-digests") as asking:
            if not offline:
                source = "the cluster"
                urls = parse_endpoints(where(context, cluster.endpoints))

                def asked() -> "Digests":
                    with _not_checked():
                        return cluster_digests(
                            urls, manifest.log, manifest.first, manifest.last, patience_s=cluster.timeout
                        )

                def digest_of(first: int, last: int) -> Any:
                    return range_digest(urls, manifest.log, first, last, patience_s=cluster.timeout)

                with _not_checked():  # before minutes of hashing: is it this export's cluster?
                    bounds(NodeRotation(urls, cluster.timeout), is_linearizable=False, log_id=manifest.log)
                digests = asking.submit(asked)  # the nodes hash the log while this process hashes the files
            chosen = start_engine(engine, lambda: manifest.records.total)
            report = verify(chosen, export, digests, source, say, digest_of)
    summary = {
        "verified": report.is_right,
        "source": source,
        "log": manifest.log,
        "first": manifest.first,
        "last": manifest.last,
        "rows": report.rows,
        "log_digest": _digest(report.log),
        "state_digest": _digest(report.state),
        "findings": report.findings,
        "unproved": report.unproved,
    }
    if summary_json:
        print(json.dumps(summary))
    else:
        _show_verified(summary, offline)
    if not report.is_right:
        raise typer.Exit(errors.EXIT_NOT_VERIFIED)


# ---------------------------------------------------------------------------------------------------------------


def _layout(folder: "Place", options: LayoutOptions) -> "Layout":
    """The layout as far as it is given: the rest is as in the export that is there, or the default.
    Raises DeltaMissingError."""
    import msgspec

    from raftlog.spark_export.export.manifest import Layout, find_manifest, read_plan

    given = {"table" if name == "form" else name: value for name, value in asdict(options).items() if value is not None}
    found = find_manifest(folder) or read_plan(folder)
    layout = Layout(records="user") if found is None else found.layout
    layout = msgspec.structs.replace(
        layout, **{name: str(value) if isinstance(value, StrEnum) else value for name, value in given.items()}
    )
    if layout.table == "delta":
        from raftlog.spark_export.export.delta import require

        require()
    return layout


@contextmanager
def _not_checked() -> Iterator[None]:
    """Turns the answer that the cluster lacks the rows into the verdict that the export could not be compared."""
    try:
        yield
    except errors.DataLossError as error:
        raise errors.NotCheckedError(
            f"{error} (with --offline the export is compared with the digests in its own manifest)"
        ) from error


def _digest(digest: Any) -> dict[str, Any] | None:
    import msgspec

    return None if digest is None else dict(msgspec.to_builtins(digest))


def _summary(manifest: "Manifest", before: "Manifest | None", folder: "Place", seconds: float) -> dict[str, Any]:
    """The content of the export, and how fast this run added the rows that were missing `before`."""
    from raftlog.spark_export.export.delta import file_sizes

    sizes = file_sizes(folder, manifest)
    added = manifest.records.total - (before.records.total if before is not None else 0)
    return {
        "folder": str(folder),
        "log": manifest.log,
        "first": manifest.first,
        "last": manifest.last,
        "records": manifest.records.total,
        "user": manifest.records.user,
        "internal": manifest.records.internal,
        "added": added,
        "files": len(sizes),
        "bytes": sum(sizes),
        "format": manifest.layout.table,
        "partition_by": manifest.layout.partition_by,
        "seconds": round(seconds, 3),
        "records_per_second": round(added / seconds),
        "log_digest": _digest(manifest.digests.log),
        "state_digest": _digest(manifest.digests.state),
    }


def _show_export(summary: dict[str, Any]) -> None:
    added = f"{summary['added']} more, now " if summary["added"] < summary["records"] else ""
    print(
        f"exported {added}{counted(summary['records'], 'record')} ({summary['user']} of users, {summary['internal']} "
        f"internal), indexes {summary['first']} to {summary['last']}, to {counted(summary['files'], 'file')} "
        f"({summary['bytes'] / 1e6:.1f} MB) in {summary['seconds']:.1f} s"
    )
    for key in summary["top_keys"]:
        print(f"{key['count']:>10}  {key['key']}")
    print(f"prove it: raftlog verify {summary['folder']}")


def _show_verified(summary: dict[str, Any], offline: bool) -> None:
    for finding in summary["findings"]:
        print(f"WRONG     {finding}")
    for line in summary["unproved"]:
        print(f"not proved  {line}")
    if offline:
        print(
            "offline   compared with the digests in the manifest: a deliberate change of the files may have changed "
            "those too"
        )
    if summary["verified"]:
        state = "; they fold to the state's digest" if summary["state_digest"] else ""
        print(
            f"verified  {counted(summary['rows'], 'row')}, indexes {summary['first']} to {summary['last']}, each once, "
            f"in order, every column as {summary['source']} has it{state}"
        )
