"""What one process does with snapshots: saves its own, sends them, receives and installs one; and what goes of the log.

Saving follows cluster/node_snapshots.py, deleting cluster/node_retention.py, sending and receiving the rules in
raft/snapshots.py. Operation by operation beside the batches of `chaos.sim.disk_work`; a crash may fall between any two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from chaos.sim.chores import Chore
from chaos.sim.disk_errors import DiskFull
from chaos.sim.nemesis import states
from cluster.snapshots import chunks_of, decode_preamble
from raft.core import RaftCore
from raft.ready import Ready, SnapshotFetch, SnapshotInstall, SnapshotWrite
from raft.retention import may_go
from raft.storage_snapshots import SnapshotDamaged, StoredSnapshot
from raft.types import Now

if TYPE_CHECKING:
    from chaos.sim.replica import Replica

WAIT_US = 500
"""How long until it is looked again whether the batches are done."""


class SnapshotWork:
    """Gone with its process; the disk stays."""

    __slots__ = ("_deleting", "_jobs", "_running", "_saving", "disk", "index", "replica", "world")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.world = replica.world
        self.disk = replica.disk
        self.index = 0  # of the newest snapshot on this disk
        self._saving = Chore(replica)
        self._deleting = Chore(replica)
        self._jobs: deque[SnapshotWrite | SnapshotInstall] = deque()
        self._running = Chore(replica, self._begin)

    @property
    def is_saving(self) -> bool:
        """Whether this node's own state is being saved."""
        return self._saving.is_on

    # -- its own -----------------------------------------------------------------------------------------------

    def save(self, core: RaftCore) -> None:
        """Keep the state as it is now, chunk by chunk while applying goes on, and then let the log before it go."""
        is_receiving = core.state.receiving is not None or self._running.is_on  # as in cluster/node_snapshots.py
        if self.replica.corrupted:
            return  # what a snapshot of a wrong state does to others: docs/decisions/0010
        if not self._saving.is_on and not is_receiving and self.replica.mark.index > self.index:
            self._saving.begin(self._save(core))

    def _save(self, core: RaftCore) -> Generator[int, None, None]:
        replica, world, disk, work = self.replica, self.world, self.disk, self.replica.work
        mark = replica.mark
        index, configuration = next(pair for pair in reversed(core.state.configurations) if pair[0] <= mark.index)
        if configuration.outgoing:
            world.sometimes("snapshot during a joint configuration")
        kept: list[bytes] = []

        def chunks() -> Iterator[bytes]:
            for chunk in chunks_of(last_user, walk):
                kept.append(chunk)
                yield chunk

        walk, last_user = replica.machine.snapshot(), replica.last_user
        try:
            while work.syncing is not None:
                yield WAIT_US
            for name in disk.finish(work.take_frames()):  # the ledger must reach the snapshot before it counts
                world.may_crash(name)
            yield from work.stepwise(disk.save_snapshot(mark, configuration, index, chunks()))
        except DiskFull:
            world.sometimes("no room for a snapshot")
            return
        finally:
            walk.close()
        before, self.index = self.index, mark.index
        world.witness.saved(replica.node, mark, b"".join(kept))
        # Slow followers may still need what is behind the snapshot before; now and then nothing is let go.
        core.compact(mark, replica.random.choice((mark.index, mark.index, before or None, None)))
        world.witness.compacted(replica.node, mark)
        world.count("snapshots")

    # -- retention ---------------------------------------------------------------------------------------------

    def delete(self, core: RaftCore) -> None:
        """Delete what was trimmed and is not needed, beside everything else."""
        if not self._deleting.is_on:
            self._deleting.begin(self._delete(core))

    def _delete(self, core: RaftCore) -> Generator[int, None, None]:
        replica, disk = self.replica, self.disk
        while disk.is_busy:
            yield WAIT_US
        first = disk.first_index
        keep_after = may_go(replica.machine.oldest, core.state.log.first, disk.snapshots())
        yield from replica.work.stepwise(disk.compact(keep_after))
        if disk.first_index > first:
            self.world.sometimes("trimmed segments deleted")
            self.world.witness.kept(replica.node, disk.first_index, replica.machine.oldest, disk.view.base.index)

    # -- a follower's, or a leader's ---------------------------------------------------------------------------

    def carry_out(self, ready: Ready) -> None:
        """What a core wants done with snapshots that travel."""
        for fetch in ready.snapshot_fetches:
            self.world.after(self.replica.random.randint(50, 3_000), self._fetch, self.replica.life, fetch)
        self._jobs.extend(ready.snapshot_writes)
        if ready.snapshot_install is not None:
            self._jobs.append(ready.snapshot_install)
        self._begin()

    def _fetch(self, life: int, fetch: SnapshotFetch) -> None:
        if life == self.replica.life:
            total, data = self.disk.snapshot_piece(fetch.index, fetch.term, fetch.offset, fetch.bytes_max)
            takes_several = (
                self.world.knows[fetch.peer] >= self.world.knows[self.replica.node]
            )  # an older program does not
            self.replica.tell(
                lambda core, now: core.snapshot_chunk(fetch, total, data, now, takes_several=takes_several)
            )

    def _begin(self) -> None:
        if not self._running.is_on and self._jobs:
            job = self._jobs.popleft()
            steps = self._write(job) if isinstance(job, SnapshotWrite) else self._install(job)
            self._running.begin(steps, is_later=True)

    def _write(self, write: SnapshotWrite) -> Generator[int, None, None]:
        try:
            yield from self.replica.work.stepwise(self.disk.write_piece(write.index, write.offset, write.data))
        except (SnapshotDamaged, DiskFull):
            self._failed()
        else:
            self.replica.tell(lambda core, now: core.snapshot_written(write, now))

    def _failed(self) -> None:
        self._jobs.clear()
        self.replica.tell(lambda core, now: core.snapshot_failed(now))

    def _install(self, install: SnapshotInstall) -> Generator[int, None, None]:
        replica, world, disk = self.replica, self.world, self.disk
        while not replica.work.is_idle:
            yield WAIT_US
        self._saving.drop()  # what it would keep is older
        steps = disk.install(install.index)
        try:
            while True:
                name = next(steps)
                world.may_crash(f"installing: {name}", 40)
                if name == "Sync":
                    yield world.sync_us() + disk.slow_us
                elif name == "wait":
                    yield WAIT_US
        except StopIteration as stop:
            stored: StoredSnapshot = stop.value
        except SnapshotDamaged:
            self._failed()
            return
        chunks = disk.chunks(stored)
        last_user, machine = decode_preamble(next(chunks)), world.restore_machine(chunks)
        self.index = stored.mark.index

        def installed(core: RaftCore, now: Now) -> None:
            mark, log = stored.mark, core.state.log
            before, had = (log.committed, log.last.index), log.term_at(mark.index) == mark.term
            replica.machine, replica.mark, replica.last_user = machine, mark, last_user
            replica.work.take_frames()
            states.sound(world, replica)
            replica.requests.skipped(mark)
            core.installed(mark, stored.configuration, stored.configuration_index, now)
            world.witness.restored(replica.node, mark, machine)
            world.witness.installed(replica.node, mark, before, had)
            world.sometimes("snapshot installed")
            if stored.configuration.outgoing:
                world.sometimes("snapshot during a joint configuration")

        replica.tell(installed)
