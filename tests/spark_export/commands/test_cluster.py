"""Spark beside a real cluster: three node processes, written to, killed, read, exported and verified."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftlog import CompareFailed, NewRecord, SyncClient
from raftlog.cluster.api.kv import CompareIn, OperationIn, TxnIn
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.spark_export.export.cluster_digest import cluster_digests
from raftlog.spark_export.export.export import ExportRange, export
from raftlog.spark_export.export.manifest import Layout
from raftlog.spark_export.export.spark_engine import SparkEngine
from raftlog.spark_export.export.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with small segments, so that ranges lie over several."""
    with LocalCluster(
        tmp_path_factory.mktemp("cluster") / "nodes", settings={"disk.segment_bytes": 1 << 20}
    ) as cluster:
        cluster.restore()
        yield cluster
        cluster.kill(*cluster.running)


def fill(client: SyncClient, rounds: int) -> None:
    """Batches and single records, every kind of request, effects of every kind."""
    for number in range(rounds):
        client.append_many([NewRecord(b"line %d %d" % (number, i), key=b"k%d" % (i % 9)) for i in range(200)])
        client.append(b"", headers=[("type", b"single")])
        name = b"key %d" % (number % 5)
        client.put(name, b"v%d" % number)
        with pytest.raises(CompareFailed):
            client.put(name, b"never", if_revision=1 << 40)
        client.txn(
            TxnIn(
                [CompareIn("version", "=", "key 1", number=2)],
                [OperationIn("put", "then", value="t"), OperationIn("delete", "key 1")],
                [OperationIn("put", "else", value=str(number))],
            )
        )
        if number % 4 == 3:
            client.delete(name)
    client.delete_range(b"key 2", b"key 4")


def test_a_real_cluster_is_read_exported_and_verified(
    spark: "SparkSession", nodes: LocalCluster, tmp_path: Path
) -> None:
    """What clients wrote is what Spark reads. After the leader was killed and more was written, an export with the dead
    node first among its endpoints holds all of it, and both digests are the cluster's."""
    with SyncClient(nodes.urls) as client:
        fill(client, 12)
        leader = nodes.leader()
        nodes.kill(leader)
        fill(client, 4)
        written = list(client.log(1, to=client.index + 1, internal=True))

    urls = (nodes.url(leader), *(nodes.url(node) for node in nodes.nodes if node != leader))
    frame = spark.read.format("raftlog").options(
        endpoints=",".join(urls), endingOffsets="committed", records="all", minPartitions="3"
    )
    rows = frame.load().select("index", "operation", "key", "value", "result", "revision").collect()
    shown = [
        (row["index"], row["operation"] or "", row["key"], row["value"], row["result"], row["revision"]) for row in rows
    ]
    assert shown[: len(written)] == [(r.index, r.operation, r.key, r.value, r.result, r.revision) for r in written]

    manifest = export(SparkEngine(spark), ExportRange(urls, tmp_path / "out", layout=Layout(records_per_file=1000)))
    assert manifest.last >= written[-1].index
    told = cluster_digests(urls, manifest.log, 1, manifest.last)
    assert told.state is not None
    assert told.state.count > 0
    report = verify(SparkEngine(spark), tmp_path / "out", told, "the cluster")
    assert report.is_right, report.findings
    assert report.unproved == []
