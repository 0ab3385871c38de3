"""Proves that an export is what the cluster committed, from its Parquet files and the cluster's digests alone.

Three passes at most, all in Spark's built-in functions: one over every column for counts, order, contiguity and the
log digest, one over the changes for the state, and, only where something is wrong, one that finds out what.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from cluster.wire import SetDigest
from spark_export.cluster_digest import EMPTY, Digests, merged
from spark_export.digests import as_digest, log_row_hash, set_digest, state, state_row_hash
from spark_export.errors import NotCheckedError
from spark_export.manifest import DATA, NAME, Manifest, contradictions, read_manifest
from spark_export.schema import USER_OPERATIONS, USER_RESULTS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_EXAMPLES: Final = 5  # indexes named per finding
_FILES_NAMED: Final = 3
_OUT_OF_PLACE: Final = ("missing", "duplicated", "order")


@dataclass(slots=True)
class Report:
    """What was checked and what was found wrong; `findings` empty means proved, as far as `unproved` does not say
    otherwise."""

    manifest: Manifest
    source: str  # where the digests come from
    findings: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    rows: int = 0
    log: SetDigest = EMPTY
    state: SetDigest | None = None

    @property
    def is_right(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.findings


Step = Callable[[str], None]
"""Told what is being done."""


def verify(
    spark: "SparkSession", folder: Path, digests: Digests | None, source: str, step: Step = lambda _: None
) -> Report:
    """Checks the export in `folder` against `digests` (None: the manifest's own). Raises NotCheckedError."""
    manifest = read_manifest(folder)
    told = digests or manifest.digests
    if told is None:
        raise NotCheckedError(f"{folder / NAME} holds no digests: verify it against the cluster, without --offline")
    report = Report(manifest, source)
    report.findings += contradictions(manifest)
    if not _files_are_there(folder, manifest, report):
        return report
    log = open_log(spark, folder)
    try:
        step("reading every column")
        _check_log(log, report, told.log)
        if any(finding.startswith(_OUT_OF_PLACE) for finding in report.findings):
            step("looking for what is wrong")
            _explain(log, report)
        step("folding the rows to the state")
        _check_state(log, report, told.state)
    except (PySparkException, Py4JError) as error:
        report.findings += _changed(spark, folder, manifest)
        if not report.findings:
            raise NotCheckedError(f"Spark could not read {folder}: {str(error).splitlines()[0]}") from error
        return report
    if report.findings:
        report.findings += _changed(spark, folder, manifest)
    if digests is not None and manifest.digests is not None and manifest.digests.log != digests.log:
        report.findings.append("altered: the manifest's log digest is not the cluster's")
    return report


def open_log(spark: "SparkSession", folder: Path) -> "DataFrame":
    """The rows of a finished export."""
    manifest = read_manifest(folder)
    paths = [str((folder / entry.name).resolve()) for entry in manifest.files]
    return spark.read.schema(spark_schema()).parquet(*paths)


def _files_are_there(folder: Path, manifest: Manifest, report: Report) -> bool:
    """Whether all files can be read; what lies beside them is a finding too, for other readers would take it in."""
    listed = {Path(entry.name).name for entry in manifest.files}
    present = {path.name for path in (folder / DATA).iterdir()} if (folder / DATA).is_dir() else set()
    lacking = sorted(listed - present)
    report.findings += [f"missing: file {DATA}/{name} is not there" for name in lacking]
    report.findings += [f"duplicated: file {DATA}/{name} is not in the manifest" for name in sorted(present - listed)]
    return not lacking


def _is_user() -> "Column":
    return F.col("operation").isin(*USER_OPERATIONS) & F.col("result").isin(*USER_RESULTS)


def _check_log(log: "DataFrame", report: Report, told: SetDigest) -> None:
    """Counts, order, contiguity and times per file, and the digest over every column of every row."""
    offset = F.col("index") - F.col("_metadata.row_index")
    seen = (
        log.groupBy(F.col("_metadata.file_name").alias("file"))
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count_if(_is_user()).alias("user"),
            F.min(offset).alias("offset_min"),
            F.max(offset).alias("offset_max"),
            F.unix_millis(F.min("time")).alias("time_min_ms"),
            F.unix_millis(F.max("time")).alias("time_max_ms"),
            *set_digest(log_row_hash()),
        )
        .collect()
    )  # one row per file
    by_file = {row["file"]: row for row in seen}
    for entry in report.manifest.files:
        row = by_file.get(Path(entry.name).name)
        if row is None:
            report.findings.append(f"missing: {entry.name} has no rows, {entry.rows} are due")
            continue
        if row["rows"] != entry.rows:
            kind = "missing" if row["rows"] < entry.rows else "duplicated"
            report.findings.append(f"{kind}: {entry.name} has {row['rows']} rows, {entry.rows} are due")
        elif (row["offset_min"], row["offset_max"]) != (entry.first, entry.first):
            report.findings.append(f"order: the rows of {entry.name} are not the indexes {entry.first} to {entry.last}")
        if row["user"] != entry.user:
            report.findings.append(f"altered: {entry.name} has {row['user']} user records, {entry.user} are due")
        if (row["time_min_ms"], row["time_max_ms"]) != (entry.time_min_ms, entry.time_max_ms):
            report.findings.append(f"altered: {entry.name} has other first and last times than the manifest says")
    report.rows = sum(row["rows"] for row in seen)
    report.log = merged(as_digest(row) for row in seen)
    if report.log != told:
        report.findings.append(
            f"altered: the log digest of the rows is {shown(report.log)}, {report.source} says {shown(told)}"
        )


def _check_state(log: "DataFrame", report: Report, told: SetDigest | None) -> None:
    manifest = report.manifest
    if manifest.first != 1:
        report.unproved.append(
            f"state: it is not provable, because the export begins at index {manifest.first}, not at 1"
        )
        return
    if told is None and manifest.digests is not None and manifest.digests.state is not None:
        told = manifest.digests.state
        report.unproved.append(
            f"state: the cluster no longer remembers its digest at index {manifest.last}; compared with the one in the "
            f"manifest, which it told the export then"
        )
    if told is None:
        report.unproved.append(f"state: the cluster does not know its digest at index {manifest.last}")
        return
    report.state = as_digest(state(log).agg(*set_digest(state_row_hash())).collect()[0])
    if report.state != told:
        report.findings.append(
            f"altered: the rows fold to the state digest {shown(report.state)}, {report.source} says {shown(told)}"
        )


def _explain(log: "DataFrame", report: Report) -> None:
    """Names indexes that lack, that occur twice, that stand elsewhere, and files that are not as they were written."""
    manifest = report.manifest
    indexes = log.select("index", F.col("_metadata.file_name").alias("file"), F.col("_metadata.row_index").alias("row"))
    due = log.sparkSession.range(manifest.first, manifest.last + 1).withColumnRenamed("id", "index")
    lacking = due.join(indexes, "index", "left_anti").orderBy("index").limit(_EXAMPLES).collect()
    for row in lacking:
        report.findings.append(f"missing: index {row['index']}")
    twice = indexes.groupBy("index").agg(F.count(F.lit(1)).alias("times")).where("times > 1").orderBy("index")
    for row in twice.limit(_EXAMPLES).collect():
        report.findings.append(f"duplicated: index {row['index']} is there {row['times']} times")
    foreign = indexes.where(
        F.col("index").isNull() | (F.col("index") < manifest.first) | (F.col("index") > manifest.last)
    )
    for row in foreign.limit(_EXAMPLES).collect():
        report.findings.append(f"altered: row {row['row']} of {row['file']} has index {row['index']}")


def _changed(spark: "SparkSession", folder: Path, manifest: Manifest) -> list[str]:
    """Names files whose bytes are not those that were written; each is read by a task."""
    paths = [str((folder / entry.name).resolve()) for entry in manifest.files]
    read = spark.read.format("binaryFile").load(paths).select("path", F.sha2("content", 256).alias("sha256"))
    found = {Path(row["path"]).name: row["sha256"] for row in read.collect()}
    changed = [entry.name for entry in manifest.files if found.get(Path(entry.name).name) != entry.sha256]
    return [f"altered: {name} is not the file that the export wrote (SHA-256)" for name in changed[:_FILES_NAMED]]


def shown(digest: SetDigest) -> str:
    """A digest for people: the count and what tells most."""
    return f"{digest.count}/{digest.xor}/{digest.sum_low}/{digest.sum_high}"
