"""The commands of the command line that use Spark: export, verify, analyze.

Spark is imported only when one of them runs. Exit codes are those of docs/spark.md; every error is one line on stderr.
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from spark_export import errors
from spark_export.errors import ExportError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_export.manifest import Manifest

ENDPOINTS: Final = "http://127.0.0.1:7001"
_STDERR: Final = Console(stderr=True)
_TASK_ERROR: Final = re.compile(r"spark_export\.(?:errors|door)\.(\w+): (.+)")

Endpoints = Annotated[
    str | None,
    typer.Option("-e", "--endpoints", envvar="RAFTLOG_ENDPOINTS", help="URLs of nodes, with commas between them."),
]
Master = Annotated[
    str | None, typer.Option("--master", help="Where Spark runs: local[2,4] (two cores here), spark://HOST:PORT, ...")
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds after which unreachable nodes are given up.", min=0)]


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    app.command("export")(export_command)
    app.command("verify")(verify_command)
    analyze = typer.Typer(no_args_is_help=True, help="Answers questions about an export with Spark.")
    analyze.command("top-keys")(top_keys_command)
    app.add_typer(analyze, name="analyze")


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
    with _reported():
        from spark_export.door import parse_endpoints
        from spark_export.export import Wanted, export

        wanted = Wanted(parse_endpoints(_where(context, endpoints)), to, first, last, records_per_file, timeout)
        spark = _session(master)
        with _bar("exporting") as tell:
            manifest = export(spark, wanted, tell)
        keys = _top_keys(spark, to, top_keys) if top_keys else []
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
    with _reported():
        from spark_export.cluster_digest import cluster_digests
        from spark_export.door import parse_endpoints
        from spark_export.manifest import read_manifest

        manifest = read_manifest(folder)
        digests = None
        source = "the manifest"
        if not offline:
            source = "the cluster"
            urls = parse_endpoints(_where(context, endpoints))
            try:
                digests = cluster_digests(urls, manifest.log, manifest.first, manifest.last, patience_s=timeout)
            except errors.DataLossError as error:
                raise errors.NotCheckedError(
                    f"{error} (with --offline the export is compared with the digests in its own manifest)"
                ) from error
        from spark_export.verify import verify

        report = verify(_session(master), folder, digests, source, _say)
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


def top_keys_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished export.", metavar="DIR")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many keys.")] = 10,
    master: Master = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """The keys with the most user records."""
    with _reported():
        keys = _top_keys(_session(master), folder, limit)
    for key in keys:
        print(json.dumps(key) if as_json else f"{key['count']}\t{key['key']}")


# ---------------------------------------------------------------------------------------------------------------


def _where(context: typer.Context, given: str | None) -> str:
    """The endpoints: as given, else where the command line finds a cluster (its finder is in the context)."""
    if given is None and callable(context.obj):
        urls, _ = context.obj(None)
        return ",".join(urls)
    return given or ENDPOINTS


def _session(master: str | None) -> "SparkSession":
    from spark_export.job import session

    _say("starting Spark")
    return session(master=master)


def _say(what: str) -> None:
    if _STDERR.is_terminal:
        _STDERR.print(f"[dim]{what} …[/dim]", highlight=False)


@contextmanager
def _bar(what: str) -> Iterator[Any]:
    """A progress bar on a terminal; nothing elsewhere."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("records"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=_STDERR, disable=not _STDERR.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def tell(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield tell


@contextmanager
def _reported() -> Iterator[None]:
    """Errors as one line and an exit code; also those that a task of Spark met."""
    try:
        yield
    except ExportError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted; run the same command again to go on", 130)
    except ImportError as error:
        _fail(f"{error}; the export needs the extra: pip install 'raftlog[spark]'", errors.EXIT_NOT_CHECKED)
    except Exception as error:
        found = _TASK_ERROR.search(str(error))
        if found is None or type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        kind = getattr(errors, found[1], ExportError)
        _fail(found[2], kind.exit_code)


def _fail(message: str, code: int) -> NoReturn:
    print(f"raftlog: {message}", file=sys.stderr)
    raise typer.Exit(code)


def _top_keys(spark: "SparkSession", folder: Path, limit: int) -> list[dict[str, Any]]:
    from spark_export.analytics import top_keys
    from spark_export.verify import open_log

    rows = top_keys(open_log(spark, folder), limit).collect()
    return [{"key": bytes(row["key"]).decode("utf-8", "backslashreplace"), "count": row["count"]} for row in rows]


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
