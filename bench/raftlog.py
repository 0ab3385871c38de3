"""raftlog as a contender: three node processes on loopback with the shipped defaults, driven through its leader."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from pathlib import Path

from bench.wrk import Load
from chaos.deployment import Deployment
from cluster.settings import Settings


class Raftlog:
    """Three nodes in `folder`; `ports` gives free ports. No proxies, no settings but addresses."""

    def __init__(self, folder: Path, ports: Callable[[int], list[int]]) -> None:
        defaults = Settings().disk
        self._deployment = Deployment(folder, ports, settings={"disk.segment_bytes": defaults.segment_bytes})

    @property
    def pids(self) -> list[int]:
        """The process ids of all nodes."""
        return [process.pid for process in self._deployment.running.values()]

    def start(self) -> None:
        """Start all nodes and wait until they serve."""
        self._deployment.start()

    def stop(self) -> None:
        """End all nodes."""
        self._deployment.close()

    def prepare(self, value: str) -> None:
        """Put the key that the read load asks for. Raises RuntimeError if that fails."""
        host, _, port = self._leader.removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        connection.request("PUT", "/v1/kv/bench", value.encode())
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"put answered {answer.status}: {body[:300]!r}")

    @property
    def _leader(self) -> str:
        return self._deployment.url(self._deployment.leader())

    def write(self, value: str) -> Load:
        """Append one record at the leader."""
        return Load(f"{self._leader}/v1/log", "POST", value)

    def read(self) -> Load:
        """A linearizable get of one key at the leader."""
        return Load(f"{self._leader}/v1/kv/bench", "GET")
