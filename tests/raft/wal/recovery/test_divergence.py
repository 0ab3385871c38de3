"""The note of a node whose state was wrong: what its next start trusts, and that nothing else is taken for it."""

import pytest
from hypothesis import given, strategies as st

from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import Mark
from raftlog.raft.wal import divergence
from raftlog.raft.wal.divergence import CannotRebuild, DivergenceNote, decode_note, encode_note
from raftlog.raft.wal.formats import ForeignFile, LogIdentity
from raftlog.raft.wal.operations import Create, Delete, DeleteFolder, Rename, Sync, SyncFolder
from raftlog.raft.wal.snapshot_files import StoredSnapshot, snapshot_folder

LOG = LogIdentity(bytes(range(16)))
NOTE = DivergenceNote(agreed=40, point=50)


class Folder:
    """Files in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def names(self, folder: str) -> list[str]:
        """The names in a folder."""
        return sorted({name.split("/")[1] for name in self.files if name.startswith(f"{folder}/")})

    def size(self, name: str) -> int:
        """-1 without the file."""
        return len(self.files[name]) if name in self.files else -1

    def read(self, name: str, position: int, size: int) -> bytes:
        """Its bytes."""
        return self.files.get(name, b"")[position : position + size]


def snapshots(*indexes: int) -> list[StoredSnapshot]:
    """Intact ones, newest first."""
    return [StoredSnapshot(Mark(index, 1), Configuration(), 1, 10, snapshot_folder(index)) for index in indexes]


def test_a_note_is_read_back_and_one_that_is_damaged_lets_nothing_be_trusted() -> None:
    """No note: nothing was wrong. A note of another log is refused, one of a newer version stops the node."""
    assert divergence.find(LOG, Folder({})) is None
    assert divergence.find(LOG, Folder({"diverged": encode_note(LOG, NOTE)})) == NOTE
    assert divergence.find(LOG, Folder({"diverged": b"RLDV"})) == DivergenceNote(0, 0)
    with pytest.raises(ForeignFile):
        divergence.find(LogIdentity(bytes(16)), Folder({"diverged": encode_note(LOG, NOTE)}))
    newer = bytearray(encode_note(LOG, NOTE)[:-4])
    newer[4] = 9
    with pytest.raises(UnknownVersion):
        decode_note(LOG, bytes(newer) + crc32c(bytes(newer)).to_bytes(4, "little"))


def test_no_flipped_bit_of_a_note_goes_unnoticed() -> None:
    """A note with other indexes would let a wrong snapshot be trusted. Each of its bits is under the CRC or the magic,
    and a damaged note lets no snapshot be trusted.
    """
    good = encode_note(LOG, NOTE)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(Corrupt, match=r"fails its CRC|no such note"):
            decode_note(LOG, bytes(bad))
        assert divergence.find(LOG, Folder({"diverged": bytes(bad)})) == DivergenceNote(0, 0)


def test_a_note_is_written_aside_and_gets_its_name_when_it_is_durable() -> None:
    """The order is the promise: a crash leaves the note whole, or none."""
    assert divergence.keep(LOG, NOTE) == [
        Create("diverged.new", encode_note(LOG, NOTE)),
        Sync("diverged.new"),
        Rename("diverged.new", "diverged"),
        SyncFolder(""),
    ]


@given(data=st.binary(max_size=60))
def test_bytes_of_another_form_are_no_divergence_note(data: bytes) -> None:
    """Corrupt, and nothing else."""
    with pytest.raises(Corrupt):
        decode_note(LOG, data)


def test_only_snapshots_from_before_the_agreed_point_are_trusted() -> None:
    """Those of it or after it go; from the first entry on a log makes up for all of them."""
    assert [each.mark.index for each in divergence.trusted(NOTE, snapshots(45, 39), 1)] == [39]
    assert divergence.trusted(NOTE, snapshots(45, 40), 1) == []
    assert divergence.trusted(DivergenceNote(0, 50), snapshots(45), 1) == []
    assert [each.mark.index for each in divergence.trusted(NOTE, snapshots(45, 39), 40)] == [39]
    for kept, first in ((snapshots(45, 39), 41), (snapshots(45), 2)):
        with pytest.raises(CannotRebuild, match="cannot be rebuilt"):
            divergence.trusted(NOTE, kept, first)
    folder = Folder({f"{snapshot_folder(index)}/meta": b"" for index in (39, 40, 45)})
    operations = divergence.drop(NOTE, folder)
    assert [each.name for each in operations if isinstance(each, Rename)] == [snapshot_folder(45), snapshot_folder(40)]
    assert sum(isinstance(each, DeleteFolder) for each in operations) == 2
    assert operations[-1] == SyncFolder("snapshots")
    assert divergence.done() == [Delete("diverged"), SyncFolder("")]
