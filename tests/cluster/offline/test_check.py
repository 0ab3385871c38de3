"""`raftlog disk check`: every damaged byte is found, what a crash leaves is no damage, and what it says to do helps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from raftlog.cluster.files.findings import FileHealth, Finding, Report
from raftlog.cluster.files.folder import IDENTITY, encode_identity
from raftlog.cluster.files.reserve import RESERVE
from raftlog.cluster.offline.check import check_folder
from raftlog.raft.codec.checks import crc32c
from raftlog.raft.types import HardState
from raftlog.raft.wal.formats import (
    FRAME_MAGIC,
    HARD_STATE_SLOT,
    SEGMENT_HEADER_SIZE,
    SIDE_HEADER_SIZE,
    SLOT_SIZE,
    LogIdentity,
    Slot,
    encode_slot,
)
from tests.cluster.files.disk_folder import IDENTITY as OWN, LOG, copy_of, flip, make_full_folder, segment, start

FLIPS_EACH = 16
BAD = (FileHealth.DAMAGED, FileHealth.MISSING, FileHealth.FOREIGN, FileHealth.NEWER)


def files_of(folder: Path) -> list[Path]:
    # no reader uses that file
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RESERVE)


def content_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files_of(folder)}


def bad(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.state in BAD]


def reseal(path: Path, start: int, size: int, change: Callable[[bytearray], None]) -> None:
    """Changes a structure of `size` bytes that ends with its CRC, and makes that CRC right."""
    data = bytearray(path.read_bytes())
    part = data[start : start + size]
    change(part)
    part[-4:] = crc32c(bytes(part[:-4])).to_bytes(4, "little")
    data[start : start + size] = part
    path.write_bytes(data)


def only(report: Report, name: str) -> Finding:
    """The one finding that is bad; it is about that file."""
    (finding,) = bad(report)
    assert finding.file.endswith(name), finding
    return finding


# ---------------------------------------------------------------------------------------------------------------


def test_an_intact_folder_is_intact_and_nothing_is_changed(folder: Path) -> None:
    """Every file has exactly one finding, all intact, and neither a byte nor a time of any file changes."""
    before, times = content_of(folder), [path.stat().st_mtime_ns for path in files_of(folder)]
    report = check_folder(folder)
    assert {finding.state for finding in report.findings} == {FileHealth.INTACT}
    assert len({finding.file for finding in report.findings}) == len(report.findings) == 4 + 5 * 3
    assert (report.state, report.node, report.first, report.last, report.refusal) == (FileHealth.INTACT, 1, 1, 81, "")
    assert content_of(folder) == before
    assert [path.stat().st_mtime_ns for path in files_of(folder)] == times


def test_every_flipped_byte_is_found(folder: Path) -> None:
    """Single flips over every file, its first and last bytes among them: each has a finding that names the file. The
    exception is behind the last entry of the newest segment: a torn tail, which holds no acknowledged entry.
    """
    chance = Random(20_261)
    newest = segment(folder, -1)
    flips = 0
    for path in files_of(folder):
        data = path.read_bytes()
        size = len(data)
        places = {0, size - 1, *(chance.randrange(size) for _ in range(FLIPS_EACH - 2))} if size else set()
        for position in sorted(places):
            flip(path, position, 1 << chance.randrange(8))
            flips += 1
            report = check_folder(folder)
            told = [finding for finding in report.findings if finding.state is not FileHealth.INTACT]
            name = str(path.relative_to(folder))
            assert any(name.startswith(finding.file) for finding in told), (name, position, told)
            torn = [finding for finding in told if finding.state is FileHealth.UNFINISHED]
            if not bad(report):
                assert path == newest
                assert [finding.file for finding in torn] == [name]
                assert report.last == 81
                assert (report.state, report.refusal) == (FileHealth.INTACT, "")
            path.write_bytes(data)
    assert flips >= 300


def test_every_kind_of_place_is_named(folder: Path) -> None:
    """Byte, index, reason and fix for a flip in each structure."""
    first, newest = segment(folder, 0), segment(folder, -1)
    cases: list[tuple[Path, int, str, str]] = [
        (folder / IDENTITY, 3, "cannot be read", "restore it from a copy"),
        (folder / "shard-0/hard_state", 40, "slot 0", "the other slot is intact"),
        (folder / "shard-0/hard_state", SLOT_SIZE + 9, "behind a slot", ""),
        (first, 10, "its entries were not looked at", "members replace"),
        (first, SEGMENT_HEADER_SIZE + 20, "entry header fails its CRC", "members replace"),
        (first, SEGMENT_HEADER_SIZE + 70, "data of entry 1 fails its CRC", "members replace"),
        (first, first.stat().st_size - 2, "where there should be zeros", ""),
        (newest, SEGMENT_HEADER_SIZE + 70, "a durable mark says", "members replace"),
        (first.with_suffix(".idx"), SIDE_HEADER_SIZE + 20, "row of record 2", "remove this file"),
        (first.with_suffix(".idx"), first.with_suffix(".idx").stat().st_size - 1, "footer", "makes it again"),
        (first.with_suffix(".ledger"), SIDE_HEADER_SIZE + 4, "effects of entry 1", "replays from the beginning"),
        (segment(folder, 3, ".ledger"), SIDE_HEADER_SIZE + 4, "CRC", "replays from the snapshot of 21"),
        (next(folder.glob("shard-0/snapshots/*57/chunks")), 90, "chunk 1 fails", "passes over"),
        (next(folder.glob("shard-0/snapshots/*57/meta")), 30, "meta fails its CRC", "passes over"),
    ]
    for path, position, what, mend in cases:
        data = path.read_bytes()
        flip(path, position)
        told = [finding for finding in bad(check_folder(folder)) if path.name in finding.file]
        assert told, (path, position)
        assert what in told[0].what, told
        assert mend in told[0].mend or mend in told[0].what, told
        assert told[0].position is not None, told
        path.write_bytes(data)


def test_the_check_predicts_what_a_start_does(folder: Path, tmp_path: Path) -> None:
    """For flips over every file: a node starts on the folder exactly where the report says so."""
    chance = Random(7)
    for number, path in enumerate(files_of(folder)):
        for turn in range(3):
            copy = copy_of(folder, tmp_path / f"copy-{number}-{turn}")
            target = copy / path.relative_to(folder)
            flip(target, chance.randrange(target.stat().st_size), 1 << chance.randrange(8))
            report = check_folder(copy)
            try:
                start(copy)
                has_started = True
            except Exception:
                has_started = False
            assert has_started == (not report.refusal), (target, report.refusal, bad(report))
            shutil.rmtree(copy)


def test_a_wrong_row_with_a_good_crc_is_found_and_repaired(folder: Path) -> None:
    """A row that was already wrong when the footer was made passes its CRC; it is compared with the segment.

    The fix works: without the .idx, the next start builds it again.
    """
    path = segment(folder, 1, ".idx")
    data = bytearray(path.read_bytes())
    data[SIDE_HEADER_SIZE + 16 * 3] ^= 4
    footer = data.index(b"RLIF")
    data[footer + 16 : footer + 20] = crc32c(bytes(data[SIDE_HEADER_SIZE:footer])).to_bytes(4, "little")
    data[-4:] = crc32c(bytes(data[footer:-4])).to_bytes(4, "little")
    path.write_bytes(data)
    finding = only(check_folder(folder), path.name)
    assert (finding.index, finding.position) == (22, SIDE_HEADER_SIZE + 16 * 3)
    start(folder)
    assert bad(check_folder(folder)), "a start believes the footer"
    path.unlink()
    start(folder)
    assert check_folder(folder).state is FileHealth.INTACT


def test_the_named_fix_repairs_a_damaged_ledger(folder: Path) -> None:
    """The fix works: without the file, a start replays from a snapshot before it, or from the beginning of the log."""
    path = segment(folder, 3, ".ledger")
    flip(path, SIDE_HEADER_SIZE + 30)
    assert "remove this file" in only(check_folder(folder), path.name).mend
    path.unlink()
    start(folder)
    report = check_folder(folder)
    assert (report.state, report.refusal) == (FileHealth.INTACT, "")


# ---------------------------------------------------------------------------------------------------------------
# Files that are short, missing, doubled, foreign, or newer.


def test_truncated_files_are_found(folder: Path) -> None:
    """Every file of the folder, cut to half and to nothing, is found."""
    for path in files_of(folder):
        data = path.read_bytes()
        for size in (len(data) // 2, 0):
            path.write_bytes(data[:size])
            told = [finding for finding in check_folder(folder).findings if finding.state is not FileHealth.INTACT]
            assert any(str(path.relative_to(folder)).startswith(finding.file) for finding in told), (path, size)
        path.write_bytes(data)


def test_missing_files_are_found(folder: Path) -> None:
    """Every file of the folder, taken away, is found; a whole snapshot is no loss, a segment is."""
    for path in files_of(folder):
        data = path.read_bytes()
        path.unlink()
        report = check_folder(folder)
        if path == segment(folder, 0, ".idx").with_suffix(".seg"):  # the snapshot of 21 covers it
            assert (report.state, report.first) == (FileHealth.INTACT, 20)
        else:
            assert bad(report), path
        path.write_bytes(data)
    shutil.rmtree(next(folder.glob("shard-0/snapshots/*57")))
    assert check_folder(folder).state is FileHealth.INTACT
    for ending in (".seg", ".idx", ".ledger"):
        segment(folder, 0, ending).unlink()
    report = check_folder(folder)
    assert report.state is FileHealth.INTACT, "the snapshot of 21 covers the first segment"
    assert report.first == 20
    shutil.rmtree(next(folder.glob("shard-0/snapshots/*21")))
    report = check_folder(folder)
    assert "records 1 to 19" in only(report, "log").what
    assert "no usable snapshot" in report.refusal


def test_doubled_and_foreign_files_are_found(folder: Path, tmp_path: Path) -> None:
    """A segment, snapshot or hard state under another name or from another log is distinguished from damage."""
    first = segment(folder, 0)
    doubled = first.with_name(f"{7:020d}.seg")
    shutil.copy(first, doubled)
    assert "it is a copy of" in next(f.what for f in bad(check_folder(folder)) if f.file.endswith(doubled.name))
    doubled.unlink()
    shutil.copytree(next(folder.glob("shard-0/snapshots/*57")), folder / f"shard-0/snapshots/{60:020d}")
    assert "a copy of the snapshot of index 57" in only(check_folder(folder), "meta").what
    shutil.rmtree(folder / f"shard-0/snapshots/{60:020d}")
    shutil.copy(first, first.with_suffix(".bak"))
    report = check_folder(folder)
    assert report.state is FileHealth.INTACT
    assert [f.state for f in report.findings if f.file.endswith(".bak")] == [FileHealth.UNKNOWN]
    first.with_suffix(".bak").unlink()

    def other_log(part: bytearray) -> None:
        part[8] ^= 1

    reseal(segment(folder, 2), 0, SEGMENT_HEADER_SIZE, other_log)
    assert any(f.state is FileHealth.FOREIGN for f in bad(check_folder(folder)))


def test_an_identity_of_another_log_or_node_is_named(folder: Path) -> None:
    """Another node's identity.json is whole; what the other files and the log's configuration say gives it away."""
    path = folder / IDENTITY
    for other, what in (
        (replace(OWN, log_id="ac" * 16), "every file beside it belongs to log"),
        (replace(OWN, incarnation="ce" * 16), "the log (entry 1) knows node 1"),
        (replace(OWN, node=2), "the log (entry 1) knows node 1"),
    ):
        path.write_bytes(encode_identity(other))
        finding = only(check_folder(folder), IDENTITY)
        assert finding.state is FileHealth.FOREIGN
        assert what in finding.what


def test_files_of_a_newer_version_are_no_damage(folder: Path) -> None:
    """Intact bytes of an unknown version: the check could not be made, and says which version of raftlog to take."""

    def newer(part: bytearray) -> None:
        part[4] = 9

    meta = next(folder.glob("shard-0/snapshots/*57/meta"))
    cases = [
        (folder / "shard-0/hard_state", 0, SLOT_SIZE),
        (folder / "shard-0/hard_state", HARD_STATE_SLOT, SLOT_SIZE),
        (segment(folder, 1), 0, SEGMENT_HEADER_SIZE),
        (segment(folder, 1), SEGMENT_HEADER_SIZE, 64),
        (segment(folder, 1, ".idx"), 0, SIDE_HEADER_SIZE),
        (segment(folder, 1, ".ledger"), 0, SIDE_HEADER_SIZE),
        (segment(folder, 1, ".ledger"), SIDE_HEADER_SIZE, 40),
        (meta, 0, meta.stat().st_size),
    ]
    for path, position, size in cases:
        data = path.read_bytes()
        reseal(path, position, size, newer)
        told = [f for f in check_folder(folder).findings if f.state is FileHealth.NEWER]
        assert told, path
        assert "the version of raftlog that wrote it" in told[0].mend
        path.write_bytes(data)
    (folder / IDENTITY).write_bytes(encode_identity(replace(OWN, version=2)))
    assert any(f.state is FileHealth.NEWER and f.file == IDENTITY for f in check_folder(folder).findings)


# ---------------------------------------------------------------------------------------------------------------
# What a crash leaves is no damage.


def test_files_after_a_crash_are_no_damage(tmp_path: Path) -> None:
    """A node that was killed, its last batch torn, its hard state written once, spare files and half snapshots. Row and
    effects of that batch are not there: they would prove that it had been synced."""
    folder = tmp_path / "node-1"
    make_full_folder(folder, is_clean=False)
    assert check_folder(folder).state is FileHealth.INTACT
    newest = segment(folder, -1)
    data = newest.read_bytes()
    end = len(data.rstrip(b"\0"))
    newest.write_bytes(data[: end - 30] + bytes(len(data) - end + 30))
    (newest.with_suffix(".idx")).write_bytes(newest.with_suffix(".idx").read_bytes()[:-32])  # it has two records
    ledger = newest.with_suffix(".ledger").read_bytes()
    newest.with_suffix(".ledger").write_bytes(ledger[: ledger.rindex(FRAME_MAGIC)])
    (folder / LOG / "spare-0").write_bytes(bytes(100))
    (folder / f"shard-0/snapshots/{70:020d}.new").mkdir()
    report = check_folder(folder)
    assert (report.state, report.refusal) == (FileHealth.INTACT, "")
    torn = next(f for f in report.findings if "torn tail" in f.what)
    assert (torn.file, torn.state, torn.index) == (f"{LOG}/{newest.name}", FileHealth.UNFINISHED, 79)
    assert report.last == 79
    start(folder)
    assert check_folder(folder).last == 79


def test_a_newest_segment_that_is_gone_is_noticed(folder: Path) -> None:
    """A log that ends one segment earlier is whole to a start; the .idx that stayed behind gives it away. Without rows
    it is what a crash leaves while a segment is made."""
    path = segment(folder, -1)
    path.unlink()
    report = check_folder(folder)
    (gone,) = [finding for finding in bad(report) if finding.state is FileHealth.MISSING]
    assert gone.file.endswith(path.name)
    assert "the file is missing" in gone.what
    for ending in (".idx", ".ledger"):
        beside = path.with_suffix(ending)
        beside.write_bytes(beside.read_bytes()[:SIDE_HEADER_SIZE])
    assert not [finding for finding in check_folder(folder).findings if finding.state is FileHealth.MISSING]


def test_a_cut_that_was_begun_is_no_damage(folder: Path) -> None:
    """The hard state says that the log is being cut after 41, and nothing of it was done: a start finishes it."""

    log = LogIdentity(bytes.fromhex(OWN.log_id))
    path = folder / "shard-0/hard_state"
    data = bytearray(path.read_bytes())
    slot = encode_slot(log, Slot(40, HardState(2, 1, 1), cut=41))
    data[: len(slot)] = slot
    path.write_bytes(data)
    report = check_folder(folder)
    assert (report.state, report.last, report.refusal) == (FileHealth.INTACT, 41, ""), bad(report)
    assert any("are being cut off" in finding.what for finding in report.findings)
