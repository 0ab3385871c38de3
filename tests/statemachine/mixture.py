"""A log with something of everything, the same in every process: for tests of determinism."""

from __future__ import annotations

import hashlib

from xxhash import xxh64_intdigest

from raftlog.statemachine.commands import (
    GET_OPERATION,
    Compare,
    CompareOperator,
    CompareTarget,
    Limits,
    Operation,
    RequestBlock,
    Txn,
    TxnOperation,
)
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.effects import encode_effects
from raftlog.statemachine.machine import StateMachine
from raftlog.statemachine.txn import encode_txn
from tests.statemachine.driver import Driver, appends, request, snapshot_bytes

CLAIM, COMMIT, RESET, DELETE = ConsumerAction
LIMITS = Limits(history_revisions_max=40, sessions_max=5, session_window_max=8, digests_kept=30)


class _Dice:
    """Numbers from a counter: the same everywhere."""

    def __init__(self) -> None:
        self._thrown = 0

    def below(self, bound: int) -> int:
        """The next number in [0, bound)."""
        self._thrown += 1
        return xxh64_intdigest(b"%d" % self._thrown) % bound


def driven(entries: int) -> Driver:
    """A driver that has applied that many entries."""
    driver, dice, other_dice = Driver(LIMITS), _Dice(), _Dice()
    sessions = [driver.open(60_000), driver.open(2_000)]
    for place in range(entries):
        if place % 80 == 79:
            driver.entry(request(Operation.DIGEST_POINT))
        driver.clock_ms += dice.below(400)
        if dice.below(15) == 0:
            sessions[dice.below(2)] = driver.entry(request(Operation.SESSION_OPEN, argument=3_000)).index
        driver.entry(*(_request(dice, driver, sessions) for _ in range(dice.below(4))))
        if other_dice.below(2):  # its own dice, so that all other draws stay as they were
            driver.entry(_consumer(other_dice, driver))
    return driver


def _request(dice: _Dice, driver: Driver, sessions: list[int]) -> RequestBlock:
    key, value = b"key-%d" % dice.below(20), b"v" * dice.below(40)
    session, sequence, settled = 0, 0, 0
    parts: tuple[bytes | None, bytes | None]
    if dice.below(2):
        session, sequence = sessions[dice.below(2)], 1 + dice.below(30)
        settled = max(1, sequence - dice.below(12))
    match dice.below(12):
        case 0 | 1:
            return appends(1 + dice.below(5), session=session, sequence=sequence, settled=settled, payload_hash=1)
        case 2 | 3 | 4:
            operation, parts = Operation.PUT, (key, value)
        case 5:
            return request(Operation.PUT, key, value, dice.below(driver.machine.revision + 1))
        case 6:
            operation, parts = Operation.DELETE, (key, None)
        case 7:
            operation, parts = Operation.DELETE_RANGE, (key, key + b"\xff")
        case 8:
            operation, parts = Operation.TXN, (None, encode_txn(_txn(dice, key, value)))
        case 9:
            back = dice.below(30)
            if back % 3 == 0:
                return request(Operation.TRIM, argument=max(1, driver.machine.applied_index - back))
            return request(Operation.COMPACT, argument=max(1, driver.machine.revision - back))
        case 10:
            return request(Operation.VOID, argument=1 + dice.below(30), session=sessions[dice.below(2)])
        case _:
            operation_of_session = (Operation.SESSION_KEEPALIVE, Operation.SESSION_CLOSE)[dice.below(2)]
            return request(operation_of_session, argument=sessions[dice.below(2)])
    return request(
        operation, parts[0], parts[1], session=session, sequence=sequence, settled=settled, payload_hash=len(value)
    )


def _consumer(dice: _Dice, driver: Driver) -> RequestBlock:
    name, action = b"group-%d" % dice.below(5), (CLAIM, CLAIM, COMMIT, COMMIT, RESET, DELETE)[dice.below(6)]
    known = driver.machine.consumers.get(name)
    generation = dice.below(2) if known is None or action == CLAIM else known.generation
    command = ConsumerCommand(action, generation, dice.below(driver.machine.applied_index + 1), b"o" * dice.below(3))
    return request(Operation.CONSUMER, name, encode_consumer(command))


def _txn(dice: _Dice, key: bytes, value: bytes) -> Txn:
    return Txn(
        (Compare(key, CompareTarget.VERSION, CompareOperator.GREATER, dice.below(3)),),
        (TxnOperation(Operation.PUT, key, value), TxnOperation(GET_OPERATION, b"key-1", None, b"key-2", 3)),
        (TxnOperation(Operation.DELETE_RANGE, b"key-0", None, key), TxnOperation(Operation.PUT, b"other", key)),
    )


def fingerprint(entries: int) -> str:
    """A hash of all effects, all answers, and a snapshot after every tenth entry of such a log."""
    machine, told = StateMachine(LIMITS), hashlib.sha256()
    for place, entry in enumerate(driven(entries).entries):
        effects = machine.apply(entry)
        told.update(encode_effects(effects))
        for row in effects.requests:
            told.update(row.answer)
        if place % 10 == 0:
            told.update(snapshot_bytes(machine))
    return told.hexdigest()
