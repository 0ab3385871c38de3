"""Runs real nodes that carry the preload library, and clients that remember their answers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final

import pytest

from raftlog.chaos.shim.driver import Shim
from raftlog.chaos.shim.library import ShimMissing
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.support import wait_until

DEADLINE_S: Final = 90.0
"""For what takes a second on a machine that has nothing else to do."""
SETTINGS: Final[dict[str, Any]] = {
    "disk.segment_bytes": 1 << 17,  # many rolls
    "limits.snapshot_log_bytes": 1 << 18,  # and snapshots
    "http.access_log": False,
}


class ShimCluster:
    """A cluster of nodes with the library; nothing runs before `start`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        formatted = LocalCluster(folder / "cluster", nodes, settings=SETTINGS)
        try:
            self.shim = Shim(folder / "shim", [formatted.data(node) for node in formatted.nodes])
        except ShimMissing as error:
            pytest.skip(str(error))
        self.cluster = LocalCluster(folder / "cluster", nodes, settings=SETTINGS)
        self.cluster.environments |= {node: self.shim.environment(self.data(node)) for node in formatted.nodes}
        self.acknowledged: list[bytes] = []
        self.newest_ns: dict[str, int] = {}  # of each load: when the newest write was begun that was acknowledged
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> ShimCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_load()
        self.cluster.kill(*self.cluster.nodes)

    def data(self, node: int) -> Path:
        """Its data folder."""
        return self.cluster.data(node)

    def start(self) -> None:
        """Starts what does not run, and waits until all serve."""
        self.cluster.start()
        self.cluster.wait_ready(timeout_s=DEADLINE_S)

    def gone(self, node: int) -> int:
        """Waits until the process of a node has ended; its exit code."""
        code = wait_until(
            lambda: (self.cluster.exit_code(node),) if self.cluster.pid(node) is None else None,
            DEADLINE_S,
            what=f"the end of node {node}",
        )
        assert code is not None
        assert code[0] is not None
        return code[0]

    # -- load

    def begin_load(self, name: str, writers: int = 4, only: int = 0) -> None:
        """Writers that append values of their own, each once, as fast as they are answered; `only` to that node."""
        self._stop.clear()
        for number in range(writers):
            thread = threading.Thread(target=self._write, args=(name, number, only), daemon=True)
            self._threads.append(thread)
            thread.start()

    def end_load(self) -> None:
        """The writers end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        self._threads.clear()

    def go_on(self, writes: int) -> None:
        """Returns after so many more acknowledged writes."""
        goal = len(self.acknowledged) + writes
        wait_until(lambda: len(self.acknowledged) >= goal, DEADLINE_S, what=f"{writes} acknowledged writes")

    def _write(self, name: str, number: int, only: int) -> None:
        urls = [self.cluster.url(only)] if only else self.cluster.urls
        client = SyncClient(urls, deadline_s=2.0, sessions=False, bound=bool(only))
        count = 0
        while not self._stop.is_set():
            count += 1
            value = f"{name}-{number}-{count}-".encode() + b"v" * (count * 37 % 400)
            began_ns = time.monotonic_ns()
            try:
                client.append(value)
            except (ClientError, OSError):
                self._stop.wait(0.02)  # a node that is down answers at once
                continue
            self.acknowledged.append(value)
            self.newest_ns[name] = max(self.newest_ns.get(name, 0), began_ns)
        with suppress(ClientError, OSError):
            client.close()

    # -- proof

    def nothing_is_lost(self) -> int:
        """Every acknowledged value is in the log exactly once."""
        with SyncClient(self.cluster.urls, deadline_s=DEADLINE_S, sessions=False) as client:
            client.append(b"end")
            there = Counter(record.value for record in client.log(1) if record.value is not None)
        missing = [value for value in self.acknowledged if there[value] != 1]
        assert missing == [], (len(missing), missing[:3], self.cluster.tails()[-2_000:])
        return len(self.acknowledged)

    def cut_power(self, random: Random) -> int:
        """kill -9 of all nodes at once, and each folder as the loss of power leaves it; bytes that were in doubt."""
        self.cluster.kill(*self.cluster.nodes)
        lost = 0
        for node in self.cluster.nodes:
            torn = random if random.random() < 0.5 else None
            lost += self.shim.restore_synced(self.data(node), torn=torn).bytes_in_doubt
        return lost
