"""Checks that a log kept every acknowledged record once, at its index, in the order of real time.

`append` puts one record in, or a list of them as one batch; the completion's `index` is that of the (last) record.
`read` returns a stretch of the log as [[index, record], ...]; its completion's `index`, if given, is the end that the
node knew of. Records are unique. Indexes may have gaps: the log holds entries of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

from raftlog.chaos.judge.checks import in_real_time
from raftlog.chaos.judge.history import BadHistory, Operation
from raftlog.chaos.judge.model import each_key, freeze, text_of, where
from raftlog.chaos.judge.verdicts import Report


class _Log:
    """The records that are known to lie at each index, and the operations that showed it."""

    def __init__(self) -> None:
        self.places: dict[Hashable, int] = {}
        self.records: dict[int, Hashable] = {}
        self.senders: dict[Hashable, Operation] = {}
        self.problems: list[str] = []

    def lies(self, index: int, record: Any, teller: Operation) -> None:
        """Notes that an operation's answer placed this record at this index."""
        frozen = freeze(record)
        sender = self.senders.get(frozen)
        if sender is None:
            self.problems.append(f"no client appended {text_of(record)}, which lies at {index} according to {teller}")
        elif sender.outcome == "fail":
            self.problems.append(f"{sender} failed, and {text_of(record)} lies at {index} according to {teller}")
        elif teller.returned is not None and sender.called > teller.returned:
            self.problems.append(f"{teller} returns {text_of(record)} before it was appended: {sender}")
        if self.records.setdefault(index, frozen) != frozen:
            self.problems.append(
                f"index {index} holds two different records, according to {teller} and other operations"
            )
        if self.places.setdefault(frozen, index) != index:
            where_too = f"at {self.places[frozen]} and at {index}"
            self.problems.append(
                f"duplicated: {text_of(record)} lies {where_too}, according to {teller} and other operations"
            )


def records_of(operation: Operation) -> list[Any]:
    """The records of an append: a list is a batch."""
    return operation.value if type(operation.value) is list else [operation.value]


def check_log(operations: Sequence[Operation]) -> Report:
    """The verdict about every key's log. Raises BadHistory."""
    return each_key("log", ("append", "read"), "records", _check_key, operations)


def _check_key(operations: Sequence[Operation], problems: list[str], counts: Counter[str]) -> None:
    log = _Log()
    appends = [each for each in operations if each.f == "append"]
    reads = [(each, _rows(each)) for each in operations if each.f == "read" and each.outcome == "ok"]
    for each in appends:
        for record in records_of(each):
            frozen = freeze(record)
            if frozen in log.senders:
                raise BadHistory(f"line {each.called}: {text_of(record)} is appended a second time; records are unique")
            log.senders[frozen] = each
    for each in appends:
        if each.outcome == "ok" and each.index is not None:
            records = records_of(each)
            for place, record in enumerate(records, start=each.index - len(records) + 1):
                log.lies(place, record, each)
    for each, rows in reads:
        for index, record in rows:
            log.lies(index, record, each)
    known = sorted(log.records)
    for each, rows in reads:
        _nothing_skipped(each, rows, log, known)
    log.problems += in_real_time(operations, writes=("append",), reads=("read",))
    _nothing_lost(appends, reads, log)
    problems += log.problems
    counts["records"] += len(log.senders)
    counts["reads"] += len(reads)


def _rows(read: Operation) -> list[tuple[int, Any]]:
    rows = read.output
    if type(rows) is not list or any(type(row) is not list or len(row) != 2 or type(row[0]) is not int for row in rows):
        raise BadHistory(f"{where(read)}: a read of a log is a list of [index, record], not {text_of(rows)}")
    if any(before[0] >= after[0] for before, after in pairwise(rows)):
        raise BadHistory(f"{where(read)}: a read of a log returns rising indexes, not {text_of(rows)}")
    return [(index, record) for index, record in rows]


def _nothing_skipped(read: Operation, rows: list[tuple[int, Any]], log: _Log, known: list[int]) -> None:
    """Checks that a read returns every record that is known to lie between its first and last index."""
    if not rows:
        return
    low, high = bisect_left(known, rows[0][0]), bisect_right(known, rows[-1][0])
    if high - low != len(rows):
        read_indexes = {index for index, _ in rows}
        skipped = next(index for index in known[low:high] if index not in read_indexes)
        log.problems.append(
            f"lost: {read} passes over index {skipped}, where {log.senders.get(log.records[skipped])} lies"
        )


def _nothing_lost(appends: Sequence[Operation], reads: Sequence[tuple[Operation, Any]], log: _Log) -> None:
    """Every record acknowledged without an index before the last read began is in some read."""
    if not reads:
        return
    began = max(read.called for read, _ in reads)
    for each in appends:
        if each.outcome == "ok" and each.index is None and (each.returned or 0) < began:
            if any(freeze(record) not in log.places for record in records_of(each)):
                log.problems.append(f"lost: {each} is in no read, and had ended before the last began")
