"""Starts contenders as an axis needs them, and lists those that cannot take part, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console

from bench.contenders.etcd import Etcd
from bench.contenders.nats import Nats
from bench.contenders.noop import Noop
from bench.contenders.raftlog import Raftlog
from bench.contenders.zookeeper import ZooKeeper
from bench.instruments import tools


class Contender(Protocol):
    """What the field needs of a cluster."""

    @property
    def name(self) -> str:
        """Name and version."""

    @property
    def pids(self) -> list[int]:
        """Process ids of all nodes."""

    def start(self) -> None:
        """All nodes, until they serve."""

    def stop(self) -> None:
        """End all nodes."""


C = TypeVar("C", bound=Contender)


class Field:
    """The contenders of one axis; a context manager that ends them all."""

    def __init__(self, folder: Path, console: Console, skipped: dict[str, str], *, peers: bool = True) -> None:
        self.folder = folder
        self._console = console
        self._skipped = skipped
        self._peers = peers
        self._stack = ExitStack()
        self._running: list[Contender] = []
        self.names: set[str] = set()

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def pids(self) -> list[int]:
        """Of everybody that runs."""
        return [pid for contender in self._running for pid in contender.pids]

    def _start(self, make: Callable[[Path], C], what: str) -> list[C]:
        """In a list, which is empty when it cannot be had."""
        place = self.folder / what.replace(" ", "-")
        place.mkdir(parents=True)
        try:
            contender = make(place)
            self._stack.callback(contender.stop)
            contender.start()
        except (tools.MissingTool, RuntimeError, OSError) as error:
            self._skipped[what] = " ".join(str(error).split())[:400]
            self._console.print(f"skipped {what}: {error}", markup=False)
            return []
        self._running.append(contender)
        self.names.add(contender.name)
        return [contender]

    def raftlog(self, *, fast_path: bool = True, secure: bool = False) -> Raftlog:
        """Ours: without it nothing can be said. Raises RuntimeError."""
        place = self.folder / ("raftlog-secure" if secure else "raftlog" if fast_path else "raftlog-aiohttp")
        ours = Raftlog(place, fast_path=fast_path, secure=secure)
        self._stack.callback(ours.stop)
        ours.start()
        self._running.append(ours)
        return ours

    def floor(self) -> list[Noop]:
        """The server that does nothing."""
        return self._start(Noop, "no-op")

    def etcds(self, *, secure: bool = False) -> list[Etcd]:
        """Debian's and the newest."""
        if not self._peers:
            return []
        make, form = partial(Etcd, secure=secure), ", secure" if secure else ""
        return [
            *self._start(lambda at: make(tools.debian("etcd", "etcd-server"), at), f"etcd of Debian{form}"),
            *self._start(lambda at: make(tools.built("etcd"), at), f"etcd newest{form}"),
        ]

    def nats(self, *, older: bool = True, synced: bool = True) -> list[Nats]:
        """Debian's (2.9), the newest, and that with `sync_interval: always`."""
        if not self._peers:
            return []
        debian, newest, always = "NATS of Debian", "NATS newest", "NATS newest, sync always"
        found: list[Nats] = []
        if older:
            found += self._start(lambda at: Nats(tools.debian("nats-server", "nats-server"), at), debian)
        found += self._start(lambda at: Nats(tools.built("nats-server"), at), newest)
        if synced:
            found += self._start(lambda at: Nats(tools.built("nats-server"), at, sync_always=True), always)
        return found

    def zookeeper(self) -> list[ZooKeeper]:
        """Debian's."""
        return self._start(lambda at: ZooKeeper(tools.java_archives(), at), "ZooKeeper") if self._peers else []
