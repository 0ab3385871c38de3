"""Runs an OpenSearch server of one node on loopback, for the tests of sinks: the real one, without its distribution."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from raftlog.cluster.sinks.store import StoreUnavailable
from raftlog.cluster.sinks.stores.http import HttpServer
from raftlog.cluster.sinks.stores.opensearch import POSITIONS
from raftlog.spark_export.runtime.java import JavaNotFoundError, java_home
from tests.support import free_ports, wait_until

JARS = Path(__file__).parents[3] / ".tools/opensearch"
_START_S = 60.0
_OPTIONS = ("-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A start takes 3.4 s of a core so, and 6.3 s with the second compiler and the parallel collector."""


class OpenSearchNotFoundError(RuntimeError):
    """No OpenSearch; the message says how to get it."""


class OpenSearchServer:
    """One node, whose data is in a temporary folder."""

    def __init__(self) -> None:
        """Raises OpenSearchNotFoundError."""
        if not (JARS / "done").exists():
            raise OpenSearchNotFoundError("OpenSearch is not there; to get it (45 MB from Maven): .ci/opensearch")
        try:
            self._java = java_home() / "bin/java"
        except JavaNotFoundError as error:
            raise OpenSearchNotFoundError(f"OpenSearch needs Java: {error}") from error
        self._port, self._transport = free_ports(2)
        self._folder = Path(tempfile.mkdtemp(prefix="raftlog-opensearch-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts the node, and waits until it answers."""
        main = Path(__file__).with_name("OpenSearchNode.java")
        ports = (str(self._port), str(self._transport))
        command: list[str | Path] = [self._java, *_OPTIONS, "-cp", f"{JARS}/*", main, self._folder, *ports]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        wait_until(self._answers, _START_S, what=f"OpenSearch, whose log is {self._folder / 'log'}", every_s=0.1)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
        try:
            return self.ask("GET", "/_cluster/health?wait_for_status=yellow&timeout=10s").get("timed_out") is False
        except StoreUnavailable:
            return False

    def ask(self, method: str, target: str, body: Any = None) -> dict[str, Any]:
        """Sends a request of the test; returns the answer's body, whatever its status."""
        server = HttpServer(self.url)
        try:
            answer = server.ask(method, target, None if body is None else msgspec.json.encode(body))
        finally:
            server.close()
        found: dict[str, Any] = msgspec.json.decode(answer.body)
        return found

    def fresh(self) -> str:
        """The name of a new index, while no sink has a position."""
        self.ask("DELETE", f"/{POSITIONS}")
        return f"t{next(self._numbers)}"

    def kill(self) -> None:
        """Kills the node as the kernel would."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def stop(self) -> None:
        """Ends the node and deletes its data."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
