"""Measures the cost of a permission check, and what access control costs where a write is applied.

`python -m bench.studies.permissions` prints both, and ends with 1 if a check of a principal with 1,000 grants takes
more than 2 µs. A check is all that a node does for a request: it finds the principal by its admission, and asks for
the grant. An apply is that of an entry of 64 puts, decoded from its bytes, as every node does it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import process_time

from raftlog.cluster.records.entries import log_entry
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.entry import seal_entry
from raftlog.raft.types import GENESIS, Entry, EntryKind
from raftlog.statemachine.access.admission import Admission, encode_admission
from raftlog.statemachine.access.commands import AccessAction, AccessCommand, encode_access
from raftlog.statemachine.access.grants import Grant, parse_grant
from raftlog.statemachine.access.needs import is_permitted
from raftlog.statemachine.access.table import AccessTable
from raftlog.statemachine.commands import Command, Operation
from raftlog.statemachine.machine import StateMachine

CHECK_US_MAX = 2.0
GRANTS = (1, 100, 1_000, 10_000)
JUDGED = 1_000
PUTS = 64
ADA = encode_admission(Admission("ada", 9))


def grants(count: int) -> tuple[Grant, ...]:
    """That many, each for the keys of one tenant."""
    return tuple(parse_grant(f"write on keys:tenant-{number:05d}/*") for number in range(count))


def check_us(count: int, rounds: int = 30) -> float:
    """Microseconds of one check of a put, for a principal with so many grants: the fastest of the rounds."""
    table = AccessTable()
    for command in (
        AccessCommand(AccessAction.INIT, "root"),
        AccessCommand(AccessAction.SET_ROLE, "tenants", grants=grants(count)),
        AccessCommand(AccessAction.SET_USER, "ada", roles=("tenants",)),
    ):
        assert table.execute(command, 0) is None
    puts = [(Command(Operation.PUT, b"tenant-%05d/key" % (37 * number % count), b"v"),) for number in range(1_000)]

    def check() -> None:
        for put in puts:
            assert is_permitted(table.principal(ADA), put)

    return _fastest(check, rounds) / len(puts)


def apply_us(*, is_on: bool, entries: int = 200) -> float:
    """Microseconds of applying one put, with access control or without: the fastest of three runs."""
    log: list[Entry] = []

    def add(blocks: list[bytes]) -> None:
        before = log[-1].mark if log else GENESIS
        data = b"".join(blocks)
        log.append(
            seal_entry(before, term=1, kind=EntryKind.COMMANDS, count=len(blocks), time_ms=0, clock_ms=0, data=data)
        )

    if is_on:
        for command, admission in (
            (AccessCommand(AccessAction.INIT, "root"), b""),
            (
                AccessCommand(AccessAction.SET_ROLE, "tenants", grants=grants(JUDGED)),
                encode_admission(Admission("root", 1)),
            ),
            (AccessCommand(AccessAction.SET_USER, "ada", roles=("tenants",)), encode_admission(Admission("root", 1))),
        ):
            add([encode_block([BlockRecord(Operation.ACCESS, None, encode_access(command))], admission=admission)])
    for _ in range(entries):
        puts = [BlockRecord(Operation.PUT, b"tenant-%05d/key" % place, bytes(256)) for place in range(PUTS)]
        add([encode_block([put], admission=ADA if is_on else b"") for put in puts])

    def replay() -> None:
        machine = StateMachine()
        for entry in log:
            machine.apply(log_entry(entry))
        assert machine.revision > entries * PUTS

    return _fastest(replay, 3) / (entries * PUTS)


def _fastest(work: Callable[[], None], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = process_time()
        work()
        best = min(best, process_time() - began)
    return best * 1e6


def main() -> int:
    """The exit code."""
    checks = {count: check_us(count) for count in GRANTS}
    for count, cost in checks.items():
        print(f"a check with {count:6,} grants: {cost:.2f} µs")
    off, on = apply_us(is_on=False), apply_us(is_on=True)
    print(f"a put where it is applied: {off:.2f} µs without access control, {on:.2f} µs with it ({JUDGED:,} grants)")
    if checks[JUDGED] > CHECK_US_MAX:
        print(f"a check with {JUDGED:,} grants takes more than {CHECK_US_MAX} µs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
