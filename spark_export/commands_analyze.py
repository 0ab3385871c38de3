"""The commands `raftlog analyze NAME`: questions about an export, or about a running cluster, answered with Spark."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_export.command_frame import Master, reported, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    analyze = typer.Typer(no_args_is_help=True, help="Answers questions about an export with Spark.")
    analyze.command("top-keys")(top_keys_command)
    app.add_typer(analyze, name="analyze")


def top_keys_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished export.", metavar="DIR")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many keys.")] = 10,
    master: Master = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """The keys with the most user records."""
    with reported():
        keys = top_keys_of(start_spark(master), folder, limit)
    for key in keys:
        print(json.dumps(key) if as_json else f"{key['count']}\t{key['key']}")


def top_keys_of(spark: "SparkSession", folder: Path, limit: int) -> list[dict[str, Any]]:
    """The most frequent keys of an export, as text with their counts."""
    from spark_export.analytics import top_keys
    from spark_export.verify import open_log

    rows = top_keys(open_log(spark, folder), limit).collect()
    return [{"key": bytes(row["key"]).decode("utf-8", "backslashreplace"), "count": row["count"]} for row in rows]
