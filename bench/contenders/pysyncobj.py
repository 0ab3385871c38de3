"""Runs PySyncObj as a peer: three processes on loopback, the load made in its leader's process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from bench.contenders import control
from bench.instruments.figures import Run
from bench.instruments.processes import Processes
from raftlog.cluster.node.local_cluster import free_ports

_ROOT = Path(__file__).resolve().parents[2]


class PySyncObj:
    """Three nodes under one folder, started by `start`, ended by `stop`.

    `batches`: as the library's default is, for many commits in flight; else as it says that one commit is soonest done.
    """

    def __init__(self, packages: Path, folder: Path, *, batches: bool = False) -> None:
        self._packages = packages
        self._sending = "batches" if batches else "each"
        self._processes = Processes(folder)
        ports = free_ports(6)
        self._peers, self._controls = ports[:3], ports[3:]
        self._leader = 0

    @property
    def name(self) -> str:
        """Name, version, and how it sends."""
        found = next(self._packages.glob("pysyncobj-*.dist-info"))
        version = found.name.removesuffix(".dist-info").partition("-")[2]
        return f"PySyncObj {version}" + (" batches" if self._sending == "batches" else "")

    @property
    def pids(self) -> list[int]:
        """The process ids of all nodes."""
        return self._processes.pids

    def start(self, deadline_s: float = 30.0) -> None:
        """Start all nodes and wait until they have a leader. Raises RuntimeError after the deadline."""
        addresses = [f"127.0.0.1:{port}" for port in self._peers]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), str(self._packages)])}
        for k, port in enumerate(self._controls):
            journal = str(self._processes.folder / f"journal-{k}")
            others = [address for address in addresses if address != addresses[k]]
            own = [addresses[k], *others, journal, str(port), self._sending]
            command = [sys.executable, "-m", "bench.contenders.pysyncobj_node", *own]
            self._processes.start(f"n{k}", command, environment)
        self._leader = self._processes.wait(
            "PySyncObj has a leader", self._find_leader, deadline_s=deadline_s, pause_s=0.2
        )

    def _find_leader(self) -> int | None:
        for port in self._controls:
            with suppress(OSError, RuntimeError):
                control.send(port, control.Order(1, 0.01, 16))
                return port
        return None

    def stop(self) -> None:
        """End all nodes."""
        self._processes.stop()

    def commit(self, size: int, in_flight: int, seconds: float) -> Run:
        """So many commits in flight from within the leader."""
        return control.send(self._leader, control.Order(in_flight, seconds, size))
