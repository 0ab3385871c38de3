"""Defines transactions: their bytes, the checks that they must pass, and their effects on a store.

The state machine calls it. Compares are evaluated before any write, on the state before the transaction. The branch is
then staged beside the store, so that its reads see its own writes, and a refusal in the middle of it changes nothing.
The rules are etcd's (`applyTxn`, `checkTxnRequest`); see docs/decisions for the two limits that etcd does not have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgpack

from raftlog.statemachine.answers import Reason, StepAnswer
from raftlog.statemachine.commands import (
    GET_OPERATION,
    KEY_BYTES_MAX,
    Compare,
    CompareOperator,
    CompareTarget,
    Limits,
    MalformedCommand,
    Operation,
    Txn,
    TxnOperation,
    Version,
    unpack_versioned,
    whole,
)
from raftlog.statemachine.effects import KeyChange
from raftlog.statemachine.store import Store

TXN_VERSION: Final = 1
ITEM_BYTES: Final = 64
"""What a key in an answer counts for beside its key and value: its numbers, and what carries them."""

_STEPS: Final = (GET_OPERATION, Operation.PUT, Operation.DELETE, Operation.DELETE_RANGE)


# ---------------------------------------------------------------------------------------------------------------
# Bytes.


def encode_txn(txn: Txn) -> bytes:
    """The transaction as the value of a TXN record: a msgpack array, its format version first."""
    packed: bytes = msgpack.packb(
        [
            TXN_VERSION,
            [[key, int(target), int(operator), operand, end] for key, target, operator, operand, end in txn.compare],
            [[int(operation), *rest] for operation, *rest in txn.then],
            [[int(operation), *rest] for operation, *rest in txn.orelse],
        ],
        use_bin_type=True,
    )
    return packed


def decode_txn(data: bytes) -> Txn:
    """The transaction of these bytes, its shape and types checked. Raises MalformedCommand or UnknownCommand."""
    parts = unpack_versioned(data, "transaction", TXN_VERSION)
    try:
        compare, then, orelse = parts
        return Txn(
            tuple(_decode_compare(*row) for row in compare),
            tuple(_decode_operation(*row) for row in then),
            tuple(_decode_operation(*row) for row in orelse),
        )
    except Exception as error:
        raise MalformedCommand(f"not a transaction: {error}") from error


def _decode_compare(key: Any, target: Any, operator: Any, operand: Any, end: Any) -> Compare:
    target = CompareTarget(whole(target))
    operator = CompareOperator(whole(operator))
    _bytes(operand) if target is CompareTarget.VALUE else whole(operand)
    return Compare(_bytes(key), target, operator, operand, end if end is None else _bytes(end))


def _decode_operation(operation: Any, key: Any, value: Any, end: Any, limit: Any) -> TxnOperation:
    if whole(operation) not in _STEPS:
        raise ValueError(f"operation {operation} cannot be a step of a transaction")
    return TxnOperation(
        operation,
        _bytes(key),
        value if value is None else _bytes(value),
        end if end is None else _bytes(end),
        whole(limit),
    )


def _bytes(data: Any) -> bytes:
    if type(data) is not bytes:
        raise TypeError(f"{data!r} is not bytes")
    return data


# ---------------------------------------------------------------------------------------------------------------
# Checks that look at the transaction alone.


def is_key(key: bytes | None) -> bool:
    """Whether it can be the key of a pair."""
    return key is not None and 1 <= len(key) <= KEY_BYTES_MAX


def check_txn(txn: Txn, limits: Limits) -> Reason | None:
    """Why it is refused whatever the store holds; None if it is not. Both branches count, whichever would run."""
    if max(len(txn.compare), len(txn.then), len(txn.orelse)) > limits.txn_operations_max:
        return Reason.TOO_MANY_OPERATIONS
    if not all(compare.end is not None or is_key(compare.key) for compare in txn.compare):
        return Reason.MALFORMED
    for branch in (txn.then, txn.orelse):
        if not all(map(_is_well_formed, branch)):
            return Reason.MALFORMED
        if _puts_a_key_twice(branch):
            return Reason.DUPLICATE_KEY
    return None


def _is_well_formed(step: TxnOperation) -> bool:
    match step.operation:
        case Operation.PUT:
            return is_key(step.key) and step.value is not None and step.end is None
        case Operation.DELETE:
            return is_key(step.key) and step.value is None and step.end is None
        case Operation.DELETE_RANGE:
            return step.value is None and step.end is not None
        case _:
            return step.value is None and (step.end is not None or is_key(step.key))


def _puts_a_key_twice(branch: tuple[TxnOperation, ...]) -> bool:
    """Whether a key is put twice, or put and deleted: either way a key would have two versions of one revision."""
    puts = sorted(step.key for step in branch if step.operation == Operation.PUT)
    if any(left == right for left, right in pairwise(puts)):
        return True
    for step in branch:
        if step.operation in (Operation.DELETE, Operation.DELETE_RANGE):
            place = bisect_left(puts, step.key)
            if place < len(puts) and _covers(step, puts[place]):
                return True
    return False


def _covers(step: TxnOperation, key: bytes) -> bool:
    """Whether a delete at or before `key` reaches it."""
    if step.operation == Operation.DELETE:
        return step.key == key
    return not step.end or key < step.end


# ---------------------------------------------------------------------------------------------------------------
# Compares.


def holds(store: Store, compare: Compare) -> bool:
    """Whether the comparison holds now; with a range, for every key of it."""
    if compare.end is None:
        return _compares(store.get(compare.key), compare)
    found = False
    for key in store.keys(compare.key, compare.end):
        found = True
        if not _compares(store.get(key), compare):
            return False
    return found or _compares(None, compare)


def _compares(version: Version | None, compare: Compare) -> bool:
    actual: Any  # as the operand: decode_txn has checked that it fits the target
    match compare.target:
        case CompareTarget.VALUE:
            if version is None:
                return False  # etcd: nothing to compare, so it fails, != included
            actual = version.value
        case CompareTarget.VERSION:
            actual = version.version if version else 0
        case CompareTarget.CREATE:
            actual = version.create if version else 0
        case CompareTarget.MOD:
            actual = version.mod if version else 0
    operand: Any = compare.operand
    match compare.operator:
        case CompareOperator.EQUAL:
            return bool(actual == operand)
        case CompareOperator.NOT_EQUAL:
            return bool(actual != operand)
        case CompareOperator.LESS:
            return bool(actual < operand)
        case CompareOperator.GREATER:
            return bool(actual > operand)


# ---------------------------------------------------------------------------------------------------------------
# A branch.


class TxnDone(NamedTuple):
    """A transaction that was carried out."""

    succeeded: bool
    responses: tuple[StepAnswer, ...]
    changes: tuple[KeyChange, ...]


class _TxnRefused(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def run_txn(store: Store, txn: Txn, index: int, limits: Limits) -> TxnDone | Reason:
    """Carries it out on the store, under one step, or refuses it and leaves the store as it was."""
    if reason := check_txn(txn, limits):
        return reason
    compared = sum(store.count(compare.key, compare.end) for compare in txn.compare if compare.end is not None)
    if compared > limits.request_keys_max:
        return Reason.TOO_MANY_KEYS
    succeeded = all(holds(store, compare) for compare in txn.compare)
    staged = _StagedWrites(store, index, limits)
    try:
        responses = tuple(staged.run(step) for step in (txn.then if succeeded else txn.orelse))
    except _TxnRefused as refused:
        return refused.reason
    return TxnDone(succeeded, responses, staged.carry_out())


class _StagedWrites:
    """The writes of a branch beside the store, and its reads over both."""

    def __init__(self, store: Store, index: int, limits: Limits) -> None:
        self._store = store
        self._index = index
        self._limits = limits
        self._writes: dict[bytes, bytes | None] = {}  # in order; None: deleted (only keys that the store has)
        self._keys_left = limits.request_keys_max
        self._bytes_left = limits.answer_bytes_max

    def run(self, step: TxnOperation) -> StepAnswer:
        """One step's answer; raises _TxnRefused."""
        match step.operation:
            case Operation.PUT:
                self._writes[step.key] = step.value
                return StepAnswer(step.operation)
            case Operation.DELETE:
                return StepAnswer(step.operation, deleted=self._delete([step.key]))
            case Operation.DELETE_RANGE:
                self._pass_over(self._store.count(step.key, step.end))
                return StepAnswer(step.operation, deleted=self._delete(list(self._store.keys(step.key, step.end))))
            case _:
                return self._get(step)

    def _pass_over(self, keys: int) -> None:
        self._keys_left -= keys
        if self._keys_left < 0:
            raise _TxnRefused(Reason.TOO_MANY_KEYS)

    def _delete(self, keys: list[bytes]) -> int:
        here = [key for key in keys if key not in self._writes and self._store.mod(key)]
        for key in here:
            self._writes[key] = None
        return len(here)

    def _get(self, step: TxnOperation) -> StepAnswer:
        if step.end is None:
            version = self._version(step.key)
            items = [] if version is None else [(step.key, version)]
            self._answer(items)
            return StepAnswer(step.operation, count=len(items), items=tuple(items))
        written = sorted(key for key in self._writes if step.key <= key and (not step.end or key < step.end))
        self._pass_over(len(written))
        count = self._store.count(step.key, step.end)
        for key in written:
            count += (self._writes[key] is not None) - bool(self._store.mod(key))
        items = []
        for key in self._keys(step, written):
            if step.limit and len(items) >= step.limit:
                break
            version = self._version(key)
            if version is not None:
                self._answer([(key, version)])
                items.append((key, version))
        return StepAnswer(step.operation, count=count, items=tuple(items))

    def _keys(self, step: TxnOperation, written: list[bytes]) -> Iterator[bytes]:
        new = [key for key in written if not self._store.mod(key)]
        return merge(self._store.keys(step.key, step.end), new) if new else self._store.keys(step.key, step.end)

    def _answer(self, items: list[tuple[bytes, Version]]) -> None:
        for key, version in items:
            self._bytes_left -= ITEM_BYTES + len(key) + len(version.value)
        if self._bytes_left < 0:
            raise _TxnRefused(Reason.ANSWER_TOO_LARGE)

    def _version(self, key: bytes) -> Version | None:
        """The key as this branch sees it."""
        before = self._store.get(key)
        if key not in self._writes:
            return before
        value = self._writes[key]
        if value is None:
            return None
        mod = self._store.revision + 1
        if before is None:
            return Version(value, mod, mod, 1, self._index)
        return Version(value, before.create, mod, before.version + 1, self._index)

    def carry_out(self) -> tuple[KeyChange, ...]:
        """Writes to the store, in the order of the steps, and ends the step."""
        changes: list[KeyChange] = []
        for key, value in self._writes.items():
            if value is not None:
                changes.append(self._store.put(key, value, self._index, True))
            else:
                change = self._store.delete(key, self._index, True)
                assert change is not None, "only keys that the store has are deleted"
                changes.append(change)
        self._store.commit(self._index, self._limits)
        return tuple(changes)
