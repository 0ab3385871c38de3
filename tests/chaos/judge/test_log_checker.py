"""The checker of logs against one that is slow and plainly right, on small random histories."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from raftlog.chaos.judge.checkers import judge
from raftlog.chaos.judge.history import History, Operation
from raftlog.chaos.judge.verdicts import Verdict
from tests.support import fresh_seed

HISTORIES = 3_000

Fact = tuple[int, str, Operation]
"""A record, where it lies, and the operation whose answer says so."""


def is_right(operations: list[Operation]) -> bool:
    """Whether the answers are those of one log, by the rules of the checker, each written as a comparison of all."""
    done = [each for each in operations if each.outcome == "ok"]
    senders = {each.value: each for each in operations if each.f == "append"}
    reads = [each for each in done if each.f == "read"]
    appends = [each for each in done if each.f == "append"]
    facts: list[Fact] = [(each.index, each.value, each) for each in appends if each.index is not None]
    facts += [(index, record, each) for each in reads for index, record in each.output]
    for index, record, teller in facts:
        sender = senders.get(record)
        if sender is None or sender.outcome == "fail" or is_before(teller, sender):
            return False
        if any((index == other) != (record == another) for other, another, _ in facts):
            return False
    for read in reads:
        seen = dict(read.output)
        if seen and any(min(seen) <= index <= max(seen) and index not in seen for index, _, _ in facts):
            return False
    for first in done:
        for second in done:
            if is_before(first, second) and first.index is not None and second.index is not None:
                if second.index < first.index or (second.index == first.index and first.f == second.f == "append"):
                    return False
    shown = {record for _, record, _ in facts}
    return all(
        each.value in shown for each in appends if each.index is None and any(is_before(each, read) for read in reads)
    )


def is_before(first: Operation, second: Operation) -> bool:
    """Whether the first one had ended before the second began."""
    return first.returned is not None and first.returned < second.called


@dataclass
class LogCall:
    """One operation of a client that does nothing else."""

    called: float
    moment: float
    returned: float
    f: str
    value: str | None
    outcome: str  # ok, info (it happened), lost (info, and it did not happen), fail
    output: Any = None
    index: int | None = None


def history_of(random: Random) -> History:
    """Appends and reads of one log, each carried out at some moment between its call and its answer."""
    calls: list[LogCall] = []
    for number in range(random.randint(2, 8)):
        called, moment, returned = sorted(random.uniform(0, 8) + random.uniform(0, 2) * step for step in range(3))
        is_read = random.getrandbits(1)
        outcome = random.choice(("ok", "ok", "ok", "info", "lost", "fail"))
        calls.append(
            LogCall(
                called, moment, returned, "read" if is_read else "append", None if is_read else f"r{number}", outcome
            )
        )
    log: list[list[Any]] = []
    end = 0
    tells = random.choice((True, False, None))  # whether answers have an index; None: some
    for call in sorted(calls, key=lambda call: call.moment):
        is_told = random.getrandbits(1) if tells is None else tells
        if call.f == "read":
            first = random.choice((0, 0, random.randint(0, end + 1)))
            call.output, call.index = [row for row in log if row[0] >= first], end if is_told else None
        elif call.outcome in ("ok", "info"):
            end += random.randint(1, 3)
            log.append([end, call.value])
            call.index = end if is_told else None
    for _ in range(random.randrange(3)):
        spoil(random, random.choice(calls), end)
    events = [(call.called, False, number) for number, call in enumerate(calls)]
    events += [(call.returned, True, number) for number, call in enumerate(calls)]
    history = History()
    for _, is_end, number in sorted(events):
        call = calls[number]
        if not is_end:
            history.invoke(number, call.f, None, call.value)
        elif call.outcome == "ok":
            history.complete(number, "ok", call.value if call.output is None else call.output, index=call.index)
        else:
            history.complete(number, "fail" if call.outcome == "fail" else "info")
    return history


def spoil(random: Random, call: LogCall, end: int) -> None:
    """Another answer than the right one."""
    if call.output and random.randrange(4):
        row = random.randrange(len(call.output))
        match random.randrange(3):
            case 0:
                call.output = call.output[:row] + call.output[row + 1 :]
            case 1:
                call.output = [
                    *call.output[:row],
                    [call.output[row][0], f"r{random.randrange(8)}"],
                    *call.output[row + 1 :],
                ]
            case _:
                call.output = call.output[:row]
    elif call.index is not None:
        call.index = random.randint(1, end + 1)
    elif call.outcome == "info":
        call.outcome = "fail"
    elif call.outcome == "lost":
        call.outcome = "ok"


def test_the_verdict_about_a_log_is_that_of_the_slow_checker() -> None:
    """Right and spoilt histories get the same verdict from both; and both verdicts occur."""
    first = fresh_seed("log-checker")
    print(f"first seed {first}")
    verdicts = {True: 0, False: 0}
    for seed in (*range(HISTORIES), *range(first, first + HISTORIES)):
        history = history_of(Random(seed))
        wanted = is_right(history.operations())
        report = judge(history.operations(), "log")
        assert (report.verdict is Verdict.VALID) == wanted, (seed, b"".join(history.lines()).decode(), report)
        verdicts[wanted] += 1
    assert min(verdicts.values()) > HISTORIES // 10, verdicts
