"""A streaming query loses no row and doubles none, whatever is killed or cut off meanwhile."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.chaos.deploy.deployment import Deployment
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.spark_export.source.stream_chaos import PROGRESS_S, Nemesis, Supervised, logged, same, writing
from tests.support import free_ports, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("RAFTLOG_STREAM_KILLS", "400"))


@contextmanager
def local_cluster(folder: Path) -> Iterator[LocalCluster]:
    """Three nodes with small segments."""
    with LocalCluster(folder, settings={"disk.segment_bytes": 1 << 20}) as cluster:
        cluster.restore(120)
        try:
            yield cluster
        finally:
            cluster.kill(*cluster.running)


def test_kills_lose_and_double_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    """Processes of tasks, the planner, the leader and another node, each killed while batches run."""
    with local_cluster(tmp_path / "nodes") as cluster:
        query = Supervised(spark, ",".join(cluster.urls), tmp_path)
        nemesis = Nemesis(spark, cluster, random.Random(1), tend=query.tend)
        with writing(cluster.urls) as written:
            query.progresses(2)
            failed_before = nemesis.failed_tasks  # of other tests, in the same session
            for fault in (nemesis.worker, nemesis.leader, nemesis.worker, nemesis.planner, nemesis.node):
                fault()
                query.progresses()

            def has_met_a_task() -> bool:
                """A worker that was idle is replaced unnoticed: as many are killed as that takes."""
                if nemesis.failed_tasks == failed_before:
                    nemesis.worker()
                    query.progresses()
                return nemesis.failed_tasks > failed_before

            wait_until(has_met_a_task, PROGRESS_S, what="a kill that meets a task")
        assert nemesis.done["worker"] >= 1
        assert nemesis.done["planner"] == nemesis.done["leader"] == 1
        assert query.ended, "the planner's end is the query's"
        assert written() > 500
        query.finish()
        same(query.rows(), logged(tuple(cluster.urls)))


@pytest.mark.long
@pytest.mark.toxiproxy
@pytest.mark.timeout(7200)
def test_many_kills_lose_and_double_nothing(
    spark: "SparkSession", tmp_path: Path, toxiproxy_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """RAFTLOG_STREAM_KILLS kills and cuts (400) at any moment under one query that lives through most of them: after
    each handful a batch must come. The planner, whose end is the query's, is killed seldom. The property
    `measured` has its counts, also if it fails."""
    began = time.monotonic()
    told: dict[str, Any] = {"verdict": "failed"}
    try:
        with Deployment(tmp_path / "nodes", free_ports, settings={"disk.segment_bytes": 1 << 20}) as deployment:
            deployment.start()
            query = Supervised(spark, ",".join(deployment.urls), tmp_path)
            chance = random.Random(os.urandom(8))
            nemesis = Nemesis(spark, deployment.cluster, chance, deployment=deployment, tend=query.tend)
            failed_before = nemesis.failed_tasks
            with writing(deployment.cluster.urls) as written:
                query.progresses(2)
                while nemesis.kills < KILLS:
                    _handful(nemesis)
                    query.progresses()
                    told |= {
                        "minutes": round((time.monotonic() - began) / 60, 1),
                        "kills": dict(sorted(nemesis.done.items())),
                        "failed_tasks": nemesis.failed_tasks - failed_before,
                        "restarts": len(query.ended),
                        "batches": query.batches,
                    }
            deployment.heal()
            deployment.cluster.restore(120)
            query.finish()
            held = query.rows()
            told |= {"rows": len(held), "acknowledged": written()}
            same(held, logged(tuple(deployment.cluster.urls)))
        assert told["failed_tasks"] >= nemesis.done["worker"] / 4, "the kills met hardly any task"
        told["verdict"] = "passed"
    except BaseException as error:
        told["verdict"] = f"failed: {str(error).partition(chr(10))[0] or type(error).__name__}"
        raise
    finally:
        record_property("measured", f"{sum(told.get('kills', {}).values())} kills: {told}")


def _handful(nemesis: Nemesis) -> None:
    """One to three processes of tasks, and every other time a node, a link, or seldom the planner."""
    faults = [nemesis.worker] * nemesis.chance.randint(1, 3)
    others = [nemesis.node, nemesis.cut, nemesis.leader, nemesis.planner]
    if nemesis.chance.random() < 0.5:
        faults += nemesis.chance.choices(others, [45, 45, 7, 3])
    nemesis.chance.shuffle(faults)
    for fault in faults:
        fault()
