"""Decodes an entry and its effects into rows, for JSON, NDJSON, msgpack, watch messages and the log digest.

The HTTP routes call it. Key and value of a put or delete come from the command's own bytes, all else from the ledger.
"""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from raftlog.cluster.api.encoding import Encoding, as_text, to_b64
from raftlog.cluster.api.kv import KeyValue
from raftlog.cluster.api.records import ChangeJson, ChangePacked, LogRecord, LogRecordPacked, WatchMessage
from raftlog.raft.codec.block import BLOCK_SESSION, BLOCK_TIME, Block, decode_blocks, decode_headers, decode_records
from raftlog.raft.codec.block_fast import plain_values
from raftlog.raft.types import Entry, EntryKind
from raftlog.statemachine.access.admission import decode_admission
from raftlog.statemachine.access.needs import hidden, sees_members
from raftlog.statemachine.access.permissions import Permissions
from raftlog.statemachine.commands import INTERNAL_FIRST, Command, Operation, Result, Version
from raftlog.statemachine.digest import ChangeRow, LogRow
from raftlog.statemachine.effects import Effects, RequestEffect

KINDS: Final = {kind: kind.name.lower() for kind in EntryKind}
OPERATIONS: Final = {int(operation): operation.name.lower() for operation in Operation}
_NUMBERS: Final = {name: number for number, name in OPERATIONS.items()}
_CONFIGURATION: Final = KINDS[EntryKind.CONFIGURATION]
RESULTS: Final = {result: result.name.lower() for result in Result}
_USER_OPERATIONS: Final = frozenset(name for number, name in OPERATIONS.items() if number < INTERNAL_FIRST)
_USER_RESULTS: Final = frozenset({RESULTS[Result.APPLIED], RESULTS[Result.COMPARE_FAILED]})
_APPLIED: Final = RESULTS[Result.APPLIED]
_APPEND: Final = int(Operation.APPEND)
_TXN: Final = int(Operation.TXN)
_NO_COMMAND: Final = LogRow._make([0, 0, 0, "", *[None] * 8, _APPLIED, 0, *[None] * 5])
ROW_BYTES: Final = 160
"""Estimated bytes of a row in an answer, besides its contents."""
_encode: Final = msgspec.json.Encoder().encode


def is_user_row(row: LogRow) -> bool:
    """Whether a reader gets it without asking for internal records."""
    return row.operation in _USER_OPERATIONS and row.result in _USER_RESULTS


def is_visible(row: LogRow, permissions: Permissions) -> bool:
    """Whether a principal that may read the log sees this row: all keys that the row names must be readable for it."""
    if row.operation is None:
        return row.kind != _CONFIGURATION or sees_members(permissions)
    command = Command(_NUMBERS[row.operation], row.key, row.value, None, row.argument)
    return hidden(permissions, command) is None


def principals(entry: Entry) -> dict[int, str]:
    """The user of each record of the entry, by index; none for records that were written without access control."""
    names: dict[int, str] = {}
    if entry.kind is EntryKind.COMMANDS:
        index = entry.first
        for block in decode_blocks(entry.data):
            if block.admission:
                names |= dict.fromkeys(range(index, index + block.count), decode_admission(block.admission).name)
            index += block.count
    return names


def decode_rows(entry: Entry, effects: Effects, first: int = 0) -> Iterator[LogRow]:
    """The rows of the entry's records from index `first` on. Raises Corrupt or UnknownVersion."""
    if entry.kind is not EntryKind.COMMANDS:
        if entry.index >= first:
            yield _NO_COMMAND._replace(
                index=entry.index,
                term=entry.term,
                time_ms=entry.time_ms,
                kind=KINDS[entry.kind],
                value=entry.data if entry.kind is EntryKind.CONFIGURATION else None,
                revision=effects.revision,
            )
        return
    index = entry.first
    plain = RequestEffect(Result.APPLIED, effects.revision) if effects.is_plain else None
    for number, block in enumerate(decode_blocks(entry.data)):
        if index + block.count > first:
            effect = plain or effects.requests[number]
            yield from _block_rows(entry, block, effect, index, max(0, first - index), has_row=plain is None)
        index += block.count


def _block_rows(
    entry: Entry, block: Block, effect: RequestEffect, index: int, skip: int, *, has_row: bool
) -> Iterator[LogRow]:
    """The rows of one request, whose first record has `index`, without the first `skip` of them."""
    session, sequence, block_time = _block_columns(block)
    result, revision = RESULTS[effect.result], effect.revision
    changes, prior_index, create, version = _change_columns(effect)
    for position, (operation, key, value, headers, argument) in enumerate(decode_records(block, skip), index + skip):
        client_time = block_time
        if operation == _APPEND:
            client_time, argument = block_time if argument is None else argument, None
        yield LogRow(
            position,
            entry.term,
            entry.time_ms,
            "commands",
            OPERATIONS[operation],
            key,
            value,
            None if headers is None else tuple(decode_headers(headers)),
            client_time,
            argument,
            session,
            sequence,
            result,
            revision,
            effect.succeeded if has_row and operation == _TXN else None,
            prior_index,
            create,
            version,
            changes,
        )


def _block_columns(block: Block) -> tuple[int | None, int | None, int | None]:
    """The columns session, sequence and client time of a request's rows."""
    session, sequence = (block.session, block.sequence) if block.flags & BLOCK_SESSION else (None, None)
    return session, sequence, block.time_ms if block.flags & BLOCK_TIME else None


def _change_columns(
    effect: RequestEffect,
) -> tuple[tuple[ChangeRow, ...] | None, int | None, int | None, int | None]:
    """The columns changes, prior_index, create, version of a request's row."""
    if not effect.changes:
        return None, None, None, None
    first = effect.changes[0]
    if not first.is_explicit:  # a request of one change: the put or delete of one key
        return None, first.prior_index, first.create, first.version
    rows = tuple(
        ChangeRow(change.key, change.value, change.is_delete, change.create, effect.revision, change.version)
        for change in effect.changes
    )
    return rows, None, None, None


# ---------------------------------------------------------------------------------------------------------------
# Rows as public structs.


def as_record(
    row: LogRow, encoding: Encoding = "auto", value_bytes: int | None = None, principal: str | None = None
) -> LogRecord:
    """The row as JSON shows it, with at most `value_bytes` bytes of its value and of each changed value."""
    key, key_b64 = both(row.key, encoding)
    value, value_b64 = both(cut(row.value, value_bytes), encoding)
    headers: list[tuple[str, str]] | None = None
    headers_b64: list[tuple[str, str]] | None = None
    if row.headers is not None:
        texts = [as_text(content, encoding) for _, content in row.headers]
        if None in texts:
            headers_b64 = [(name, to_b64(content)) for name, content in row.headers]
        else:
            headers = [(name, text or "") for (name, _), text in zip(row.headers, texts, strict=True)]
    changes = (
        None if row.changes is None else [_change_json(change, None, encoding, value_bytes) for change in row.changes]
    )
    return LogRecord(
        row.index,
        row.term,
        row.time_ms,
        row.kind,
        row.operation or "",
        row.result,
        key,
        key_b64,
        value,
        value_b64,
        headers,
        headers_b64,
        row.client_time_ms,
        row.argument,
        row.session,
        row.sequence,
        row.revision,
        row.succeeded,
        row.prior_index,
        row.create,
        row.version,
        changes,
        principal,
        whole_bytes(row.value, value_bytes),
    )


def plain_count(entry: Entry, effects: Effects, first: int, count: int) -> int:
    """How many of the entry's next `count` records are nothing but values; 0 if any of them is not."""
    runs = _plain_runs(entry, first, count) if effects.is_plain and entry.kind is EntryKind.COMMANDS else None
    return 0 if runs is None else sum(len(run.values) for run in runs)


class _Run(NamedTuple):
    """Consecutive records that differ only in their values."""

    first: int
    alike: tuple[int | None, int | None, int | None]  # session, sequence, client time
    values: list[bytes]


def plain_json(
    entry: Entry, effects: Effects, first: int, count: int, bytes_max: int, encoding: Encoding
) -> tuple[list[bytes], int] | None:
    """The JSON of the entry's records from index `first` on, as `as_record` shows them, and their size.

    The size is as `row_bytes` counts it. At most `count` records, and none after the one that reaches `bytes_max`.
    None if the entry holds anything but appends of plain values: `decode_rows` shows those. Raises Corrupt or
    UnknownVersion.
    """
    runs = _plain_runs(entry, first, count) if effects.is_plain and entry.kind is EntryKind.COMMANDS else None
    if runs is None:
        return None
    lines: list[bytes] = []
    size = 0
    for run in runs:
        values, before = run.values, size
        size += sum(map(len, values)) + ROW_BYTES * len(values)
        if size >= bytes_max:
            sizes = list(accumulate([len(value) + ROW_BYTES for value in values], initial=before))
            values = values[: bisect_left(sizes, bytes_max, 1)]
            size = sizes[len(values)]
        lines += _value_lines(entry, effects.revision, run, values, encoding)
        if size >= bytes_max:
            break
    return lines, size


def _plain_runs(entry: Entry, first: int, count: int) -> list[_Run] | None:
    runs: list[_Run] = []
    index = entry.first
    for block in decode_blocks(entry.data):
        skip = max(0, first - index)
        if skip < block.count:
            values = plain_values(block, _APPEND, skip, count)
            if values is None:
                return None
            alike = _block_columns(block)
            if runs and runs[-1].alike == alike:
                runs[-1].values.extend(values)
            else:
                runs.append(_Run(index + skip, alike, values))
            count -= len(values)
            if not count:
                break
        index += block.count
    return runs


def _value_lines(entry: Entry, revision: int, run: _Run, values: list[bytes], encoding: Encoding) -> list[bytes]:
    """Joins the values, which differ, with the text that all records of the run share."""
    session, sequence, time_ms = run.alike
    alike = LogRecord(
        0,
        entry.term,
        entry.time_ms,
        KINDS[entry.kind],
        OPERATIONS[_APPEND],
        _APPLIED,
        value="",
        client_time_ms=time_ms,
        session=session,
        sequence=sequence,
        revision=revision,
    )
    start, end = _encode(alike).removeprefix(b'{"index":0').split(b'"value":""')
    if encoding == "auto":
        try:
            return [
                b'{"index":%d%b"value":%b%b' % (index, start, _encode(value.decode()), end)
                for index, value in enumerate(values, run.first)
            ]
        except UnicodeDecodeError:  # some values are not text
            pass
    texts = [as_text(value, encoding) for value in values]
    members = [
        b'"value_b64":"%b"' % b64encode(value) if text is None else b'"value":' + _encode(text)
        for value, text in zip(values, texts, strict=True)
    ]
    return [b'{"index":%d%b%b%b' % (index, start, member, end) for index, member in enumerate(members, run.first)]


def whole_bytes(value: bytes | None, most: int | None) -> int | None:
    """How many bytes the value has, if it is cut."""
    return None if value is None or most is None or len(value) <= most else len(value)


def cut(value: bytes | None, most: int | None) -> bytes | None:
    """At most so many bytes of the value (None: all), of text whole characters."""
    if value is None or most is None or len(value) <= most:
        return value
    start = value[:most]
    return start if as_text(value, "auto") is None else start.decode(errors="ignore").encode()


def as_packed(row: LogRow) -> LogRecordPacked:
    """The row as msgpack shows it."""
    changes = None
    if row.changes is not None:
        changes = [
            ChangePacked(change.deleted, change.create, change.mod, change.version, change.key, change.value)
            for change in row.changes
        ]
    return LogRecordPacked(
        row.index,
        row.term,
        row.time_ms,
        row.kind,
        row.operation or "",
        row.result,
        row.key,
        row.value,
        None if row.headers is None else list(row.headers),
        row.client_time_ms,
        row.argument,
        row.session,
        row.sequence,
        row.revision,
        row.succeeded,
        row.prior_index,
        row.create,
        row.version,
        changes,
    )


def row_bytes(row: LogRow) -> int:
    """About how many bytes of an answer the row takes."""
    size = ROW_BYTES + len(row.key or b"") + len(row.value or b"")
    if row.headers is not None:
        size += sum(len(name) + len(content) for name, content in row.headers)
    if row.changes is not None:
        size += sum(100 + len(change.key) + len(change.value or b"") for change in row.changes)
    return size


def both(data: bytes | None, encoding: Encoding) -> tuple[str | None, str | None]:
    """The bytes as the pair (text, base64) of which one, or with None neither, is set."""
    if data is None:
        return None, None
    text = as_text(data, encoding)
    return (None, to_b64(data)) if text is None else (text, None)


def key_value(key: bytes, version: Version, encoding: Encoding, *, keys_only: bool = False) -> KeyValue:
    """A key of the store as JSON shows it."""
    value, value_b64 = both(None if keys_only else version.value, encoding)
    return KeyValue(version.create, version.mod, version.version, *both(key, encoding), value, value_b64)


# ---------------------------------------------------------------------------------------------------------------
# Watch.


def watch_messages(
    entry: Entry, effects: Effects, first: int, start: bytes, end: bytes, encoding: Encoding
) -> Iterator[WatchMessage]:
    """`key_changes` as messages of a watch."""
    for index, revision, changes in key_changes(entry, effects, first, start, end):
        shown = [_change_json(row, prior_index, encoding) for row, prior_index in changes]
        yield WatchMessage(index, entry.term, entry.time_ms, revision, shown)


def key_changes(
    entry: Entry, effects: Effects, first: int, start: bytes, end: bytes
) -> Iterator[tuple[int, int, list[tuple[ChangeRow, int]]]]:
    """Every index from `first` on that changed keys of [start, end), with its revision and its changes in order, each
    with the index of the record that wrote the version before.

    Key and value of a put or delete come from the command's own bytes, all else from the ledger. `end` b"": no upper
    bound.
    """
    if effects.is_plain or entry.kind is not EntryKind.COMMANDS:
        return
    index = entry.before
    for block, effect in zip(decode_blocks(entry.data), effects.requests, strict=True):
        index += block.count  # a request that changes keys has one record; this is its index
        if index < first or not effect.changes:
            continue
        command = None if effect.changes[0].is_explicit else next(iter(decode_records(block)))
        changes: list[tuple[ChangeRow, int]] = []
        for change in effect.changes:
            key = change.key if command is None else command.key or b""
            if key < start or (end and key >= end):
                continue
            value = change.value if command is None else command.value
            row = ChangeRow(
                key,
                None if change.is_delete else value or b"",
                change.is_delete,
                change.create,
                effect.revision,
                change.version,
            )
            changes.append((row, change.prior_index))
        if changes:
            yield index, effect.revision, changes


def _change_json(
    change: ChangeRow, prior_index: int | None, encoding: Encoding, value_bytes: int | None = None
) -> ChangeJson:
    return ChangeJson(
        change.deleted,
        change.create,
        change.mod,
        change.version,
        *both(change.key, encoding),
        *both(cut(change.value, value_bytes), encoding),
        prior_index,
    )
