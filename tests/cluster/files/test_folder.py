"""Tests folders that a node cannot or may not use: it names the fault and the fix, and does not start."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import (
    DiskError,
    FolderDamaged,
    FolderExists,
    FolderForeign,
    FolderLocked,
    FolderMissing,
    FolderReadOnly,
    FormatUnknown,
    NoSpace,
)
from raftlog.cluster.files.findings import FileHealth
from raftlog.cluster.files.folder import DiskIdentity, encode_identity, format_node, format_shard, parse_identity
from raftlog.cluster.files.reserve import Reserve, ReserveFile
from raftlog.cluster.offline.check import check_folder
from raftlog.raft.codec.checks import Corrupt, crc32c
from raftlog.raft.types import GENESIS
from raftlog.raft.wal.formats import HARD_STATE_SLOT
from tests.cluster.files.disk_folder import make_full_folder
from tests.cluster.files.disk_lab import IDENTITY, SEGMENT_BYTES, batch, effects_of, make_folder, open_disk, read_all
from tests.raft.wal.journal_driver import CONFIGURATION, FIRST, make_entries
from tests.support import small_disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB of its own."""
    with small_disk(tmp_path, "256k"):
        yield tmp_path


def segment(folder: Path) -> Path:
    return folder / "shard-0" / "log" / "00000000000000000001.seg"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


async def test_opening_a_missing_folder_is_refused(tmp_path: Path) -> None:
    """No folder, no identity: the node does not make one, and names the command that does."""
    for folder in (tmp_path / "nothing", tmp_path):
        with pytest.raises(FolderMissing, match="raftlog format"):
            open_disk(folder)
    assert list(tmp_path.iterdir()) == []


def modes(place: Path) -> dict[str, int]:
    """The permissions of everything below a folder, and of itself."""
    return {str(path.relative_to(place)): path.stat().st_mode & 0o777 for path in (place, *place.rglob("*"))}


def is_private(folder: Path) -> bool:
    """Whether only the owner may use a folder and everything in it."""
    return all(mode == (0o700 if (folder / name).is_dir() else 0o600) for name, mode in modes(folder).items())


@pytest.mark.usefixtures("usual_umask")
def test_other_users_cannot_read_the_data_of_a_node(tmp_path: Path) -> None:
    """The log and the snapshots hold every value, past TLS and access control: of new folders, also of a further group,
    all is private. Folders above the data folder are as the operator's own."""
    folder = tmp_path / "above" / "node"
    make_full_folder(folder)
    format_shard(folder, IDENTITY, 1, FIRST, segment_bytes=SEGMENT_BYTES)
    reserve = Reserve(ReserveFile(folder), SEGMENT_BYTES)
    reserve.keep(SEGMENT_BYTES, 0, may_fill=True)
    found = modes(folder)
    assert {Path(name).suffix or Path(name).name for name in found} >= {
        ".seg",
        ".idx",
        ".ledger",
        ".json",
        "hard_state",
        "snapshots",
        "shard-1",
        "reserve",
    }
    assert is_private(folder), found
    assert folder.parent.stat().st_mode & 0o777 == 0o755


async def test_format_never_overwrites(tmp_path: Path) -> None:
    """A folder that is there already is refused, whatever is in it; an empty one is used, and the root of a new file
    system."""
    folder = make_folder(tmp_path)
    with pytest.raises(FolderExists, match="another folder"):
        format_node(folder, IDENTITY, FIRST, segment_bytes=SEGMENT_BYTES)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderExists):
        format_node(tmp_path / "file", IDENTITY, FIRST)
    (tmp_path / "empty").mkdir()
    format_node(tmp_path / "empty", IDENTITY, FIRST, segment_bytes=SEGMENT_BYTES)
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)
    format_node(tmp_path / "volume", IDENTITY, FIRST, segment_bytes=SEGMENT_BYTES)
    disk, _ = open_disk(tmp_path / "volume")
    await disk.close()
    assert FileHealth.UNKNOWN not in [each.state for each in check_folder(tmp_path / "volume").findings]
    with pytest.raises(ValueError, match="its configuration"):
        format_node(tmp_path / "other", IDENTITY, make_entries(GENESIS, 1, (1,))[0])
    for changed in ({"log_id": "xyz"}, {"incarnation": "AB" * 16}, {"node": 0}):
        with pytest.raises(ValueError, match=next(iter(changed))):
            replace(IDENTITY, **changed)


async def test_an_unfinished_format_is_no_folder(tmp_path: Path) -> None:
    """identity.json comes last: a format that was killed leaves nothing that could be opened."""
    folder = make_folder(tmp_path)
    (folder / "identity.json").unlink()
    with pytest.raises(FolderMissing, match=r"no identity\.json"):
        open_disk(folder)


async def test_opening_a_folder_of_another_node_or_log_is_refused(tmp_path: Path) -> None:
    """Identity is not address: a folder of another node or cluster is refused by name (docs/promises.md)."""
    folder = make_folder(tmp_path)
    for expected in ({"node": 2}, {"log_id": "ff" * 16}):
        with pytest.raises(FolderForeign, match="own folder"):
            Disk.open(folder, segment_bytes=SEGMENT_BYTES, **expected)
    other = make_folder(tmp_path / "other", DiskIdentity("ee" * 16, 1, "cd" * 16))
    shutil.copy(segment(other), segment(folder))
    with pytest.raises(FolderForeign, match="belongs to log"):
        open_disk(folder)


async def test_two_processes_never_share_a_folder(tmp_path: Path) -> None:
    """The second to open a folder gets an error; the folder is free again after a close."""
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    with pytest.raises(FolderLocked, match="another process"):
        open_disk(folder)
    await disk.close()
    disk, _ = open_disk(folder)
    await disk.close()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", FolderDamaged),
        (b"not json", FolderDamaged),
        (b'{"version": 1}', FolderDamaged),
        (b"[1]", FolderDamaged),
        (b'{"version": 1, "log": "00", "node": 1, "incarnation": "00"}', FolderDamaged),
        (json.dumps({"version": 1, "log": "0" * 32, "node": True, "incarnation": "0" * 32}).encode(), FolderDamaged),
    ],
)
async def test_a_damaged_or_newer_identity_is_refused(tmp_path: Path, content: bytes, error: type[DiskError]) -> None:
    """An identity that cannot be read is damage, one of another version is named: neither is created again."""
    folder = make_folder(tmp_path)
    (folder / "identity.json").write_bytes(content)
    with pytest.raises(error):
        open_disk(folder)
    assert (folder / "identity.json").read_bytes() == content


async def test_a_flipped_bit_anywhere_in_the_identity_is_refused(tmp_path: Path) -> None:
    """Never another node, log or incarnation, whichever bit it is: with one of those this disk would vote as another's.
    The start says which file, and what to do."""
    folder = make_folder(tmp_path)
    path = folder / "identity.json"
    data = path.read_bytes()
    assert parse_identity(data) == IDENTITY
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            parse_identity(bytes(flipped))
        if bit % 97 == 0:
            path.write_bytes(flipped)
            with pytest.raises(FolderDamaged, match=r"identity\.json: .*restore it from a copy"):
                open_disk(folder)
    for size in range(len(data)):
        with pytest.raises(Corrupt):
            parse_identity(data[:size])
    with pytest.raises(Corrupt):
        parse_identity(data + b" ")


def test_a_folder_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """One of a development version from before 0.1.0, with a CRC and without, and one of a newer raftlog."""
    path = make_folder(tmp_path) / "identity.json"
    old = {"format": 1, "log": IDENTITY.log_id, "node": IDENTITY.node, "incarnation": IDENTITY.incarnation}
    for content, words in (
        (json.dumps(old).encode(), r"a raftlog from before 0\.1\.0 made it, and only that one opens it: format a new"),
        (json.dumps(old | {"crc": "00000000"}).encode(), r"a raftlog from before 0\.1\.0 made it"),
        (encode_identity(replace(IDENTITY, version=2)), "version 2: this code knows 1; start a newer raftlog"),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatUnknown, match=rf"identity\.json: {words}"):
            open_disk(path.parent)


async def test_pitfall_66_a_damaged_log_is_not_opened(tmp_path: Path) -> None:
    """Damage below a mark: the node does not start, so it neither votes nor acknowledges; nothing is changed.

    Guard: FolderDamaged in raftlog.cluster.files.folder before anything is written.
    """
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    await disk.carry_out(batch(*make_entries(FIRST.mark, 1, (100, 100))))
    await disk.close()
    flip(segment(folder), 300)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for _ in range(2):  # also the second time
        with pytest.raises(FolderDamaged, match=r"00001\.seg: damaged at byte \d+, after index 1.*nothing was") as e:
            open_disk(folder)
        assert e.value.damage is not None
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


async def test_opening_without_a_hard_state_is_refused(tmp_path: Path) -> None:
    """Both slots damaged, or the file gone: a node that forgot its vote never votes again under this identity."""
    folder = make_folder(tmp_path)
    path = folder / "shard-0" / "hard_state"
    flip(path, 10)
    disk, recovered = open_disk(folder)
    assert any("slot 0" in notice for notice in recovered.notices)
    await disk.close()
    flip(path, 10)
    flip(path, HARD_STATE_SLOT + 10)
    with pytest.raises(FolderDamaged, match="term and vote are lost"):
        open_disk(folder)
    path.unlink()
    with pytest.raises(FolderDamaged, match="term and vote are lost"):
        open_disk(folder)


async def test_pitfall_71_an_unknown_version_is_named(tmp_path: Path) -> None:
    """Files of a newer version: the node says so, and leaves them as they are.

    Guard: version checks of raftlog.raft.wal.formats, distinguished from damage in raftlog.cluster.files.folder.
    """
    folder = make_folder(tmp_path)
    data = bytearray(segment(folder).read_bytes())
    data[4] = 7
    data[76:80] = crc32c(bytes(data[:76])).to_bytes(4, "little")
    segment(folder).write_bytes(data)
    with pytest.raises(FormatUnknown, match=r"version 7.*start a version of raftlog"):
        open_disk(folder)


async def test_damaged_snapshots_fall_back(tmp_path: Path) -> None:
    """A damaged newest snapshot is reported, and the one before is used; without any, the log is replayed."""
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    log = [FIRST, *make_entries(FIRST.mark, 1, (10, 10))]
    await disk.carry_out(batch(*log[1:]))
    await disk.write_effects(effects_of(log))
    for entry in log[1:]:
        await disk.save_snapshot(entry.mark, CONFIGURATION, [b"state", b"of it"], 1)
    await disk.close()
    snapshots = folder / "shard-0" / "snapshots"
    for name, expected in (("chunks", 2), ("meta", None)):
        newest = sorted(snapshots.iterdir())[-1 if expected else 0]
        flip(newest / name, 20 if name == "meta" else 9)
        disk, recovered = open_disk(folder)
        assert (recovered.snapshot.mark.index if recovered.snapshot else None) == expected
        assert any("passed over" in notice for notice in recovered.notices)
        await disk.close()


async def test_effects_that_are_lost_lead_to_an_older_state(tmp_path: Path) -> None:
    """A snapshot that the ledger no longer reaches is passed over: replay makes the effects that are missing."""
    folder = make_folder(tmp_path)
    disk, _ = open_disk(folder)
    log = [FIRST, *make_entries(FIRST.mark, 1, (10, 10))]
    await disk.carry_out(batch(*log[1:]))
    await disk.write_effects(effects_of(log))
    await disk.save_snapshot(log[1].mark, CONFIGURATION, [b"old"], 1)
    await disk.save_snapshot(log[2].mark, CONFIGURATION, [b"new"], 1)
    await disk.close()
    ledger = segment(folder).with_suffix(".ledger")
    flip(ledger, ledger.stat().st_size - 5)
    disk, recovered = open_disk(folder)
    assert recovered.ledger_last == 2
    assert recovered.snapshot is not None
    assert recovered.snapshot.mark.index == 2
    assert any("made again by replay" in notice for notice in recovered.notices)
    await disk.write_effects(effects_of(log[2:]))
    await disk.close()
    disk, recovered = open_disk(folder)
    assert (recovered.ledger_last, recovered.notices) == (3, ())
    await disk.close()


async def test_opening_on_a_read_only_disk_is_refused(small: Path) -> None:
    """A folder on a file system that is mounted read-only: refused with what to do (chmod would not stop root)."""
    folder = small / "node"
    format_node(folder, IDENTITY, FIRST, segment_bytes=SEGMENT_BYTES)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    with pytest.raises(FolderReadOnly, match="remount it writable"):
        open_disk(folder)
    with pytest.raises(FolderReadOnly):
        format_node(small / "other", IDENTITY, FIRST, segment_bytes=SEGMENT_BYTES)


async def test_pitfall_61_a_full_disk_is_back_pressure(small: Path) -> None:
    """No room for the next segment: NoSpace before any byte of an entry is written, and it goes on once there is room.

    Guard: Journal.spares before Journal.append; NoSpace only from there and from files that can be built again.
    """
    folder = small / "node"
    format_node(folder, IDENTITY, FIRST, segment_bytes=SEGMENT_BYTES)
    disk, _ = open_disk(folder)
    log = [FIRST]
    for _ in range(2):  # the second time the reserve is used up
        refused = None
        while refused is None:
            assert len(log) < 200
            new = make_entries(log[-1].mark, 1, (3_000,))
            try:
                await disk.carry_out(batch(*new))
            except NoSpace as error:
                refused = error
            else:
                log += new
        assert "writes wait" in str(refused)
    assert not disk.is_fenced
    with pytest.raises(NoSpace):
        await disk.carry_out(batch(*new))
    assert await read_all(disk, log[-1].index) == log
    subprocess.run(["mount", "-o", "remount,size=512k", str(small)], check=True)
    await disk.carry_out(batch(*new))
    await disk.close()
    disk, recovered = open_disk(folder)
    assert recovered.last == new[0].mark
    assert recovered.notices == ()
    await disk.close()


async def test_formatting_on_a_full_disk_leaves_nothing(small: Path) -> None:
    """A format that runs out of space says so and leaves no folder that could be opened."""
    with pytest.raises(NoSpace, match="free disk space"):
        format_node(small / "node", IDENTITY, FIRST, segment_bytes=1 << 20)
    with pytest.raises(FolderMissing):
        open_disk(small / "node")
    format_node(small / "node", IDENTITY, FIRST, segment_bytes=SEGMENT_BYTES)
