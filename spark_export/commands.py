"""The commands of the command line that move and prove rows with Spark: export and verify.

Spark is imported only when one of them runs. Exit codes are those of docs/spark.md; every error is one line on stderr.
"""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_export import commands_analyze, errors
from spark_export.command_frame import Endpoints, Master, Timeout, bar, reported, say, start_spark, where

if TYPE_CHECKING:
    from spark_export.manifest import Manifest


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    app.command("export")(export_command)
    app.command("verify")(verify_command)
    commands_analyze.register(app)


def export_command(
    context: typer.Context,
    to: Annotated[Path, typer.Option("--to", help="The folder to make; an unfinished export in it is gone on with.")],
    first: Annotated[
        int | None, typer.Option("--from", min=1, help="First index. [default: the oldest that is kept]")
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--to-index", min=1, help="Last index, the end of an entry. [default: the committed end]"),
    ] = None,
    endpoints: Endpoints = None,
    master: Master = None,
    records_per_file: Annotated[int, typer.Option(min=1, help="Most records in one Parquet file.")] = 500_000,
    top_keys: Annotated[int, typer.Option(min=0, help="Show so many of the most frequent keys.")] = 0,
    summary_json: Annotated[bool, typer.Option("--summary-json", help="Print the summary as one JSON object.")] = False,
    timeout: Timeout = 30.0,
) -> None:
    """Export the log to Parquet files with a manifest that `raftlog verify` proves."""
    started = time.monotonic()
    with reported():
        from spark_export.door import parse_endpoints
        from spark_export.export import Wanted, export

        wanted = Wanted(parse_endpoints(where(context, endpoints)), to, first, last, records_per_file, timeout)
        spark = start_spark(master)
        with bar("exporting") as tell:
            manifest = export(spark, wanted, tell)
        keys = commands_analyze.top_keys_of(spark, to, top_keys) if top_keys else []
    summary = _summary(manifest, to, time.monotonic() - started) | {"top_keys": keys}
    if summary_json:
        print(json.dumps(summary))
    else:
        _show_export(summary)


def verify_command(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder of a finished export.", metavar="DIR")],
    endpoints: Endpoints = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Compare with the digests in the manifest: not independent of it.")
    ] = False,
    master: Master = None,
    summary_json: Annotated[bool, typer.Option("--summary-json", help="Print the summary as one JSON object.")] = False,
    timeout: Timeout = 30.0,
) -> None:
    """Prove that an export is what the cluster committed: from its files and the cluster's digest alone."""
    with reported():
        from spark_export.cluster_digest import cluster_digests
        from spark_export.door import parse_endpoints
        from spark_export.manifest import read_manifest

        manifest = read_manifest(folder)
        digests = None
        source = "the manifest"
        if not offline:
            source = "the cluster"
            urls = parse_endpoints(where(context, endpoints))
            try:
                digests = cluster_digests(urls, manifest.log, manifest.first, manifest.last, patience_s=timeout)
            except errors.DataLossError as error:
                raise errors.NotCheckedError(
                    f"{error} (with --offline the export is compared with the digests in its own manifest)"
                ) from error
        from spark_export.verify import verify

        report = verify(start_spark(master), folder, digests, source, say)
    summary = {
        "verified": report.is_right, "source": source, "log": manifest.log, "first": manifest.first,
        "last": manifest.last, "rows": report.rows, "log_digest": _digest(report.log),
        "state_digest": _digest(report.state), "findings": report.findings, "unproved": report.unproved,
    }  # fmt: skip
    if summary_json:
        print(json.dumps(summary))
    else:
        _show_verified(summary, offline)
    if not report.is_right:
        raise typer.Exit(errors.EXIT_NOT_VERIFIED)


def _digest(digest: Any) -> dict[str, Any] | None:
    import msgspec

    return None if digest is None else dict(msgspec.to_builtins(digest))


def _summary(manifest: "Manifest", folder: Path, seconds: float) -> dict[str, Any]:
    digests = manifest.digests
    return {
        "folder": str(folder), "log": manifest.log, "first": manifest.first, "last": manifest.last,
        "records": manifest.records.total, "user": manifest.records.user, "internal": manifest.records.internal,
        "files": len(manifest.files), "bytes": sum(entry.bytes for entry in manifest.files),
        "seconds": round(seconds, 3), "records_per_second": round(manifest.records.total / seconds),
        "log_digest": _digest(digests and digests.log), "state_digest": _digest(digests and digests.state),
    }  # fmt: skip


def _show_export(summary: dict[str, Any]) -> None:
    print(
        f"exported {summary['records']} records ({summary['user']} of users, {summary['internal']} internal), indexes "
        f"{summary['first']} to {summary['last']}, to {summary['files']} files ({summary['bytes'] / 1e6:.1f} MB) in "
        f"{summary['seconds']:.1f} s"
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
            "offline   compared with the digests in the manifest: whoever changed the files may have changed those too"
        )
    if summary["verified"]:
        state = "; they fold to the state's digest" if summary["state_digest"] else ""
        print(
            f"verified  {summary['rows']} rows, indexes {summary['first']} to {summary['last']}, each once, in order, "
            f"every column as {summary['source']} has it{state}"
        )
