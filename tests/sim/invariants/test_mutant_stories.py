"""Stories of planted bugs that random worlds seldom meet and no other test plays."""

from raftlog.raft.codec.checks import crc32c
from raftlog.raft.consensus.progress import Mode
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.messages import AppendEntries, InstallSnapshot, InstallSnapshotReply
from raftlog.raft.types import Mark
from tests.raft.consensus.snapshots.test_snapshots_receiver import feed
from tests.raft.consensus.snapshots.test_snapshots_sender import sending
from tests.raft.lab import at, chunk, configuration, drain, make_core, reply


def test_a_newer_snapshot_waits_while_one_is_installed() -> None:
    """etcd #18055: the second one, of a newer leader too, comes between install and installed; it is taken later.

    Guard: `is_installing` in `on_install` of raft/consensus/snapshots.py.
    """
    core = make_core(1, 3)
    readies = feed(core, chunk(index=8))
    assert readies[-1].snapshot_install is not None
    feed(core, chunk(index=12))
    feed(core, chunk(index=12, sender=3, term=2))
    core.installed(Mark(8, 1, 7, 0, 0), configuration(3), 1, at(10))
    drain(core)
    assert core.status().last.index == 8
    readies = feed(core, chunk(index=12, sender=3, term=2), now_ms=20)
    assert readies[-1].snapshot_install is not None
    core.installed(Mark(12, 1, 9, 0, 0), configuration(3), 1, at(30))
    assert core.status().last.index == 12


def test_a_follower_is_streamed_to_after_its_snapshot() -> None:
    """etcd #10308: when all of it is there the follower is asked where it stands, and its answer ends the probing.

    Guard: `probe` in `on_reply` of raft/consensus/snapshots.py.
    """
    core = sending()
    for offset, data in ((2, b"cd"), (4, b"ef")):
        core.step(_taken(offset), at(370))
        ready = core.ready()
        assert ready is not None
        core.snapshot_chunk(ready.snapshot_fetches[0], 6, data, at(370))
        (message,) = drain(core, 370).to(2)
        assert isinstance(message, InstallSnapshot)
        assert message.crc == crc32c(data)
    core.step(_taken(6), at(380))
    asked = [message.prev_index for message in drain(core, 380).to(2) if isinstance(message, AppendEntries)]
    assert asked == [7]
    reply(core, 2, match=7, prev=7, now_ms=390)
    drain(core, 390)
    assert isinstance(core.state.role, Leader)
    assert core.state.role.progress[2].mode is Mode.REPLICATE


def _taken(offset: int) -> InstallSnapshotReply:
    return InstallSnapshotReply(sender=2, to=1, term=2, snapshot_index=7, snapshot_term=1, offset=offset, accepted=True)
