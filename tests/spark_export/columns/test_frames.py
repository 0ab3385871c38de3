"""Every byte of a raw chunk is checked, and what does not follow is refused."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from raftlog.raft.codec import block, entry
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.checks import Corrupt, UnknownVersion, crc32c
from raftlog.raft.codec.entry import HEADER_SIZE
from raftlog.raft.codec.raw import RAW_SIZE, RawHeader, decode_raw_header
from raftlog.raft.types import EntryKind
from raftlog.spark_export.columns import effects as effects_heads, frames, ledger
from raftlog.spark_export.columns.decode import decode
from raftlog.spark_export.columns.frames import locate
from raftlog.spark_export.columns.slab import join
from raftlog.statemachine import effects
from raftlog.statemachine.commands import Operation, Result
from raftlog.statemachine.effects import CorruptEffects, Effects, RequestEffect, UnknownEffects, encode_effects
from tests.spark_export import logs
from tests.spark_export.logs import Log

pytestmark = pytest.mark.usefixtures("shortest_run")

Parts = tuple[RawHeader, bytes, bytes, bytes]
REFUSED = (Corrupt, UnknownVersion, CorruptEffects, UnknownEffects)


def read(*parts: Parts, previous: tuple[int, int] | None = None) -> None:
    """Checks and decodes these chunks."""
    decode(locate(join(list(parts)), previous))


@pytest.mark.parametrize(
    ("dtype", "module", "struct"),
    [
        (frames.ENTRY, entry, "_HEADER"),
        (frames.BLOCK, block, "_BLOCK"),
        (frames.RECORD, block, "RECORD"),
        (effects_heads.EFFECTS, effects, "_HEADER"),
        (ledger.ROW, effects, "_ROW"),
        (ledger.CHANGE, effects, "_CHANGE"),
    ],
)
def test_layouts_are_those_of_the_codecs(dtype: "np.dtype[Any]", module: object, struct: str) -> None:
    """What numpy reads at each offset is what the codec's own struct packs there, field by field."""
    packer = getattr(module, struct)
    names = dtype.names or ()
    values = [7 + number for number in range(len(names))]
    packed = packer.pack(
        *[value.to_bytes(4, "little") if name == "magic" else value for name, value in zip(names, values, strict=True)][
            : len(packer.unpack(bytes(packer.size)))
        ]
    )
    padded = packed.ljust(dtype.itemsize, b"\0")
    assert len(padded) == dtype.itemsize
    row = np.frombuffer(padded, dtype)[0]
    fields = len(packer.unpack(packed))
    assert [int(row[name]) for name in names[:fields]] == values[:fields]


@pytest.mark.parametrize("log", [logs.mixed(21, 9, records_max=2), logs.singles(4, 7)], ids=["mixed", "singles"])
@pytest.mark.parametrize("marks", [False, True])
def test_every_flipped_bit_is_refused(marks: bool, log: Log) -> None:
    """One bit of every byte of rows, segment and ledger flipped in turn: each is refused, by nothing but the errors
    that say so."""
    chance = random.Random(5)
    head, *parts = logs.split(log.chunk(marks=marks))
    read((head, *parts))  # type: ignore[arg-type]  # three parts
    for which, part in enumerate(parts):
        for position in range(len(part)):
            flipped = bytearray(part)
            flipped[position] ^= 1 << chance.randrange(8)
            damaged = [*parts]
            damaged[which] = bytes(flipped)
            with pytest.raises(REFUSED):
                read((head, *damaged))  # type: ignore[arg-type]  # three parts


@pytest.mark.parametrize("byte", range(RAW_SIZE))
def test_a_flipped_bit_of_a_chunk_head_is_refused(byte: int) -> None:
    """The head of a chunk has a CRC of its own."""
    chunk = bytearray(logs.appends(1, 1).chunk())
    chunk[byte] ^= 0x10
    with pytest.raises((Corrupt, UnknownVersion)):
        decode_raw_header(bytes(chunk))


def test_damage_names_the_entry_before_it() -> None:
    """The message says after which index the first damage lies, although all CRCs are checked at once."""
    log = logs.appends(20, 3)
    head, rows, segment, effects_bytes = logs.split(log.chunk())
    flipped = bytearray(segment)
    flipped[len(segment) // 2] ^= 1
    with pytest.raises(Corrupt, match=r"after index \d+: data of entry \d+ fails its CRC"):
        read((head, rows, bytes(flipped), effects_bytes))


def test_two_wrong_pieces_do_not_cancel() -> None:
    """The same flip in two entries, which a plain XOR of CRCs would miss, is found."""
    log = logs.appends(2, 1)
    head, rows, segment, effects_bytes = logs.split(log.chunk())
    size = (len(segment) - HEADER_SIZE) // 2
    for position in range(HEADER_SIZE + HEADER_SIZE, HEADER_SIZE + size):
        flipped = bytearray(segment)
        flipped[position] ^= 1
        flipped[position + size] ^= 1
        with pytest.raises(Corrupt):
            read((head, rows, bytes(flipped), effects_bytes))


def _resealed(parts: Parts, change: Callable[[bytearray], None]) -> Parts:
    """The chunk with its rows changed and their CRC put right: a sender that is wrong, not a damaged wire."""
    head, rows, segment, effects_bytes = parts
    changed = bytearray(rows)
    change(changed)
    return head._replace(rows_crc=crc32c(bytes(changed))), bytes(changed), segment, effects_bytes


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_point_elsewhere_are_refused(seed: int) -> None:
    """Every number of the .idx rows, moved a little with the CRC right again, is found by the bytes it points at."""
    log = logs.mixed(seed, 8, records_max=3) if seed else logs.singles(seed, 8)
    parts = logs.split(log.chunk())
    for position in range(0, len(parts[1]), 4):
        for delta in (1, 64, 256):

            def move(rows: bytearray, position: int = position, delta: int = delta) -> None:
                number = int.from_bytes(rows[position : position + 4], "little") + delta
                rows[position : position + 4] = number.to_bytes(4, "little")

            kind = int.from_bytes(parts[1][position // 16 * 16 + 12 :][:4], "little")
            if kind != EntryKind.COMMANDS and position % 16 in (4, 8):
                continue  # without blocks the two are not read
            with pytest.raises(REFUSED):
                read(_resealed(parts, move))


def _two(log: Log) -> tuple[Parts, Parts]:
    return logs.split(log.chunk(0, 3)), logs.split(log.chunk(3, 6))


def test_chunks_that_do_not_follow_are_refused() -> None:
    """A chunk missing between two, one given twice, two in the wrong order."""
    log = logs.mixed(2, 12)
    first, second = _two(log)
    read(first, second)
    for wrong in ([first, logs.split(log.chunk(4, 6))], [first, first], [second, first]):
        with pytest.raises(Corrupt):
            read(*wrong)


def test_the_chain_is_checked() -> None:
    """An intact entry of another history in the right place, by index and term, is refused within a chunk and between
    chunks."""
    log, other = logs.appends(5, 2, value_bytes=10), logs.appends(5, 2, value_bytes=11)
    log.entries[3:], log.effects[3:] = other.entries[3:], other.effects[3:]
    with pytest.raises(Corrupt, match="does not follow"):
        read(logs.split(log.chunk()))
    before = log.entries[2]
    with pytest.raises(Corrupt, match="does not follow"):
        read(logs.split(log.chunk(3)), previous=(before.index, before.mark.header_crc))
    read(logs.split(log.chunk(3)), previous=(before.index, other.entries[2].mark.header_crc))


def test_effects_of_other_entries_are_refused() -> None:
    """Effects with intact CRCs but of other entries, too few, too many, or with other rows than there are requests."""
    log = logs.mixed(8, 12)
    head, rows, segment, effects_bytes = logs.split(log.chunk())
    for wrong in (
        b"".join(log.effects[:-1]),
        effects_bytes + log.effects[-1],
        b"".join(reversed(log.effects)),
        b"",
    ):
        with pytest.raises(REFUSED):
            read((head, rows, segment, wrong))
    lacking = Log()
    block = encode_block([BlockRecord(Operation.PUT, b"k", b"v")])
    lacking.add(EntryKind.COMMANDS, block + block, 2, requests=[RequestEffect(Result.REFUSED, 1)])
    with pytest.raises(CorruptEffects, match="rows"):
        read(logs.split(lacking.chunk()))


def test_brief_effects_that_do_not_fit_are_refused() -> None:
    """Of brief effects the first and the last of every chunk are checked. Refused are each flipped bit, effects of
    other entries, too few or too many, a payload, another revision, and entries of several records.
    """
    log = logs.singles(5, 9, is_plain=True)
    chunks = [logs.split(log.chunk(first, last, brief=True)) for first, last in ((0, 4), (4, 9))]
    read(*chunks)
    head, rows, segment, ledger = chunks[1]
    flips = [ledger[:byte] + bytes([ledger[byte] ^ 1 << byte % 8]) + ledger[byte + 1 :] for byte in range(len(ledger))]
    first, last = log.effects[4], log.effects[8]
    others = [encode_effects(Effects(index, revision, (), True)) for index, revision in ((9, 2), (8, 1), (10, 1))]
    others.append(encode_effects(Effects(9, 1, (RequestEffect(Result.APPLIED, 1),))))
    for wrong in (
        *flips,
        b"",
        first,
        first * 2,
        last + first,
        log.effects[5] + last,
        ledger * 2,
        ledger + b"\0",
        *[first + other for other in others],
    ):
        with pytest.raises(REFUSED):
            read(chunks[0], (head, rows, segment, wrong))
    several = logs.appends(3, 2)
    with pytest.raises(CorruptEffects, match="cannot have them"):
        read(logs.split(several.chunk(1, brief=True)))


@pytest.mark.parametrize("operation", [0, 6, 31, 37, 255])
def test_an_unknown_operation_is_refused(operation: int) -> None:
    """An operation of a later version is never shown as something else."""
    log = Log()
    log.plain([BlockRecord(operation, b"k", b"v")])
    with pytest.raises(UnknownVersion, match=f"operation {operation}: upgrade"):
        read(logs.split(log.chunk()))
