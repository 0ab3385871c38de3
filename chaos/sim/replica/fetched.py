"""Gives `raftlog.cluster.disk.older_segments.Backfill` the files and the thread of a simulated disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from raftlog.chaos.sim.replica.life import Life
from raftlog.chaos.sim.replica.threads import Steps, Thread
from raftlog.raft.wal.operations import FileOperation, Write


class FillFiles:
    """The files of a segment that is fetched: `raftlog.cluster.files.shard_files.ShardFiles` for a Filling."""

    def __init__(self, node: Life) -> None:
        self._node = node

    def names(self, folder: str) -> list[str]:
        return self._node.disk.files.names(folder)

    def size(self, name: str) -> int:
        return self._node.disk.files.size(name)

    def read(self, name: str, position: int, size: int) -> bytes:
        return self._node.disk.files.read(name, position, size)

    def write(self, name: str, position: int, data: bytes) -> None:
        self.execute([Write(name, position, data)])

    def execute(self, operations: Sequence[FileOperation]) -> None:
        """Carries out operations; the process may die before each. Raises OSError."""
        for operation in operations:
            self._node.world.may_crash(f"fetching: {type(operation).__name__}")
            disk = self._node.disk
            disk.files.carry_out(operation)
            if disk.damaged:
                disk.carried_out(operation)

    def close(self) -> None:
        """Nothing is open."""


class FillWorker:
    """A thread of the disk that runs plain functions, while no other thread changes the list of segments."""

    def __init__(self, node: Life, thread: Thread) -> None:
        self._node, self._reader = node, thread

    def run(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        """Does a job; the future has its result."""
        return self._reader.run_steps(partial(self._when_free, job))

    def _when_free(self, job: Callable[[], Any]) -> Steps:
        yield "read"
        while self._node.disk.process.is_busy:
            yield "wait"
        assert self._node.loop is not None
        return self._node.loop.in_its_time(job)
