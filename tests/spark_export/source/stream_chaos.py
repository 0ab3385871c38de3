"""A streaming query into Parquet under faults: Spark's Python processes and the cluster's nodes are killed as it runs.

A killed task process is Spark's to repair (`local[2,4]` tries a task four times). A kill of the process that plans the
batches ends the query, and the supervisor here restarts it from its checkpoint, as a user's would.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftlog import NewRecord, SyncClient
from raftlog.chaos.deploy.deployment import Deployment
from raftlog.chaos.deploy.toxiproxy import Stream
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.node.local_cluster import LocalCluster, LocalClusterError
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.fetch.reader import read
from tests.chaos.deploy.cuts import cut_client, isolate, refuse_clients, refuse_peers
from tests.support import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DIRECTIONS: tuple[Stream, ...] = ("upstream", "downstream")
TASKS = "pyspark.worker"
"""The module that a daemon of tasks runs, whichever module the daemon is."""
RUNNER = "python_streaming_source_runner"
PROGRESS_S = 240.0
STAGE_S = 0.1
NEVER = ("DataLossError", "UsageError", "UnreachableError", "ExportError", "please report this")
"""With a majority of the nodes alive most of the time the source may fail for none of these reasons."""


@contextlib.contextmanager
def writing(urls: list[str], records: int = 40) -> Iterator[Callable[[], int]]:
    """Appends small batches, as fast as they are answered, until the end; returns how many records were
    acknowledged.
    """
    stop = threading.Event()
    acknowledged = 0

    def write() -> None:
        nonlocal acknowledged
        number = 0
        while not stop.is_set():
            with contextlib.suppress(ClientError, OSError), SyncClient(urls) as client:
                while not stop.wait(0.005):
                    number += 1
                    client.append_many([NewRecord(b"line %d of %d" % (i, number)) for i in range(records)])
                    acknowledged += records

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield lambda: acknowledged
    finally:
        stop.set()
        thread.join()


@dataclass
class Supervised:
    """The query, started again whenever it ended."""

    spark: "SparkSession"
    endpoints: str
    folder: Path
    ended: list[str] = field(default_factory=list)
    running: "StreamingQuery | None" = None

    def start(self, *, available_now: bool = False) -> "StreamingQuery":
        """From the checkpoint, if there is one."""
        rows = (
            self.spark.readStream.format("raftlog")
            .options(endpoints=self.endpoints, records="all", maxEntriesPerTrigger="20000", minPartitions="2")
            .schema("index BIGINT, value BINARY")
            .load()
        )
        writer = rows.writeStream.format("parquet").options(
            path=str(self.folder / "rows"), checkpointLocation=str(self.folder / "checkpoint")
        )
        self.running = (writer.trigger(availableNow=True) if available_now else writer).start()
        return self.running

    def tend(self) -> None:
        """Starts the query if it does not run; what ended it must be a kill."""
        if self.running is not None and self.running.isActive:
            return
        if self.running is not None:
            self._note(str(self.running.exception()))
        self.start()

    def _note(self, error: str) -> None:
        assert not any(word in error for word in NEVER), error
        self.ended.append(error)

    @property
    def batches(self) -> int:
        """How many are done."""
        names = [file.name for file in (self.folder / "checkpoint" / "commits").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1) + 1

    def progresses(self, by: int = 1) -> None:
        """Waits for further batches, and starts the query again as often as that takes."""
        goal = self.batches + by

        def is_there() -> bool:
            self.tend()
            return self.batches >= goal

        wait_until(is_there, PROGRESS_S, what=f"batch {goal}", every_s=0.05)

    def finish(self) -> None:
        """Reads the remaining rows, and ends."""
        if self.running is not None:
            self.running.stop()

        def is_done() -> bool:
            running = self.start(available_now=True)
            try:
                return bool(running.awaitTermination(int(PROGRESS_S)))
            except Exception as error:  # Spark's own word for a process that did not start
                self._note(str(error))
                return False

        wait_until(is_done, 2 * PROGRESS_S, what="the last batch")

    def rows(self) -> list[tuple[int, bytes | None]]:
        """What the sink holds, by index."""
        return sorted(tuple(row) for row in self.spark.read.parquet(str(self.folder / "rows")).collect())


@dataclass
class Nemesis:
    """Kills one thing after another, and counts."""

    spark: "SparkSession"
    cluster: LocalCluster
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    deployment: Deployment | None = None  # where there are links to cut
    tend: Callable[[], None] = lambda: None  # starts the query again where it has ended
    _dead: set[int] = field(default_factory=set)

    @property
    def kills(self) -> int:
        """In all: processes that lived and were killed, and nodes cut off."""
        return self.done.total()

    @property
    def failed_tasks(self) -> int:
        """Tasks that Spark itself saw fail, of this session: those that a kill met."""
        java: Any = self.spark.sparkContext._jsc
        executors = java.sc().statusStore().executorList(False)
        return sum(int(executors.apply(place).failedTasks()) for place in range(executors.size()))

    def worker(self) -> None:
        """A process that runs tasks, some milliseconds after a stage has begun: between two batches all are idle, and
        Spark replaces an idle one unnoticed."""
        tracker = self.spark.sparkContext.statusTracker()

        def is_running() -> bool:
            self.tend()
            return bool(tracker.getActiveStageIds())

        wait_until(is_running, PROGRESS_S, what="a stage that runs", every_s=0.002)
        moment = time.monotonic() + self.chance.random() * STAGE_S
        wait_until(lambda: time.monotonic() >= moment, PROGRESS_S, what="the moment", every_s=0.002)
        self._kill("worker", [pid for pid, parent, line in self._processes() if TASKS in line and parent != self._jvm])

    def planner(self) -> None:
        """The process that plans the batches."""
        self._kill("planner", [pid for pid, _, line in self._processes() if RUNNER in line])

    def node(self) -> None:
        """A node of the cluster, which starts again at once."""
        node = self.chance.choice(self.cluster.nodes)
        if self.cluster.pid(node) is not None:
            self.cluster.kill(node)
            self.done["node"] += 1
        self.cluster.start_node(node)

    def leader(self) -> None:
        """The node that leads."""
        with contextlib.suppress(Exception):
            node = self.cluster.leader(5)
            self.cluster.kill(node)
            self.done["leader"] += 1
            self.cluster.start_node(node)

    def cut(self) -> None:
        """Cuts a node off from its peers or from the query, silently or refused; half of the time it is the leader.

        Links that were cut before are restored.
        """
        assert self.deployment is not None
        self.deployment.heal()
        node = self.chance.choice(self.cluster.nodes)
        if self.chance.random() < 0.5:
            with contextlib.suppress(LocalClusterError):
                node = self.cluster.leader(5)
        lost = partial(cut_client, stream=self.chance.choice(DIRECTIONS))
        faults: list[Callable[[Deployment, int], None]] = [isolate, refuse_peers, refuse_clients, lost]
        self.chance.choice(faults)(self.deployment, node)
        self.done["cut"] += 1

    def _kill(self, what: str, pids: list[int]) -> None:
        pids = [pid for pid in pids if pid not in self._dead]  # one that is killed may still be listed for a moment
        if pids:
            pid = self.chance.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._dead.add(pid)
                self.done[what] += 1

    @property
    def _jvm(self) -> int:
        gateway = self.spark.sparkContext._gateway
        assert gateway is not None
        return int(gateway.proc.pid)

    def _processes(self) -> list[tuple[int, int, str]]:
        return processes_of(self._jvm)


def processes_of(process: int) -> list[tuple[int, int, str]]:
    """Pid, parent and command line of everything that the process started, and what that started."""
    table = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            table[int(folder.name)] = parent, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    ours = {process}
    while more := {pid for pid, (parent, _) in table.items() if parent in ours and pid not in ours}:
        ours |= more
    return [(pid, *table[pid]) for pid in ours if pid != process and pid in table]


def logged(urls: tuple[str, ...]) -> list[tuple[int, bytes | None]]:
    """What the cluster itself holds: (index, value) of every record."""
    page = door.bounds(door.NodeRotation(urls, PROGRESS_S))
    whole = Range(urls, page.log, 1, page.index + 1, patience_s=PROGRESS_S)
    rows = [row for batch in read(whole, ("index", "value")) for row in batch.to_pylist()]
    return [(row["index"], row["value"]) for row in rows]


def same(held: list[tuple[int, bytes | None]], log: list[tuple[int, bytes | None]]) -> None:
    """The sink holds exactly the log, up to records that came after its last batch and are no user's."""
    assert [index for index, _ in held] == list(range(1, len(held) + 1)), "a row is missing or there twice"
    assert held == log[: len(held)]
    assert all(not (value or b"").startswith(b"line") for _, value in log[len(held) :]), "the end is missing"
