"""Gives every command that uses Spark its common options, its session, and its exit codes.

Every error is one line on stderr with the exit code of docs/spark.md.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from rich.console import Console

from raftlog.cluster.cli.frame.common import Exit
from raftlog.cluster.cli.frame.output import Format
from raftlog.cluster.cli.frame.stopping import StopSignal, interrupted
from raftlog.spark_export import errors
from raftlog.spark_export.errors import ExportError
from raftlog.spark_export.export.engine import ARROW_RECORDS_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftlog.spark_export.export.engine import Engine

ENDPOINTS: Final = "http://127.0.0.1:7001"
_STDERR: Final = Console(stderr=True, force_terminal=sys.stderr.isatty())
_MASTER: Final = re.compile(r"local(\[[^\]]+\])?|spark://[^:]+:\d+(,[^:]+:\d+)*|yarn|k8s://.+")
_TASK_ERROR: Final = re.compile(r"spark_export\.(?:errors|fetch\.door)\.(\w+): (.+)")


class EngineName(StrEnum):
    """What runs an export or a verification."""

    AUTO = "auto"
    ARROW = "arrow"
    SPARK = "spark"


class RecordsChoice(StrEnum):
    """Which records: those that users wrote, each once, or every index."""

    USER = "user"
    ALL = "all"


Endpoints = Annotated[
    str | None,
    typer.Option("-e", "--endpoints", envvar="RAFTLOG_ENDPOINTS", help="URLs of nodes, with commas between them."),
]
Master = Annotated[
    str | None, typer.Option("--master", help="Where Spark runs: local[2,4] (two cores here), spark://HOST:PORT, ...")
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds after which unreachable nodes are given up.", min=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Where the cluster is."""

    endpoints: Endpoints = None
    timeout: Timeout = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What does the work."""

    engine: Annotated[
        EngineName,
        typer.Option("--engine", help="arrow: in this process, without Java. auto: that up to --arrow-records-max."),
    ] = EngineName.AUTO
    master: Master = None
    arrow_records_max: Annotated[
        int, typer.Option("--arrow-records-max", min=0, help="With --engine auto: Spark runs what has more records.")
    ] = ARROW_RECORDS_MAX


def where(context: typer.Context, given: str | None) -> str:
    """The endpoints: as given, else where the command line finds a cluster (its finder is in the context). The finder
    knows the files of a running `raftlog up --secure` too."""
    if callable(context.obj):
        urls, _ = context.obj(given)
        return ",".join(urls)
    return given or ENDPOINTS


def start_spark(master: str | None) -> "SparkSession":
    """The session that a command works with. Raises NoJavaError, SparkMissingError; UsageError for a master that is
    none, NotCheckedError for one that does not answer."""
    from raftlog.spark_export.runtime.job import session

    if master is not None and _MASTER.fullmatch(master) is None:
        raise errors.UsageError(
            f"--master {master!r} is none of Spark's: local[N], local[N,RETRIES], spark://HOST:PORT, yarn, k8s://…"
        )
    say("starting Spark")
    logging.getLogger().addHandler(logging.NullHandler())  # else py4j prints its traces after Ctrl-C
    stop = StopSignal()
    try:
        with interrupted(stop, lambda: say_ending("once Spark has started")):  # else pyspark leaves a Java process
            spark = session(master=master)
        if stop.is_set():
            raise KeyboardInterrupt
        return spark
    except ExportError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        said = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        why = next((line for line in said if line.startswith("Caused by:")), said[-1])
        raise errors.NotCheckedError(f"Spark does not start with --master {master or 'local'}: {why}") from error


def start_engine(options: EngineOptions, records: Callable[[], int]) -> "Engine":
    """The engine of that name; `auto` is Spark for more than `arrow_records_max` of the `records`, and where there is a
    master. Raises as `start_spark`, and UsageError for a master of an engine that has none."""
    from raftlog.spark_export.export.arrow_engine import ArrowEngine

    name, master = options.engine, options.master
    if name is EngineName.ARROW and master is not None:
        raise errors.UsageError("--master is of Spark: leave it out, or give --engine spark")
    if name is EngineName.ARROW:
        return ArrowEngine()
    if name is EngineName.SPARK:
        import_module("pyspark")  # a missing extra is named before the cluster is asked
    count = records()  # before Spark, which takes ten seconds to start: a cluster that does not answer ends here
    if name is EngineName.AUTO and master is None and count <= options.arrow_records_max:
        return ArrowEngine()
    spark = start_spark(master)
    from raftlog.spark_export.export.spark_engine import SparkEngine

    return SparkEngine(spark)


def say(what: str) -> None:
    """Shows the current step on a terminal."""
    if _STDERR.is_terminal:
        _STDERR.print(f"[dim]{what} …[/dim]", highlight=False)


def say_stale(last: int) -> None:
    """Says that an answer is that of one node."""
    print(
        f"there is no leader: the answer is of the records up to {last}, which one node has committed; "
        "`raftlog explain` says why",
        file=sys.stderr,
    )


def say_ending(when: str) -> None:
    """Says that the command has heard Ctrl-C, and when it ends."""
    say(f"ending {when} (Ctrl-C again: at once)")


@contextmanager
def reported(output: Format | None = None) -> Iterator[None]:
    """Errors as one line, or as JSON where the output is, and an exit code; also those that a task of Spark met."""
    with_json = output in (Format.JSON, Format.JSONL)
    try:
        yield
    except ExportError as error:
        fail(str(error), error.exit_code, with_json)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        fail("interrupted; run the same command again to go on", 130, with_json)
    except Exception as error:  # the command line itself explains a package that is missing
        found = _TASK_ERROR.search(str(error))
        if found is None or type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        from raftlog.spark_export.fetch import door

        kind = getattr(errors if hasattr(errors, found[1]) else door, found[1], ExportError)
        fail(found[2], kind.exit_code, with_json)


def fail(message: str, code: int, with_json: bool = False) -> NoReturn:
    """Ends the command: one line on stderr, and this exit code."""
    fault = {"error": message, "exit": code, "code": Exit(code).name.lower()}
    print(json.dumps(fault, ensure_ascii=False) if with_json else f"raftlog: {message}", file=sys.stderr)
    raise typer.Exit(code)
