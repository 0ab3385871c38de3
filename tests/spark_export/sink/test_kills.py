"""kill -9 of a whole export, again and again: no row is lost and none is there twice."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from raftlog import NewRecord, SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.spark_export.export.cluster_digest import cluster_digests, range_digest
from raftlog.spark_export.export.manifest import DATA, NAME, read_manifest
from raftlog.spark_export.export.spark_engine import SparkEngine
from raftlog.spark_export.export.verify import verify
from tests.spark_export.analytics import visits
from tests.spark_export.sink.kills import Tally, command, kill_at_random
from tests.support import free_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.timeout(3600)]

KILLS = 20
BATCH = 500


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that holds the access log, or what stands in for it."""
    ports = free_ports(2)
    with LocalCluster(tmp_path_factory.mktemp("kills") / "node", nodes=1, ports=ports) as cluster:
        cluster.restore(120)
        with SyncClient(cluster.urls[0]) as client:
            records = [NewRecord(visit.line, key=visit.host) for visit in visits.visits()]
            for start in range(0, len(records), 250):
                client.append_many(records[start : start + 250])
        yield cluster
        cluster.kill(*cluster.running)


def parquet_indexes(folder: Path) -> list[int]:
    """The indexes that a reader of all files of `log/` finds without the manifest."""
    files = [path for path in (folder / DATA).glob("**/*") if path.is_file()]
    tables = [pq.read_table(path, columns=["index"], partitioning=None) for path in files]
    return sorted(index for table in tables for index in table.column("index").to_pylist())


def killed(nodes: LocalCluster, folder: Path, kills: int, seed: int) -> Tally:
    """Follows to the log's end through so many kills; after each, readers see the log up to some index, once."""
    with SyncClient(nodes.urls[0]) as client:
        last = client.status().committed
    seen = 0

    def check() -> None:
        nonlocal seen
        indexes = parquet_indexes(folder)
        assert indexes == list(range(1, len(indexes) + 1))
        assert len(indexes) >= seen
        seen = len(indexes)
        if (folder / NAME).exists():
            assert seen >= read_manifest(folder).last

    layout = ("--partition-by", "index", "--partition-records", "3000", "--records-per-file", "200", "--records", "all")
    limits = ("--batch-records", str(BATCH), "--compact-files", "12")
    arguments = command("spark", folder, nodes.urls, last, *layout, *limits)
    tally = kill_at_random(arguments, folder, kills, random.Random(seed), check)
    assert parquet_indexes(folder) == list(range(1, last + 1))
    assert read_manifest(folder).last == last
    return tally


def proved(spark: "SparkSession", nodes: LocalCluster, folder: Path) -> None:
    """The export verifies against the cluster."""
    manifest = read_manifest(folder)
    urls = tuple(nodes.urls)
    told = cluster_digests(urls, manifest.log, manifest.first, manifest.last)
    report = verify(
        SparkEngine(spark),
        folder,
        told,
        "the cluster",
        range_digest=lambda first, last: range_digest(urls, manifest.log, first, last),
    )
    assert report.is_right, report.findings


@pytest.mark.long
def test_twenty_kills_lose_and_double_nothing(
    spark: "SparkSession", nodes: LocalCluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Twenty kills of an export with driver, JVM and workers, a third of them between write and commit.

    Exports without Spark, and Delta tables, are killed at every single step by test_follow.py and test_delta.py.
    """
    tally = killed(nodes, tmp_path / "out", KILLS, 2)
    record_property("measured", f"{visits.where()}: {tally}")
    assert tally.kills >= KILLS // 2
    assert tally.in_batch
    assert tally.written
    proved(spark, nodes, tmp_path / "out")
