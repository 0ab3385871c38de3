"""Reads all files of a simulated node again and again, and checks that damage is found, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.replica.life import Life
from raftlog.chaos.sim.replica.threads import STILL_US
from raftlog.cluster.files.findings import Finding
from raftlog.cluster.files.scrub import Looker
from raftlog.raft.wal.formats import segment_name
from raftlog.raft.wal.snapshot_files import SNAPSHOTS

PAUSES_US: Final = (300_000, 1_000_000, 5_000_000)
"""From one round of scrubbing to the next, give or take a half: each world has its own."""

SCRUB_STEP_US: Final = 2_000
"""From one look at a piece of a file to the next, in microseconds."""


class ScrubbedFiles:
    """The files of a simulated disk, as scrubbing reads them: `raftlog.cluster.files.scrub.ScrubFiles`."""

    def __init__(self, files: MemoryFiles) -> None:
        self._files = files
        self.names, self.size = files.names, files.size
        self.bytes = 0

    def read(self, name: str, position: int, size: int) -> bytes:
        data = self._files.read(name, position, size)
        self.bytes += len(data)
        return data

    def close(self) -> None:
        """Nothing is open."""


class Scrubbing:
    """Reads all files again and again (`raftlog.cluster.disk.scrubber.Scrub`), and checks the findings."""

    def __init__(self, node: Life, looker: Looker, found: Callable[[list[Finding]], None]) -> None:
        self._node, self._life, self._looker, self._report = node, node.life, looker, found
        self._reported: set[str] = set()
        self.rounds = 0
        self.ended_at: float | None = None
        self.file = ""
        self._steps = self._work()
        node.world.after(0, self._advance)

    @property
    def bytes(self) -> int:
        return 0

    def _advance(self) -> None:
        node = self._node
        if node.life != self._life:
            return
        if node.is_paused or node.is_behind:
            node.world.after(STILL_US, self._advance)
            return
        delay_us = next(self._steps)
        if node.life == self._life:
            node.world.after(delay_us, self._advance)

    def _work(self) -> Iterator[int]:
        node = self._node
        pause_us = node.world.random_of("scrub").choice(PAUSES_US)
        while True:
            yield node.scrub_random.randint(pause_us // 2, pause_us * 3 // 2)
            self._reported.clear()
            due = self._to_find()
            for seconds in self._looker.round(self._found):
                yield int(seconds * 1_000_000) or SCRUB_STEP_US
            self.rounds += 1
            still = self._to_find()
            for name, what in due.items():
                if still.get(name) == what and not any(name.startswith(file) for file in self._reported):
                    raise Failure("scrubbing finds all damage", f"node {node.node}: {what}")

    def _to_find(self) -> dict[str, str]:
        """Damage in files that a round reads: sealed segments whose rows are written, snapshots."""
        disk = self._node.disk
        journal = disk.running().journal
        files = {segment_name(one.first) for one, _ in pairwise(journal.segments) if one.last.index <= journal.indexed}
        folders = tuple(f"{SNAPSHOTS}/{index:020d}/" for index in disk.snapshots())
        return {
            name: what
            for name, what in disk.damaged.items()
            if (name in files or name.startswith(folders)) and not disk.files.nodes[name].is_mended
        }

    def _found(self, findings: list[Finding]) -> None:
        """Raises Failure if a file has no damage; then reports the findings to the server."""
        node = self._node
        for each_found in findings:
            place = each_found.file.rpartition(".")[0] or each_found.file
            if not any(inode.wounds and name.startswith(place) for name, inode in node.disk.files.nodes.items()):
                raise Failure("scrubbing reports nothing but damage", f"node {node.node}: {each_found}")
            if each_found.file not in self._reported:
                node.world.note(node.node, "scrubbing found", str(each_found))
            self._reported.add(each_found.file)
        if any(name not in node.disk.process.met for name in self._reported if name.endswith(".seg")):
            node.world.sometimes("scrubbing found damage before a reader")
        if any(name.startswith(f"{SNAPSHOTS}/{node.state.snapshots.index:020d}") for name in self._reported):
            node.world.sometimes("scrubbing found a damaged snapshot")
        self._report(findings)
