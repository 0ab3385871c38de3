"""Makes logs in memory, and reads them record by record as naively as can be."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from raftlog.cluster.records.blanking import blanked
from raftlog.cluster.records.entries import log_entry
from raftlog.raft.codec.block import (
    BLOCK_SESSION,
    BLOCK_TIME,
    Block,
    BlockRecord,
    decode_blocks,
    decode_headers,
    decode_records,
    encode_block,
    encode_headers,
)
from raftlog.raft.codec.checks import crc32c
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.codec.index_rows import IDX_ROW, index_rows
from raftlog.raft.codec.mark import encode_mark
from raftlog.raft.codec.raw import RAW_SIZE, RawHeader, decode_raw_header, encode_raw_header
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import GENESIS, Entry, EntryKind, Mark
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.commands import (
    INTERNAL_FIRST,
    Compare,
    CompareOperator,
    CompareTarget,
    Operation,
    Result,
    Txn,
    TxnOperation,
)
from raftlog.statemachine.effects import Effects, KeyChange, RequestEffect, decode_effects, encode_effects
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.txn import encode_txn

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START_MS = 1_700_000_000_000
Row = dict[str, Any]


@dataclass
class Log:
    """Entries with the bytes of their effects, in order from index 1 (or after `last`)."""

    entries: list[Entry] = field(default_factory=list)
    effects: list[bytes] = field(default_factory=list)
    last: Mark = GENESIS
    revision: int = 1

    def add(
        self,
        kind: EntryKind,
        data: bytes,
        count: int = 1,
        *,
        requests: Sequence[RequestEffect] = (),
        is_plain: bool = False,
        term: int | None = None,
    ) -> None:
        """One entry, 7 ms after the one before, and what it did."""
        entry = seal_entry(
            self.last,
            term=term or max(self.last.term, 1),
            kind=kind,
            count=count,
            time_ms=max(self.last.time_ms, START_MS) + 7,
            clock_ms=self.last.clock_ms + 7,
            data=data,
        )
        self.last = entry.mark
        self.entries.append(entry)
        if requests:
            self.revision = max(self.revision, *(request.revision for request in requests))
        self.effects.append(encode_effects(Effects(entry.index, self.revision, tuple(requests), is_plain)))

    def plain(self, records: Sequence[BlockRecord], **block: Any) -> None:
        """One entry with one block of appends."""
        self.add(EntryKind.COMMANDS, encode_block(records, plain=True, **block), len(records), is_plain=True)

    def chunk(
        self, first: int = 0, last: int | None = None, *, marks: bool = False, base: int = 0, brief: bool = False
    ) -> bytes:
        """Entries number `first` to `last` (exclusive) as a raw chunk, with a durable mark after each if asked for.
        `brief`: with the first and the last of the effects alone."""
        entries, effects = self.entries[first:last], self.effects[first:last]
        rows, segment = [], bytearray()
        for entry in entries:
            if marks and segment:
                mark = Mark(entry.before, entry.term, entry.previous_crc)
                segment += encode_mark(mark, base + len(segment))
            rows.append(index_rows(entry, base + len(segment)))
            segment += entry.header + entry.data
        return raw_chunk(
            b"".join(rows),
            bytes(segment),
            effects[0] + effects[-1] if brief else b"".join(effects),
            base,
            entries[0].first,
            entries[-1].index + 1,
            committed=self.last.index,
            brief=brief,
        )


def raw_chunk(
    rows: bytes,
    segment: bytes,
    ledger: bytes,
    base: int,
    first: int,
    following: int,
    *,
    committed: int = 0,
    brief: bool = False,
) -> bytes:
    """A raw chunk of these parts, its CRCs in order."""
    head = RawHeader(
        len(rows) // IDX_ROW.size,
        len(segment),
        len(ledger),
        crc32c(rows),
        base,
        first,
        following,
        1,
        committed,
        committed,
        brief,
    )
    return encode_raw_header(head) + rows + segment + ledger


def progress_chunk(following: int, *, oldest: int = 1, committed: int, last_user: int | None = None) -> bytes:
    """What ends a raw answer."""
    head = RawHeader(
        0, 0, 0, 0, 0, following, following, oldest, committed, committed if last_user is None else last_user
    )
    return encode_raw_header(head)


def blank(chunk: bytes, sees: Permissions) -> bytes:
    """A raw chunk as a node sends it to a reader with these permissions."""
    head, rows, segment, ledger = split(chunk)
    segment = blanked(rows, segment, head.base, sees)
    return encode_raw_header(head._replace(is_blanked=True)) + rows + segment + ledger


def split(chunk: bytes) -> tuple[RawHeader, bytes, bytes, bytes]:
    """A raw chunk as head, rows, segment and ledger."""
    head = decode_raw_header(chunk)
    rows_end = RAW_SIZE + head.rows * IDX_ROW.size
    segment_end = rows_end + head.segment_bytes
    return head, chunk[RAW_SIZE:rows_end], chunk[rows_end:segment_end], chunk[segment_end:]


# ---------------------------------------------------------------------------------------------------------------
# Contents.


def appends(entries: int, per_entry: int, *, value_bytes: int = 100, first_term: int = 1) -> Log:
    """Plain appends with a key of 11 bytes and a client's time: what most logs hold."""
    log = Log()
    log.add(EntryKind.NOOP, b"", term=first_term)
    for number in range(entries):
        log.plain(
            [
                BlockRecord(Operation.APPEND, b"key-%07d" % (number * per_entry + i), b"v" * value_bytes)
                for i in range(per_entry)
            ],
            time_ms=START_MS + number,
        )
    return log


def mixed(seed: int, entries: int, *, records_max: int = 1) -> Log:
    """Every kind of entry, block, record and effect in a random row. The effects are not those of a state machine: they
    only need to be distinct.
    """
    chance = random.Random(seed)
    log = Log()
    log.add(EntryKind.CONFIGURATION, b"a configuration", term=1)
    for _ in range(entries):
        kind = chance.choices(
            [EntryKind.COMMANDS, EntryKind.NOOP, EntryKind.CLOCK, EntryKind.CONFIGURATION], [9, 1, 1, 1]
        )[0]
        if kind is not EntryKind.COMMANDS:
            data = b"configuration %d" % chance.randrange(99) if kind is EntryKind.CONFIGURATION else b""
            log.add(kind, data, term=log.last.term + chance.randrange(2))
        elif chance.random() < 0.3:
            log.plain(_appends(chance, records_max), **_block(chance))
        else:
            blocks, requests, count = [], [], 0
            for _ in range(chance.randint(1, 4)):
                records, request = _request(chance, records_max, log)
                blocks.append(encode_block(records, **_block(chance)))
                requests.append(request)
                count += len(records)
            log.add(EntryKind.COMMANDS, b"".join(blocks), count, requests=requests)
    return log


def singles(seed: int, entries: int, *, is_plain: bool = False) -> Log:
    """Every entry is one request of one record, and there are no others: what one client after another writes."""
    chance = random.Random(seed)
    log = Log()
    for _ in range(entries):
        if is_plain or chance.random() < 0.3:
            log.plain(_appends(chance, 1), **_block(chance))
        else:
            records, request = _request(chance, 1, log)
            log.add(EntryKind.COMMANDS, encode_block(records, **_block(chance)), requests=[request])
    return log


def _block(chance: random.Random) -> dict[str, Any]:
    block: dict[str, Any] = {}
    if chance.random() < 0.5:
        block |= {"session": chance.randint(1, 99), "sequence": chance.randint(0, 9), "settled": 1}
    if chance.random() < 0.5:
        block["time_ms"] = chance.randint(-(10**6), 2 * START_MS)
    if chance.random() < 0.2:
        block["admission"] = chance.randbytes(chance.randint(1, 30))
    return block


def _bytes(chance: random.Random) -> bytes:
    return chance.choice([b"", b"x", b"RLFXRLEN", chance.randbytes(chance.randint(0, 40))])


def _headers(chance: random.Random) -> bytes | None:
    if chance.random() < 0.7:
        return None
    return encode_headers([(chance.choice(["a", "ü", ""]), _bytes(chance)) for _ in range(chance.randint(0, 3))])


def _appends(chance: random.Random, records_max: int) -> list[BlockRecord]:
    return [
        BlockRecord(
            Operation.APPEND,
            chance.choice([None, b"", b"k"]),
            chance.choice([None, b"", _bytes(chance)]),
            _headers(chance),
            chance.choice([None, 0, START_MS, -5]),
        )
        for _ in range(chance.randint(1, records_max))
    ]


def _request(chance: random.Random, records_max: int, log: Log) -> tuple[list[BlockRecord], RequestEffect]:
    operation = chance.choice(list(Operation))
    revision = log.revision + chance.randint(0, 3)
    result = chance.choice(list(Result))
    if operation is Operation.APPEND:
        return _appends(chance, records_max), RequestEffect(result, revision)
    record = BlockRecord(
        operation,
        chance.choice([None, b"k%d" % chance.randrange(9)]),
        chance.choice([None, _bytes(chance)]),
        _headers(chance),
        chance.choice([None, 0, 17]),
    )
    if operation in (Operation.TXN, Operation.DELETE_RANGE) and chance.random() < 0.8:
        changes = tuple(
            KeyChange(b"k%d" % i, None, chance.randrange(9), 0, 0, True)
            if chance.random() < 0.4
            else KeyChange(b"k%d" % i, _bytes(chance), chance.randrange(9), 3, chance.randint(1, 5), True)
            for i in range(chance.randint(0, 3))
        )
        return [record], RequestEffect(result, revision, chance.random() < 0.5, 0, changes)
    if operation in (Operation.PUT, Operation.DELETE) and chance.random() < 0.7:
        version = chance.randint(1, 9) if operation is Operation.PUT else 0
        change = KeyChange(b"", None, chance.randrange(9), version, version, False)
        record = record._replace(key=record.key or b"k", value=record.value or b"")
        return [record], RequestEffect(result, revision, False, 0, (change,))
    return [record], RequestEffect(result, revision, False, chance.randrange(3))


def without_hidden(rows: Iterable[Row]) -> list[Row]:
    """The rows as a reader of all keys gets them that may neither operate the cluster nor change permissions."""
    hidden = {"configuration", "access"}
    return [row | {"value": None} if hidden & {row["kind"], row["operation"]} else row for row in rows]


# ---------------------------------------------------------------------------------------------------------------
# The naive reader: one record at a time, from the same bytes, with the codecs alone.


def naive_rows(entries: Iterable[Entry], effects: Iterable[bytes]) -> Iterator[Row]:
    """The rows as `pyarrow.RecordBatch.to_pylist` shows them."""
    for entry, ledger in zip(entries, effects, strict=True):
        did = decode_effects(ledger)
        base = {"term": entry.term, "time": _time(entry.time_ms), "kind": entry.kind.name.lower()}
        if entry.kind is not EntryKind.COMMANDS:
            value = entry.data if entry.kind is EntryKind.CONFIGURATION else None
            yield {
                "index": entry.index,
                **base,
                **_NOTHING,
                "value": value,
                "result": "applied",
                "revision": did.revision,
            }
            continue
        index = entry.first
        for number, block in enumerate(decode_blocks(entry.data)):
            request = did.requests[number] if did.requests else None
            for record in decode_records(block):
                yield {"index": index, **base, **_record(block, record), **_effect(did, request, record)}
                index += 1


_NOTHING: Row = dict.fromkeys(
    (
        "operation",
        "key",
        "value",
        "headers",
        "client_time",
        "argument",
        "session",
        "sequence",
        "result",
        "revision",
        "succeeded",
        "prior_index",
        "create",
        "version",
        "changes",
    )
)


def _time(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _record(block: Block, record: BlockRecord) -> Row:
    is_append = record.operation == Operation.APPEND
    time_ms = block.time_ms if block.flags & BLOCK_TIME else None
    if is_append and record.argument is not None:
        time_ms = record.argument
    has_session = bool(block.flags & BLOCK_SESSION)
    headers = None
    if record.headers is not None:
        headers = [{"name": name, "value": value} for name, value in decode_headers(record.headers)]
    return {
        "operation": Operation(record.operation).name.lower(),
        "key": record.key,
        "value": record.value,
        "headers": headers,
        "client_time": None if time_ms is None else _time(time_ms),
        "argument": None if is_append else record.argument,
        "session": block.session if has_session else None,
        "sequence": block.sequence if has_session else None,
    }


def _effect(did: Effects, request: RequestEffect | None, record: BlockRecord) -> Row:
    row: Row = dict.fromkeys(("succeeded", "prior_index", "create", "version", "changes"))
    if request is None:
        return row | {"result": "applied", "revision": did.revision}
    row |= {"result": request.result.name.lower(), "revision": request.revision}
    if record.operation == Operation.TXN:
        row["succeeded"] = request.succeeded
    explicit = [change for change in request.changes if change.is_explicit]
    if explicit:
        row["changes"] = [
            {
                "key": change.key,
                "value": change.value,
                "deleted": change.is_delete,
                "create": change.create,
                "mod": request.revision,
                "version": change.version,
            }
            for change in explicit
        ]
    elif request.changes:
        change = request.changes[0]
        row |= {"prior_index": change.prior_index, "create": change.create, "version": change.version}
    return row


def shown(row: Row) -> Row:
    """The row as readers show it: with the client's time, or else the leader's, as `event_time`."""
    return row | {"event_time": row["time"] if row["client_time"] is None else row["client_time"]}


def is_user(row: Row) -> bool:
    """Whether the contract counts this row as a user's."""
    if row["kind"] != "commands" or row["result"] not in ("applied", "compare_failed"):
        return False
    return Operation[row["operation"].upper()] < INTERNAL_FIRST


# ---------------------------------------------------------------------------------------------------------------
# A log that means something: what its effects say is what the state machine did.


class RealLog(Log):
    """A log whose entries the state machine has applied."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = StateMachine()

    def commit(self, *blocks: bytes, kind: EntryKind = EntryKind.COMMANDS, data: bytes = b"") -> None:
        """One entry with these blocks, or of another kind with this data."""
        count = sum(block.count for block in decode_blocks(b"".join(blocks))) if blocks else 1
        entry = seal_entry(
            self.last,
            term=max(self.last.term, 1) + (kind is EntryKind.NOOP),
            kind=kind,
            count=count,
            time_ms=max(self.last.time_ms, START_MS) + 7,
            clock_ms=self.last.clock_ms + 7,
            data=b"".join(blocks) or data,
        )
        self.last = entry.mark
        self.entries.append(entry)
        self.effects.append(encode_effects(self.machine.apply(log_entry(entry))))
        self.revision = self.machine.revision


def real(rounds: int, *, batch: bool) -> RealLog:
    """Puts, deletes, compares that fail, transactions with both branches, range deletes, sessions with repetitions and
    appends with headers, nulls and empty bytes: one request per entry, or all of a round in one."""
    log = RealLog()
    member = Member(1, "0" * 32, "127.0.0.1:1", "http://127.0.0.1:2")
    log.commit(kind=EntryKind.CONFIGURATION, data=encode_configuration(Configuration((member,), (1,))))
    log.commit(kind=EntryKind.NOOP)
    log.commit(encode_block([BlockRecord(Operation.SESSION_OPEN, argument=60_000)]))
    session = log.last.index
    for number in range(rounds):
        blocks = list(_round(number))
        sequence = number + 1
        once = encode_block(
            [BlockRecord(Operation.PUT, b"once", b"%d" % number)], session=session, sequence=sequence, settled=sequence
        )
        blocks += [once, once]
        if batch:
            log.commit(*blocks)
        else:
            for block in blocks:
                log.commit(block)
        if number % 5 == 4:
            log.commit(kind=EntryKind.CLOCK)
    return log


def _round(number: int) -> Iterator[bytes]:
    record, block = BlockRecord, encode_block
    name = b"k%d" % (number % 7)
    yield block([record(Operation.PUT, name, b"v%d" % number)], time_ms=START_MS + number)
    yield block([record(Operation.PUT, name, b"", argument=999_999)])  # a compare that fails
    yield block([record(Operation.PUT, b"e%d" % number, b"")])
    if number % 3 == 0:
        yield block(
            [
                record(Operation.DELETE, name),
            ]
        )
        yield block([record(Operation.DELETE, b"missing")])
    equal = Compare(name, CompareTarget.VERSION, CompareOperator.EQUAL, 0)
    txn = Txn(
        (equal,),
        (TxnOperation(Operation.PUT, b"then", b"t%d" % number), TxnOperation(Operation.PUT, b"both", b"1")),
        (TxnOperation(Operation.PUT, b"else", b""), TxnOperation(Operation.DELETE, b"both")),
    )
    yield block([record(Operation.TXN, value=encode_txn(txn))])
    if number % 6 == 5:
        yield block([record(Operation.DELETE_RANGE, b"e", b"f")])
    headers = encode_headers([("type", b"click"), ("type", b""), ("ü", b"\xff")])
    yield block(
        [
            record(Operation.APPEND, b"a%d" % (number % 3), b"line %d" % number, headers, START_MS - number),
            record(Operation.APPEND, None, None),
            record(Operation.APPEND, b"", b"", encode_headers([])),
        ],
        plain=True,
    )
