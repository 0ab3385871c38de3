"""Proves that an export is what the cluster committed, from its files and the cluster's digests alone.

Two passes, all in Spark's built-in functions: one over every column for counts, order, contiguity and the log digest,
one over the changes for the state. Where something is wrong, `findings.py` finds out which rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from cluster.wire import SetDigest
from spark_export import delta
from spark_export.cluster_digest import EMPTY, PART_RECORDS, Digests, merged
from spark_export.digests import as_digest, log_row_hash, set_digest, state, state_row_hash
from spark_export.errors import NotCheckedError
from spark_export.findings import altered_rows, changed_files, name_rows, shown
from spark_export.manifest import DATA, Manifest, contradictions, range_of, read_manifest, read_next
from spark_export.schema import USER_OPERATIONS, USER_RESULTS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

_OUT_OF_PLACE: Final = ("missing", "duplicated", "order")

Step = Callable[[str], None]
"""Told what is being done."""

Told = Callable[[int, int], SetDigest]
"""What the cluster says that the log rows of a range hash to."""


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


def verify(
    spark: "SparkSession", folder: Path, digests: Digests | None, source: str, step: Step = lambda _: None,
    range_told: Told | None = None,
) -> Report:  # fmt: skip
    """Checks the export in `folder` against `digests` (None: the manifest's own). `range_told` is asked only where rows
    are wrong, to name them. Raises NotCheckedError."""
    manifest = read_manifest(folder)
    if (following := read_next(folder)) is not None and following.replaces:
        raise NotCheckedError(f"a compaction of {folder} was interrupted: run `raftlog export compact {folder}` again")
    told = digests or manifest.digests
    report = Report(manifest, source)
    report.findings += contradictions(manifest)
    paths = _visible(folder, manifest, report)
    if not paths:
        return report
    log = _open(spark, paths)
    try:
        step("reading every column")
        wrong = _check_log(log, report, told)
        if any(finding.startswith(_OUT_OF_PLACE) for finding in report.findings):
            step("looking for what is wrong")
            report.findings += name_rows(log, manifest)
        elif wrong and range_told is not None:
            step("looking for the rows that are altered")
            report.findings += altered_rows(log, wrong, range_told)
        step("folding the rows to the state")
        _check_state(log, report, told.state)
    except (PySparkException, Py4JError) as error:
        report.findings += changed_files(spark, folder, manifest)
        if not report.findings:
            raise NotCheckedError(f"Spark could not read {folder}: {str(error).splitlines()[0]}") from error
        return report
    if report.findings:
        report.findings += changed_files(spark, folder, manifest)
    if digests is not None and manifest.digests.log != digests.log:
        report.findings.append("altered: the manifest's log digest is not the cluster's")
    return report


def open_log(spark: "SparkSession", folder: Path) -> "DataFrame":
    """The rows of an export, as far as its manifest says that they are in place."""
    manifest = read_manifest(folder)
    if manifest.layout.table == "delta":
        return _open(spark, delta.files(folder, manifest))
    return _open(spark, [folder / entry.name for entry in manifest.files])


def _open(spark: "SparkSession", paths: Sequence[Path]) -> "DataFrame":
    return spark.read.schema(spark_schema()).parquet(*(str(path.resolve()) for path in paths))


def _visible(folder: Path, manifest: Manifest, report: Report) -> list[Path]:
    """The files that a reader of the export sees. What lies in `log/` beside those of the manifest is a finding too,
    for other readers would take it in; only the batch that is just being put in place is left out."""
    if manifest.layout.table == "delta":
        return delta.files(folder, manifest)
    listed = {entry.name: entry for entry in manifest.files}
    present = {path.relative_to(folder).as_posix(): path for path in (folder / DATA).glob("**/*") if path.is_file()}
    following = read_next(folder)
    coming = {entry.name for entry in following.added} - set(listed) if following is not None else set()
    for name in sorted(listed.keys() - present.keys()):
        lost = listed[name]
        report.findings.append(f"missing: file {name} is not there, indexes {lost.first} to {lost.last}")
    for name in sorted(present.keys() - listed.keys() - coming):
        report.findings.append(f"duplicated: file {name} is not in the manifest")
    if coming & present.keys():
        report.unproved.append(
            f"log: a batch after index {manifest.last} is being put in place, or was interrupted; it is left out here"
        )
    ours = {name for name in present if range_of(Path(name).name) and name not in coming}
    return [present[name] for name in sorted(ours)]


def _is_user() -> "Column":
    return F.col("operation").isin(*USER_OPERATIONS) & F.col("result").isin(*USER_RESULTS)


def _check_log(log: "DataFrame", report: Report, told: Digests) -> list[tuple[int, int]]:
    """Counts, order, contiguity and times per file, and the digest over every column of every row, in the parts that
    were told. The ranges of which the digest is another one."""
    offset = F.col("index") - F.col("_metadata.row_index")
    millis = F.unix_millis("time")
    seen = (
        log.groupBy(
            F.col("_metadata.file_path").alias("file"),
            F.floor((F.coalesce("index", F.lit(0)) - 1) / PART_RECORDS).alias("cell"),
        )
        .agg(
            F.count(F.lit(1)).alias("rows"), F.min(offset).alias("offset_min"), F.max(offset).alias("offset_max"),
            F.min(millis).alias("time_min_ms"), F.max(millis).alias("time_max_ms"),
            F.sum(F.coalesce(_is_user(), F.lit(False)).cast("bigint")).alias("user"), *set_digest(log_row_hash()),
        )
        .collect()
    )  # fmt: skip
    report.rows = sum(row["rows"] for row in seen)
    report.log = merged(as_digest(row) for row in seen)
    if report.manifest.layout.table == "parquet":
        _check_files(seen, report)
    records = report.manifest.records
    if report.rows != records.total:
        kind = "missing" if report.rows < records.total else "duplicated"
        report.findings.append(f"{kind}: there are {report.rows} rows, {records.total} are due")
    elif (user := sum(row["user"] for row in seen)) != records.user:
        report.findings.append(f"altered: there are {user} user records, {records.user} are due")
    if report.log == told.log:
        return []
    report.findings.append(
        f"altered: the log digest of the rows is {shown(report.log)}, {report.source} says {shown(told.log)}"
    )
    wrong = []
    for part in told.parts:
        found = merged(as_digest(row) for row in seen if row["cell"] == part.cell)
        if found != part.log:
            wrong.append((part.first, part.last))
            report.findings.append(f"altered: the rows of indexes {part.first} to {part.last} have another digest")
    return wrong


def _check_files(seen: "list[Row]", report: Report) -> None:
    by_file: dict[str, list[Row]] = {}
    for row in seen:
        by_file.setdefault(Path(unquote(urlsplit(row["file"]).path)).name, []).append(row)
    for entry in report.manifest.files:
        rows = by_file.get(Path(entry.name).name)
        if rows is None:
            report.findings.append(f"missing: {entry.name} has no rows, {entry.rows} are due")
            continue
        count, user = sum(row["rows"] for row in rows), sum(row["user"] for row in rows)
        offsets = min(row["offset_min"] or 0 for row in rows), max(row["offset_max"] or 0 for row in rows)
        times = min(row["time_min_ms"] or 0 for row in rows), max(row["time_max_ms"] or 0 for row in rows)
        if count != entry.rows:
            kind = "missing" if count < entry.rows else "duplicated"
            report.findings.append(f"{kind}: {entry.name} has {count} rows, {entry.rows} are due")
        elif offsets != (entry.first, entry.first):
            report.findings.append(f"order: the rows of {entry.name} are not the indexes {entry.first} to {entry.last}")
        if user != entry.user:
            report.findings.append(f"altered: {entry.name} has {user} user records, {entry.user} are due")
        if times != (entry.time_min_ms, entry.time_max_ms):
            report.findings.append(f"altered: {entry.name} has other first and last times than the manifest says")


def _check_state(log: "DataFrame", report: Report, told: SetDigest | None) -> None:
    manifest = report.manifest
    if manifest.first != 1:
        report.unproved.append(
            f"state: it is not provable, because the export begins at index {manifest.first}, not at 1"
        )
        return
    if told is None and manifest.digests.state is not None:
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
