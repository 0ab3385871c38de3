"""The golden bytes of docs/formats.md are what the code writes and reads; anything else is refused."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.files.folder import DiskIdentity, encode_identity
from raftlog.cluster.peers.hello import Hello, Purpose, Word, encode_hello, encode_word
from raftlog.cluster.protocol.disk_reports import DiskReport, encode_report
from raftlog.cluster.protocol.forward_frames import encode_read
from raftlog.cluster.records.backup_format import BackupEncoder, BackupHead
from raftlog.cluster.records.backup_manifest import BackupManifest, EndOfLog, LogFile, decode_manifest, encode_manifest
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import decode_entry, seal_entry
from raftlog.raft.codec.frame import encode_for_shard
from raftlog.raft.codec.index_rows import index_rows
from raftlog.raft.codec.mark import decode_mark, encode_mark
from raftlog.raft.codec.message import encode_message
from raftlog.raft.codec.raw import RawHeader, encode_raw_header
from raftlog.raft.hello import Start
from raftlog.raft.messages import TimeoutNow
from raftlog.raft.types import EntryKind, HardState, Mark, ReplacedEnd, TermRun
from raftlog.raft.wal.divergence import DivergenceNote, encode_note
from raftlog.raft.wal.formats import (
    INDEX_MAGIC,
    LEDGER_MAGIC,
    ForeignFile,
    LedgerFooter,
    LogIdentity,
    SegmentHeader,
    Slot,
    SnapshotMeta,
    Summary,
    check_side_header,
    decode_chunk_header,
    decode_index_footer,
    decode_ledger_footer,
    decode_segment_header,
    decode_slot,
    decode_snapshot_meta,
    encode_chunk,
    encode_index_footer,
    encode_ledger_footer,
    encode_segment_header,
    encode_side_header,
    encode_slot,
    encode_snapshot_meta,
    term_runs,
)
from raftlog.statemachine.commands import Result
from raftlog.statemachine.digest import SetDigest
from raftlog.statemachine.effects import Effects, KeyChange, RequestEffect, encode_effects
from tests.raft.wal.journal_driver import CONFIGURATION, first_entry

DOCS = Path(__file__).resolve().parents[3] / "docs" / "formats.md"
LOG = LogIdentity(bytes(range(16)))
MARK = Mark(41, 3, 0xDEADBEEF, 1_700_000_000_000, 123_456)

SEGMENT = SegmentHeader(MARK, 1 << 26)
SUMMARY = Summary(
    Mark(50, 4, 0xCAFE, 1_700_000_000_009, 130_000), 9_000, 1_700_000_000_001, (TermRun(42, 3), TermRun(45, 4)), (45,)
)
LEDGER = LedgerFooter(50, 2_064, array("Q", [42, 64, 48, 70_000]))
SLOT = Slot(9, HardState(7, 2, 5), 40, replaced=ReplacedEnd(6, 52, 40))
HEALING = Slot(10, HardState(8, 0, 5, 8), 40, is_mending=True)
META = SnapshotMeta(MARK, b"cfg", 1, 2, 10, 0x1234)
FIRST = first_entry(CONFIGURATION, 1_700_000_000_000)
BLOCK = encode_block(
    [BlockRecord(1, b"k", b"v"), BlockRecord(1, None, b"", b"\x90", 5)],
    session=7,
    sequence=2,
    settled=1,
    time_ms=1_700_000_000_001,
    plain=True,
)
SECOND = seal_entry(
    FIRST.mark, term=2, kind=EntryKind.COMMANDS, count=2, time_ms=1_700_000_000_002, clock_ms=10, data=BLOCK
)
PUT = RequestEffect(Result.APPLIED, 2, True, 0, (KeyChange(b"k", b"v", 0, 2, 1, True),))


def _chunks() -> bytes:
    one, crc = encode_chunk(b"hello", 0)
    other, _ = encode_chunk(b"world", crc)
    return one + b"hello" + other + b"world"


def _backup() -> bytes:
    encoder = BackupEncoder()
    head = BackupHead(LOG.log_id.hex(), 2, MARK.index, MARK.term, 7, SetDigest(1, 2, 3, 4), 1_700_000_000_005)
    return encoder.begin(head) + encoder.part(b"hello") + encoder.part(b"world") + encoder.end(MARK, CONFIGURATION, 1)


MANIFEST: Final = BackupManifest(
    LOG.log_id.hex(), 1_700_000_000_005, 2, (LogFile(1, 3, 500, 0xAB),), EndOfLog(3, 2, 0xDEADBEEF)
)
HELLO: Final = partial(
    Hello,
    log=LOG.log_id.hex(),
    sender=1,
    to=2,
    incarnation="ab" * 16,
    boot=3,
    purpose=Purpose.CONSENSUS,
    start=Start(run=0xABC, last_index=7, last_term=2, term=3, floor=4),
)
WRITTEN: dict[str, Callable[[], bytes]] = {
    "identity": lambda: encode_identity(DiskIdentity(LOG.log_id.hex(), 2, "ab" * 16)),
    "entry": lambda: FIRST.header + FIRST.data,
    "entry header": lambda: SECOND.header,
    "block": lambda: BLOCK,
    "block with an admission": lambda: encode_block([BlockRecord(1, None, b"v")], admission=b"\x92\x07\xa3ada"),
    "configuration": lambda: encode_configuration(CONFIGURATION),
    "configuration at cluster version 2": lambda: encode_configuration(replace(CONFIGURATION, version=2)),
    "configuration with a removed disk": lambda: encode_configuration(
        replace(CONFIGURATION, removed=((2, "cd" * 16),))
    ),
    "segment header": lambda: encode_segment_header(LOG, SEGMENT),
    "durable mark": lambda: encode_mark(MARK, 4_096),
    "idx header": lambda: encode_side_header(LOG, INDEX_MAGIC, MARK),
    "idx rows": lambda: index_rows(SECOND, 300),
    "idx footer": lambda: encode_index_footer(SUMMARY, 0xABCD),
    "ledger header": lambda: encode_side_header(LOG, LEDGER_MAGIC, MARK),
    "effects": lambda: encode_effects(Effects(3, 2, (PUT,))),
    "plain effects": lambda: encode_effects(Effects(3, 1, (), True)),
    "ledger footer": lambda: encode_ledger_footer(LEDGER),
    "hard state slot": lambda: encode_slot(LOG, SLOT),
    "hard state slot of a damaged log": lambda: encode_slot(LOG, HEALING),
    "snapshot meta": lambda: encode_snapshot_meta(LOG, META),
    "snapshot chunks": _chunks,
    "backup": _backup,
    "backup manifest": lambda: encode_manifest(MANIFEST),
    "note of a wrong state": lambda: encode_note(LOG, DivergenceNote(40, 50)),
    "raw header": lambda: encode_raw_header(RawHeader(2, 100, 40, 0xAA, 300, 2, 4, 1, 3, 3)),
    "brief raw header": lambda: encode_raw_header(RawHeader(3, 600, 80, 0xAA, 300, 2, 5, 1, 4, 4, True)),
    "blanked raw header": lambda: encode_raw_header(RawHeader(2, 100, 40, 0xAA, 300, 2, 4, 1, 3, 3, is_blanked=True)),
    "hello": lambda: encode_hello(HELLO()),
    "frame of group 3": lambda: encode_for_shard(3, encode_read(5)),
    "disk report": lambda: encode_report(DiskReport(True, 4_096, 130_000_000, 388, 1_024)),
    "hello with its proof": lambda: encode_hello(HELLO(challenge=0xDEF, answer=0x123)),
    "answer on a link": lambda: encode_word(Word.ANSWER, 0x123),
    "peer frame": lambda: encode_message(TimeoutNow(sender=1, to=2, term=3, last_index=4)),
}


def golden() -> dict[str, bytes]:
    """The golden bytes of docs/formats.md by name."""
    found: dict[str, str] = {}
    name = ""
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        if line.startswith("    golden: "):
            name = line.removeprefix("    golden: ")
            found[name] = ""
        elif name and line.startswith("    "):
            found[name] += line.strip()
        else:
            name = ""
    return {key: bytes.fromhex(value) for key, value in found.items()}


def test_the_docs_name_every_format() -> None:
    """docs/formats.md has golden bytes for each format, and no others."""
    assert sorted(golden()) == sorted(WRITTEN)


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_golden_bytes(name: str) -> None:
    """The code writes exactly the bytes that docs/formats.md shows."""
    assert WRITTEN[name]().hex() == golden()[name].hex()


def test_written_values_are_read_back() -> None:
    """A written value reads back as the same value."""
    assert decode_segment_header(LOG, encode_segment_header(LOG, SEGMENT)) == SEGMENT
    assert decode_index_footer(encode_index_footer(SUMMARY, 7)) == (SUMMARY, 7)
    assert decode_slot(LOG, encode_slot(LOG, SLOT)) == SLOT
    assert decode_slot(LOG, encode_slot(LOG, HEALING)) == HEALING
    raised = replace(HEALING, state=replace(HEALING.state, floor=10))
    assert decode_slot(LOG, encode_slot(LOG, raised)) == raised  # a floor may be above the term: a later leader's
    for wrong in (replace(HEALING, cut=0), replace(HEALING, state=replace(HEALING.state, floor=0))):
        with pytest.raises(UnknownVersion, match="with the floor"):
            decode_slot(LOG, encode_slot(LOG, wrong))
    assert decode_snapshot_meta(LOG, encode_snapshot_meta(LOG, META)) == META
    footer = encode_ledger_footer(LEDGER)
    assert decode_ledger_footer(b"tail of the effects" + footer, LEDGER.end + len(footer)) == LEDGER
    assert decode_mark(encode_mark(MARK, 9), 0, 9) == Mark(MARK.index, MARK.term, MARK.header_crc)
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    assert decode_chunk_header(encode_chunk(b"abc", 5)[0]) == (3, crc32c(b"abc", 5))
    check_side_header(LOG, INDEX_MAGIC, MARK, encode_side_header(LOG, INDEX_MAGIC, MARK))


READERS: dict[str, Callable[[bytes], object]] = {
    "segment header": lambda data: decode_segment_header(LOG, data),
    "idx header": lambda data: check_side_header(LOG, INDEX_MAGIC, MARK, data),
    "ledger header": lambda data: check_side_header(LOG, LEDGER_MAGIC, MARK, data),
    "idx footer": decode_index_footer,
    "ledger footer": lambda data: decode_ledger_footer(data, LEDGER.end + len(data)),
    "hard state slot": lambda data: decode_slot(LOG, data),
    "snapshot meta": lambda data: decode_snapshot_meta(LOG, data),
    "durable mark": lambda data: decode_mark(data, 0, 4_096),
    "entry": decode_entry,
}


@pytest.mark.parametrize("name", sorted(READERS))
def test_every_flip_and_every_cut_is_noticed(name: str) -> None:
    """No bit may change and no byte be missing: the reader raises Corrupt, and nothing else."""
    whole = WRITTEN[name]()
    READERS[name](whole)
    for position in range(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[position] ^= 1 << bit
            with pytest.raises(Corrupt):
                READERS[name](bytes(data))
        with pytest.raises(Corrupt):
            READERS[name](whole[:position])


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_refused(name: str, data: bytes, is_sealed: bool) -> None:
    """Accept or raise Corrupt, UnknownVersion or ForeignFile: nothing else, also where magic and CRC are right."""
    whole = WRITTEN[name]()
    if is_sealed and name not in ("entry", "ledger footer"):
        data = (whole[:4] + data + bytes(len(whole)))[: len(whole) - 4]
        data += crc32c(data).to_bytes(4, "little")
    try:
        READERS[name](data)
    except (Corrupt, UnknownVersion, ForeignFile):
        pass


def test_impossible_index_rows_are_refused() -> None:
    """An entry whose blocks hold other records than it says, or of an unknown version, gets no rows."""
    mark = FIRST.mark

    def rows(data: bytes, count: int) -> bytes:
        entry = seal_entry(mark, term=2, kind=EntryKind.COMMANDS, count=count, time_ms=0, clock_ms=0, data=data)
        return index_rows(entry, 300)

    assert len(rows(BLOCK + BLOCK, 4)) == 4 * 16
    for data, count in ((BLOCK, 1), (BLOCK, 3), (BLOCK[:-1], 2), (BLOCK + b"x", 2), (b"", 1)):
        with pytest.raises(Corrupt):
            rows(data, count)
    with pytest.raises(UnknownVersion, match="version 9"):
        rows(b"\x09" + BLOCK[1:], 2)


def test_term_runs_join() -> None:
    """The runs of consecutive segments become one list in which terms only rise."""
    one, two, three = TermRun(1, 1), TermRun(4, 2), TermRun(9, 2)
    assert term_runs([[one, two], [], [three, TermRun(12, 5)]]) == (one, two, TermRun(12, 5))
