"""raftlog as a contender: three node processes on loopback with the shipped defaults, driven through its leader."""

from __future__ import annotations

import http.client
from pathlib import Path

from bench.wrk import Load
from cluster.local_cluster import LocalCluster


class Raftlog:
    """Three nodes in `folder`. No proxies, no settings but addresses."""

    def __init__(self, folder: Path) -> None:
        self._cluster = LocalCluster(folder)

    @property
    def pids(self) -> list[int]:
        """The process ids of all nodes."""
        return [pid for node in self._cluster.nodes if (pid := self._cluster.pid(node)) is not None]

    def start(self) -> None:
        """Start all nodes and wait until they serve."""
        self._cluster.start()
        self._cluster.wait_ready()

    def stop(self) -> None:
        """End all nodes."""
        self._cluster.stop()

    def prepare(self, value: str) -> None:
        """Put the key that the read load asks for. Raises RuntimeError if that fails."""
        connection = http.client.HTTPConnection(self._leader.removeprefix("http://"), timeout=5)
        connection.request("PUT", "/v1/kv/bench", value.encode())
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"put answered {answer.status}: {body[:300]!r}")

    @property
    def _leader(self) -> str:
        return self._cluster.url(self._cluster.leader())

    def write(self, value: str) -> Load:
        """Append one record at the leader."""
        return Load(f"{self._leader}/v1/log", "POST", value)

    def read(self) -> Load:
        """A linearizable get of one key at the leader."""
        return Load(f"{self._leader}/v1/kv/bench", "GET")
