"""Snapshots that cannot be: too large a chunk, another's content, chunks that are missing, a start that is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.raft.wal.formats import (
    CHUNK_BYTES_MAX,
    CHUNK_HEADER_SIZE,
    decode_snapshot_meta,
    encode_snapshot_meta,
    ledger_name,
)
from raftlog.raft.wal.operations import Create, Sync, Write
from raftlog.raft.wal.snapshot_files import (
    SYNC_BYTES,
    Pieces,
    SnapshotDamaged,
    SnapshotPlan,
    list_snapshots,
    open_snapshot,
    read_chunks,
    read_piece,
    snapshot_folder,
)
from tests.raft.wal.journal_driver import CONFIGURATION, LOG
from tests.raft.wal.storage_lab import Shard, frame_of

CHUNKS = (b"state", b"of it")


def saved() -> Shard:
    """A shard of three entries, with a snapshot of the second."""
    shard = Shard()
    shard.append(60, 60)
    shard.save_snapshot(shard.entries[1], CHUNKS)
    return shard


def test_a_chunk_that_no_reader_would_take_is_not_written() -> None:
    """The limit that readers believe a length up to holds for the writer, too: nothing is asked of the disk.

    Guard: `CHUNK_BYTES_MAX` in `SnapshotPlan.add` of raft/wal/snapshot_files.py.
    """
    plan = SnapshotPlan(LOG, 2)
    with pytest.raises(ValueError, match=f"the limit is {CHUNK_BYTES_MAX}"):
        plan.add(bytes(CHUNK_BYTES_MAX + 1))
    assert plan.add(b"") == []  # an empty chunk: a reader would take it for the end
    (write,) = plan.add(b"state")
    assert isinstance(write, Write)
    assert write.position == 0


def test_a_configuration_from_behind_the_snapshot_is_neither_written_nor_read() -> None:
    """A snapshot has the configuration of the log at its index: a later one is not made, and not taken from a leader.

    Guard: the assertion in `SnapshotPlan.finish`, and `_check`, of raft/wal/snapshot_files.py.
    """
    shard = saved()
    mark = shard.entries[1].mark
    with pytest.raises(AssertionError):
        SnapshotPlan(LOG, mark.index).finish(mark, CONFIGURATION, mark.index + 1)
    name = f"{snapshot_folder(mark.index)}/meta"
    meta = decode_snapshot_meta(LOG, shard.files.content()[name])
    forged = encode_snapshot_meta(LOG, replace(meta, configuration_index=mark.index + 1))
    shard.files.carry_out(Create(name, forged))
    with pytest.raises(SnapshotDamaged, match=f"its configuration of {mark.index + 1}"):
        open_snapshot(shard.files, LOG, mark.index)


def test_snapshot_bytes_are_synced_as_they_come() -> None:
    """For an own snapshot and for a leader's, at most SYNC_BYTES and a chunk are left for the sync at the end. Every
    user of the disk waits for that sync. A small snapshot has that sync alone.

    Guard: `SYNC_BYTES` in `SnapshotPlan.add` and `Pieces.add` of raft/wal/snapshot_files.py.
    """
    chunk = bytes(128 << 10)
    plan, received = SnapshotPlan(LOG, 2), Pieces(LOG, 2)
    meta = (4).to_bytes(4, "little") + b"meta"
    for add, first in ((plan.add, chunk), (received.add, meta + chunk)):
        written = waiting = synced = 0
        for number in range(2 * SYNC_BYTES // len(chunk) + 8):
            for operation in add(first if number == 0 else chunk):
                if isinstance(operation, Write):
                    assert operation.position == written
                    written += len(operation.data)
                    waiting += len(operation.data)
                elif isinstance(operation, Sync):
                    assert waiting >= SYNC_BYTES
                    waiting, synced = 0, synced + 1
            assert waiting < SYNC_BYTES
        assert synced == 2


def test_a_snapshot_under_the_name_of_another_is_not_believed() -> None:
    """A folder that was copied or renamed by hand: intact, and of another index. The start goes on without it.

    Guard: the index in `checking` of raft/wal/snapshot_files.py.
    """
    shard = saved()
    for name in ("meta", "chunks"):
        shard.files.nodes[f"{snapshot_folder(3)}/{name}"] = shard.files.nodes[f"{snapshot_folder(2)}/{name}"]
    shard.files.folders.add(snapshot_folder(3))
    assert list_snapshots(shard.files) == [3, 2]
    with pytest.raises(SnapshotDamaged, match="00003/meta: it is a copy of the snapshot of index 2"):
        open_snapshot(shard.files, LOG, 3)
    opened = shard.open()
    assert opened.snapshot is not None
    assert opened.snapshot.mark == shard.entries[1].mark
    assert any("it is a copy of the snapshot of index 2: passed over" in notice for notice in opened.notices)


def test_a_start_keeps_the_snapshot_from_which_it_restores() -> None:
    """A process ended between the end of a snapshot and the removal of the third one, and the newest effects are
    damaged. The two newest snapshots are passed over, and the third, which the replica reads next, must stay.

    Guard: `kept` in `drop_old` of raft/wal/snapshot_files.py; without it the folder was removed before it was read.
    """
    shard = Shard()
    shard.append(60, 60, 60)
    for entry in shard.entries[1:]:
        shard.save_snapshot(entry, CHUNKS)
    name = ledger_name(1)
    shard.damage(name, len(shard.files.nodes[name].seen) - 2 * len(frame_of(shard.entries[-1])) + 1)
    snapshot = shard.open().snapshot
    assert snapshot is not None
    assert snapshot.mark.index == 2
    assert list(read_chunks(shard.files, snapshot.folder)) == list(CHUNKS)


@pytest.mark.parametrize("left", [0, 1])
def test_a_snapshot_that_lacks_its_last_chunks_is_not_believed(left: int) -> None:
    """Each remaining chunk passes its CRC: only the meta file's sum over all of them shows the loss.

    Guard: the comparison with meta in `_check` of raft/wal/snapshot_files.py.
    """
    shard = saved()
    size = left * (CHUNK_HEADER_SIZE + len(CHUNKS[0]))
    shard.cut_short(f"{snapshot_folder(2)}/chunks", size)
    assert list(read_chunks(shard.files, snapshot_folder(2))) == list(CHUNKS[:left])
    with pytest.raises(SnapshotDamaged, match=rf"{left} chunks of {5 * left} bytes, the meta file names 2 of 10"):
        open_snapshot(shard.files, LOG, 2)
    assert shard.open().snapshot is None


def test_a_length_of_meta_that_cannot_be_is_refused_before_anything_is_kept() -> None:
    """What comes is no snapshot: without a bound its first four bytes could make a follower gather 4 GiB in memory.

    Guard: `_META_BYTES_MAX` in `Pieces.add` of raft/wal/snapshot_files.py.
    """
    received = Pieces(LOG, 2)
    received.begin()
    assert received.add(b"\xff\xff") == []
    with pytest.raises(SnapshotDamaged, match="a meta file of 4294967299 bytes"):
        received.add(b"\xff\xff" + bytes(9))


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("at_meta", [False, True])
def test_pieces_of_any_size_are_the_snapshot(size: int, at_meta: bool) -> None:
    """Borders lie within the length, within meta, right behind it, and within a chunk. A piece right behind meta has no
    chunk's byte, so nothing is written to the chunks. The files are those of the leader.

    Guard: `if data` in `Pieces.add` of raft/wal/snapshot_files.py.
    """
    leader = saved()
    folder = snapshot_folder(2)
    total, stream = read_piece(leader.files, LOG, 2, 1, 0, 1 << 20)
    assert total == len(stream)
    head = 4 + leader.files.size(f"{folder}/meta")
    first = head if at_meta else 0
    pieces = [stream[:first], *(stream[at : at + size] for at in range(first, total, size))]
    follower, received = Shard(), Pieces(LOG, 2)
    follower.files.execute(received.begin())
    for piece in pieces:
        operations = received.add(piece)
        assert all(each.data for each in operations if isinstance(each, Write))
        follower.files.execute(operations)
    assert received.check(follower.files).mark == leader.entries[1].mark
    follower.run(follower.storage.install(received))
    for name in ("meta", "chunks"):
        assert follower.files.content()[f"{folder}/{name}"] == leader.files.content()[f"{folder}/{name}"]
    assert follower.open().configuration == CONFIGURATION
