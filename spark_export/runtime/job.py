"""Starts Spark with the defaults that the log as a table needs: quiet, in UTC, on loopback, with this very Python."""

import importlib.metadata
import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raftlog.cluster.api.text import how_to_install
from raftlog.spark_export.errors import ExportError
from raftlog.spark_export.runtime.java import JavaNotFoundError, java_home, quiet_home
from raftlog.spark_export.runtime.spark_home import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[2,4]"
"""Two cores; a task may fail three times before the job does (plain local[2] gives up at the first)."""

_CHECKPOINTING: Final = "org.apache.spark.sql.execution.streaming.checkpointing"
LOW_LATENCY: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Takes about a third off a small micro-batch, mostly by saving two writes to the checkpoint.

It is optional for two reasons. Spark no longer checks that a checkpoint file is whole. The manager also needs a file
system with atomic renames: a local disk or HDFS, not an object store.
"""

_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow checks for each access whether it lies in the column's buffer and whether the value is null. Spark has checked
both already. The checks take a tenth of the JVM's time for a row.
"""
_TRACES: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of pyspark that print every error as JSON with a Python trace, before the caller gets the exception."""
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_LOCAL: Final = re.compile(r"local\b|spark://(127\.|localhost:)")
_HERE: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Over TCP, the last bytes for a task wait 40 ms for the acknowledgement of the bytes before.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "raftlog.spark_export.runtime.daemon",
}
"""Where driver and executors are on this machine."""
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.python.filterPushdown.enabled": "true",  # comparisons of index narrow what a batch reads
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class SparkMissingError(ExportError):
    """A package that Spark needs is missing or of a version that it does not work with."""

    exit_code = 8


class NoJavaError(ExportError):
    """There is no Java runtime that Spark could start with."""

    exit_code = 8


def check_packages() -> None:
    """Raises SparkMissingError, naming package, version and fix: Spark's own errors name none of them."""
    mend = f"install what Spark needs: {how_to_install('spark')}"
    for package, lowest, below in (
        ("pyspark", (4, 1), (5,)),
        ("pyarrow", (18,), None),
        ("pandas", (2, 2), (3,)),
        ("protobuf", (6, 33, 5), None),
        ("numpy", (2,), (3,)),
    ):
        try:
            text = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise SparkMissingError(
                f"the export needs the package {package}, which is not installed; {mend}"
            ) from error
        version = tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
        if version < lowest or (below is not None and version >= below):
            wanted = f">={_dotted(lowest)}" + (f",<{_dotted(below)}" if below else "")
            raise SparkMissingError(f"{package} {text} does not work with Spark here, {wanted} does; {mend}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def session(
    name: str = "raftlog",
    *,
    master: str | None = None,
    level: str = "error",
    java_options: str = "",
    low_latency: bool = False,
    **settings: str,
) -> "SparkSession":
    """A Spark session that reads `format("raftlog")`. `settings` are Spark's own, with `__` for each dot.

    With a master on this machine everything listens on loopback only, unless `settings` say otherwise. `low_latency`
    adds the preset LOW_LATENCY. A session that runs already in this process is used as it is, with those settings that
    can still be changed. Raises NoJavaError or SparkMissingError.
    """
    check_packages()
    try:
        home = java_home()
    except JavaNotFoundError as error:
        raise NoJavaError(str(error)) from error
    with suppress(OSError):  # no folder can be written: then Java prints its warning
        home = quiet_home(home)
    os.environ["JAVA_HOME"] = str(home)
    for logger in _TRACES:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    master = master or MASTER
    chosen = _SETTINGS | (LOW_LATENCY if low_latency else {})
    if _LOCAL.match(master):
        chosen |= _HERE
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = sys.executable
        if (folder := spark_home()) is not None:
            os.environ["SPARK_HOME"] = str(folder)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    chosen["spark.driver.extraJavaOptions"] = " ".join(
        (f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", _ARROW, java_options)
    ).strip()
    chosen |= {key.replace("__", "."): value for key, value in settings.items()}
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    from raftlog.spark_export.source.source import RaftlogDataSource

    builder: Any = SparkSession.builder
    builder = builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise NoJavaError(
            f"the Java runtime in {home} ended before Spark ran: what it said is above. Is there enough memory, "
            f"and are the options right (java_options, spark.driver.memory)?"
        ) from error
    spark.sparkContext.setLogLevel(level.upper())
    spark.dataSource.register(RaftlogDataSource)
    return spark


def main() -> None:
    """`python -m raftlog.spark_export.runtime.job`: whether Spark can be started here; if not, a line that says what to
    install."""
    try:
        check_packages()
        java_home()
    except (SparkMissingError, JavaNotFoundError) as error:
        print(error, file=sys.stderr)
        sys.exit(SparkMissingError.exit_code)


if __name__ == "__main__":
    main()
