"""Hashes rows of the log column by column: the vectorised twin of `raftlog.statemachine.digest.log_row_hashes`.

`raftlog verify` uses it where it runs without Spark. Numbers and the few distinct words are chained for all rows at
once. Keys and values take one call each, and only headers and spelled-out changes take more. A null adds nothing to the
chain. So an altered file with a null anywhere has the same digest here and in Spark.

xxh64: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from raftlog.cluster.api.status import SetDigestHex
from raftlog.spark_export.columns.schema import ARROW
from raftlog.statemachine.digest import LOW, MASKED, SEED, pack_long

Hashes = npt.NDArray[np.uint64]

_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5
_MASK: Final = (1 << 64) - 1
_STRIPE: Final = 32  # bytes; xxh64 hashes shorter data without its four lanes
_MILLI: Final = 1000  # microseconds


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """The hash of each row of a batch with all columns of the log, in order. As in `log_row_hashes`, values of
    configurations and of changes of permissions are left out."""
    operation = pc.fill_null(pc.equal(batch.column("operation"), "access"), False)
    is_hidden = pc.or_(pc.equal(batch.column("kind"), "configuration"), operation)
    if pc.any(is_hidden).as_py():
        place = batch.schema.get_field_index("value")
        value = batch.column(place)
        batch = batch.set_column(
            place, batch.schema.field(place), pc.if_else(is_hidden, pa.scalar(None, value.type), value)
        )
    hashes = np.full(len(batch), SEED, np.uint64)
    mask = np.zeros(len(batch), np.int64)
    for bit, name in enumerate(MASKED):
        mask |= _valid(batch.column(name)).astype(np.int64) << bit
    for name in ARROW.names:
        column = batch.column(name)
        if pa.types.is_list(column.type):
            _chain_lists(hashes, column)
        else:
            _CHAINS[column.type](hashes, column)
        if name == "kind":
            hashes = _long(hashes, mask)
    return hashes


def set_digest(hashes: Hashes) -> SetDigestHex:
    """The digest of a set of rows with these hashes."""
    low = int((hashes & np.uint64(LOW)).sum(dtype=np.uint64))  # 32 bits each: billions of them fit
    high = int((hashes >> np.uint64(32)).sum(dtype=np.uint64))
    return SetDigestHex(len(hashes), f"{int(np.bitwise_xor.reduce(hashes)):016x}", f"{low:x}", f"{high:x}")


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _rotated(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _mixed(values: Hashes) -> Hashes:
    """The last step of xxh64."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(_P2)
    values = (values ^ (values >> np.uint64(29))) * np.uint64(_P3)
    return values ^ (values >> np.uint64(32))


def _word(hashes: Hashes, words: Hashes) -> Hashes:
    """Takes in 8 bytes of each row."""
    rounds = _rotated(words * np.uint64(_P2), 31) * np.uint64(_P1)
    return _rotated(hashes ^ rounds, 27) * np.uint64(_P1) + np.uint64(_P4)


def _long(hashes: Hashes, values: npt.NDArray[np.int64]) -> Hashes:
    """Each hash chained over its bigint."""
    return _mixed(_word(hashes + np.uint64((_P5 + 8) & _MASK), values.view(np.uint64)))


def _text(hashes: Hashes, text: bytes) -> Hashes:
    """Each hash chained over the same word of less than 32 bytes."""
    hashes = hashes + np.uint64((_P5 + len(text)) & _MASK)
    at = 0
    while at + 8 <= len(text):
        hashes = _word(hashes, np.array([int.from_bytes(text[at : at + 8], "little")], np.uint64))
        at += 8
    if at + 4 <= len(text):
        found = int.from_bytes(text[at : at + 4], "little") * _P1 & _MASK
        hashes = _rotated(hashes ^ np.uint64(found), 23) * np.uint64(_P2) + np.uint64(_P3)
        at += 4
    for byte in text[at:]:
        hashes = _rotated(hashes ^ np.uint64(byte * _P5 & _MASK), 11) * np.uint64(_P1)
    return _mixed(hashes)


# ---------------------------------------------------------------------------------------------------------------
# Columns, each chained to the hashes in place.


def _chain_where(hashes: Hashes, where: npt.NDArray[np.bool_], chain: Callable[[Hashes], Hashes]) -> None:
    if where.all():
        hashes[:] = chain(hashes)
    elif where.any():
        hashes[where] = chain(hashes[where])


def _chain_longs(hashes: Hashes, column: pa.Array) -> None:
    valid = _valid(column)
    values = np.ascontiguousarray(pc.fill_null(column.cast(pa.int64()), 0).to_numpy())[valid]
    _chain_where(hashes, valid, lambda own: _long(own, values))


def _chain_times(hashes: Hashes, column: pa.Array) -> None:
    valid = _valid(column)
    values = np.ascontiguousarray(pc.fill_null(column.cast(pa.int64()), 0).to_numpy())[valid] // _MILLI
    _chain_where(hashes, valid, lambda own: _long(own, values))


def _chain_texts(hashes: Hashes, column: pa.Array) -> None:
    words = column.dictionary_encode()
    numbers = pc.fill_null(words.indices, -1).to_numpy(zero_copy_only=False)
    for number, text in enumerate(words.dictionary.to_pylist()):
        data = text.encode()
        if len(data) < _STRIPE:
            _chain_where(hashes, numbers == number, lambda own, data=data: _text(own, data))  # type: ignore[misc]
        else:  # no word of the log is as long, but one of an altered file may be
            for row in np.flatnonzero(numbers == number).tolist():
                hashes[row] = xxh64_intdigest(data, int(hashes[row]))


def _chain_binaries(hashes: Hashes, column: pa.Array) -> None:
    if column.null_count == len(column):
        return
    _, offsets_of, data_of = column.buffers()
    offsets = np.frombuffer(offsets_of, np.int32)[column.offset : column.offset + len(column) + 1]
    data = memoryview(data_of if data_of is not None else b"")
    begins, ends = offsets[:-1], offsets[1:]
    chain = xxh64_intdigest
    if not column.null_count:
        hashes[:] = [
            chain(data[begin:end], seed)
            for begin, end, seed in zip(begins.tolist(), ends.tolist(), hashes.tolist(), strict=True)
        ]
        return
    valid = _valid(column)
    hashes[valid] = [
        chain(data[begin:end], seed)
        for begin, end, seed in zip(begins[valid].tolist(), ends[valid].tolist(), hashes[valid].tolist(), strict=True)
    ]


def _chain_lists(hashes: Hashes, column: pa.Array) -> None:
    """Headers and changes: their number, then every part of each of them that is not null."""
    for row in np.flatnonzero(_valid(column)).tolist():
        items: list[dict[str, Any] | None] = column[row].as_py()
        found = xxh64_intdigest(pack_long(len(items)), int(hashes[row]))
        for item in items:
            for part in (item or {}).values():
                match part:
                    case None:
                        continue
                    case str():
                        found = xxh64_intdigest(part.encode(), found)
                    case bytes():
                        found = xxh64_intdigest(part, found)
                    case _:
                        found = xxh64_intdigest(pack_long(part), found)
        hashes[row] = found


_CHAINS: Final[dict[pa.DataType, Callable[[Hashes, pa.Array], None]]] = {
    pa.int64(): _chain_longs,
    pa.bool_(): _chain_longs,
    ARROW.field("time").type: _chain_times,
    pa.string(): _chain_texts,
    pa.binary(): _chain_binaries,
}
