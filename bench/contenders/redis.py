"""Runs Redis as a peer: one server on loopback that syncs its append-only file before it answers, not replicated."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from bench.instruments.processes import Processes
from bench.instruments.tools import Program
from raftlog.cluster.node.local_cluster import free_ports


class Redis:
    """One Redis server in `folder`, started by `start`, ended by `stop`."""

    def __init__(self, program: Program, folder: Path) -> None:
        self._program = program
        self._processes = Processes(folder)
        (self._port,) = free_ports(1)

    @property
    def name(self) -> str:
        """Name and version."""
        command = [self._program.path, "--version"]
        environment = self._program.full_environment()
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return "Redis " + done.stdout.partition("v=")[2].split()[0]

    @property
    def pids(self) -> list[int]:
        """The process id of the server."""
        return self._processes.pids

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://127.0.0.1:{self._port}"

    def start(self, deadline_s: float = 20.0) -> None:
        """Starts the server and waits until it answers. Raises RuntimeError after the deadline."""
        words = ["--bind", "127.0.0.1", "--port", str(self._port), "--save", "", "--dir", str(self._processes.folder)]
        durable = ["--appendonly", "yes", "--appendfsync", "always"]
        self._processes.start("redis", [self._program.path, *words, *durable], self._program.full_environment())
        self._processes.wait("Redis answers", self._ping, deadline_s=deadline_s)

    def _ping(self) -> bool | None:
        with socket.create_connection(("127.0.0.1", self._port), 2) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(16).startswith(b"+PONG") or None

    def stop(self) -> None:
        """Ends the server."""
        self._processes.stop()
