"""Defines the requests and answers of the key-value store: keys, ranges, writes, batches, transactions."""

from __future__ import annotations

from typing import Literal

import msgspec

from raftlog.cluster.api.errors import Outcome, Problem
from raftlog.cluster.api.values import Number, Positive


class KeyValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key with its version numbers."""

    create: int
    mod: int
    version: int
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None


class KeyAnswer(msgspec.Struct, frozen=True):
    """The answer to a get (JSON); with `Accept: application/octet-stream` the bare value and headers instead."""

    kv: KeyValue
    revision: int
    index: int
    term: int


class KeyVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a key, or its deletion, and the record that made it."""

    index: int
    term: int
    time_ms: int
    revision: int
    deleted: bool
    create: int
    version: int
    value: str | None = None
    value_b64: str | None = None
    value_bytes: int | None = None  # of the whole value, where the parameter `value_bytes` cut it


class KeyVersions(msgspec.Struct, frozen=True):
    """A page of the versions of a key, the newest first. `next`: `from` of the page after it; None: this is the last
    one, and `ends` says why: `created` (the key did not exist before) or `trimmed` (older records are gone)."""

    versions: list[KeyVersion]
    next: int | None
    ends: str
    revision: int
    index: int
    term: int


class RangeAnswer(msgspec.Struct, frozen=True):
    """One page of a range, all pages at the state of the first: pass `continuation` back to go on."""

    kvs: list[KeyValue]
    more: bool
    count: int  # keys in the range in all
    continuation: str | None
    revision: int
    index: int
    term: int


class Written(msgspec.Struct, frozen=True, omit_defaults=True):
    outcome: Outcome
    result: str  # applied | repeated
    revision: int
    index: int
    term: int
    deleted: int = 0  # keys deleted
    previous: KeyValue | None = None  # reserved: with prev_kv=true


class WriteIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One write of a batch: a put of a value, or a delete."""

    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    delete: bool = False
    if_revision: Number | None = None
    sequence: Number = 0  # of the session that the header names


class BatchIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    writes: list[WriteIn]


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one write of a batch: one of the two."""

    written: Written | None = None
    problem: Problem | None = None


class BatchAnswer(msgspec.Struct, frozen=True):
    """The answer to a batch: one result for each write, in their order."""

    results: list[BatchItem]


class CompareIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One comparison; `end` makes it a range."""

    target: Literal["value", "version", "create", "mod"]
    operator: Literal["=", "!=", "<", ">"]
    key: str | None = None
    key_b64: str | None = None
    end: str | None = None
    end_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    number: Number | None = None


class OperationIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    operation: Literal["put", "delete", "delete_range", "get"]
    key: str | None = None
    key_b64: str | None = None
    value: str | None = None
    value_b64: str | None = None
    end: str | None = None
    end_b64: str | None = None
    limit: Number = 0


class TxnIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"orelse": "else"}):
    """A transaction: {"compare": [...], "then": [...], "else": [...]}."""

    compare: list[CompareIn] = []
    then: list[OperationIn] = []
    orelse: list[OperationIn] = []


class TxnStepAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one step of the branch answered."""

    operation: str
    kvs: list[KeyValue] | None = None  # get
    count: int | None = None  # get
    deleted: int | None = None  # delete, delete_range


class TxnAnswer(msgspec.Struct, frozen=True):
    """The answer to a transaction; `succeeded` is false when the else branch ran: that too is applied."""

    outcome: Outcome
    result: str
    succeeded: bool
    responses: list[TxnStepAnswer]
    revision: int
    index: int
    term: int


class CompactIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Key history below `revision` may go."""

    revision: Positive


class CompactionAnswer(msgspec.Struct, frozen=True):
    """The answer to a compaction of key history."""

    outcome: Outcome
    oldest_revision: int
    revision: int
    index: int
    term: int
