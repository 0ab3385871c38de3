"""Finds out which rows of an export are wrong, once a check has failed: their indexes, and the files that changed."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from cluster.wire import SetDigest
from spark_export.cluster_digest import EMPTY
from spark_export.digests import as_digest, log_row_hash, set_digest
from spark_export.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EXAMPLES: Final = 5  # indexes named per finding
_FILES_NAMED: Final = 3
_FAN: Final = 64  # ranges into which a wrong one is divided: three rounds from a part to its rows


def name_rows(log: "DataFrame", manifest: Manifest) -> list[str]:
    """Names indexes that lack, that occur twice, and rows whose index is none of this export's."""
    found = []
    indexes = log.select("index", F.col("_metadata.file_name").alias("file"), F.col("_metadata.row_index").alias("row"))
    due = log.sparkSession.range(manifest.first, manifest.last + 1).withColumnRenamed("id", "index")
    lacking = due.join(indexes, "index", "left_anti").orderBy("index").limit(_EXAMPLES).collect()
    found += [f"missing: index {row['index']}" for row in lacking]
    twice = indexes.groupBy("index").agg(F.count(F.lit(1)).alias("times")).where("times > 1").orderBy("index")
    for row in twice.limit(_EXAMPLES).collect():
        found.append(f"duplicated: index {row['index']} is there {row['times']} times")
    foreign = indexes.where(
        F.col("index").isNull() | (F.col("index") < manifest.first) | (F.col("index") > manifest.last)
    )
    for row in foreign.limit(_EXAMPLES).collect():
        found.append(f"altered: row {row['row']} of {row['file']} has index {row['index']}")
    return found


def altered_rows(log: "DataFrame", wrong: list[tuple[int, int]], told: Callable[[int, int], SetDigest]) -> list[str]:
    """Names rows that are altered, by dividing the ranges of which the digest is wrong until one row is left."""
    rows: list[int] = []
    for first, last in wrong:
        rows += _narrowed(log, first, last, told, _EXAMPLES - len(rows))
        if len(rows) >= _EXAMPLES:
            break
    more = ", and maybe more" if len(rows) >= _EXAMPLES else ""
    return [f"altered: index {row}{more if row == rows[-1] else ''}" for row in rows]


def _narrowed(log: "DataFrame", first: int, last: int, told: Callable[[int, int], SetDigest], most: int) -> list[int]:
    step = -(-(last - first + 1) // _FAN)
    number = F.floor((F.col("index") - first) / step).alias("number")
    grouped = log.where(F.col("index").between(first, last)).groupBy(number).agg(*set_digest(log_row_hash()))
    found = {row["number"]: as_digest(row) for row in grouped.collect()}
    rows: list[int] = []
    for place, begin in enumerate(range(first, last + 1, step)):
        end = min(begin + step - 1, last)
        if found.get(place, EMPTY) == told(begin, end):
            continue
        rows += [begin] if begin == end else _narrowed(log, begin, end, told, most - len(rows))
        if len(rows) >= most:
            break
    return rows


def changed_files(spark: "SparkSession", folder: Path, manifest: Manifest) -> list[str]:
    """Names files whose bytes are not those that were written; each is read by a task."""
    entries = [entry for entry in manifest.files if (folder / entry.name).exists()]
    if not entries:
        return []
    paths = [str((folder / entry.name).resolve()) for entry in entries]
    read = spark.read.format("binaryFile").load(paths).select("path", F.sha2("content", 256).alias("sha256"))
    found = {Path(row["path"]).name: row["sha256"] for row in read.collect()}
    changed = [entry.name for entry in entries if found.get(Path(entry.name).name) != entry.sha256]
    return [f"altered: {name} is not the file that the export wrote (SHA-256)" for name in changed[:_FILES_NAMED]]


def shown(digest: SetDigest) -> str:
    """A digest for people: the count and what tells most."""
    return f"{digest.count}/{digest.xor}/{digest.sum_low}/{digest.sum_high}"
