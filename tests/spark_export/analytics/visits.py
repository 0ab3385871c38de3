"""Provides a web server's real access log as a log of raftlog, and as plain Python values for independent counts.

The real one lies beside the checkout or in RAFTLOG_VISITS_FILE. Without it a generated one is used, with the same
oddities: lines that repeat, lines that are late, one line without its last quote.
"""

import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import EntryKind
from raftlog.statemachine.commands import Operation, Txn, TxnOperation
from raftlog.statemachine.txn import encode_txn
from tests.spark_export.logs import RealLog

WATERMARK = timedelta(minutes=1)
"""What analytics allow an event to be late by; no line of the log is later."""
THIRTY_MINUTES = timedelta(minutes=30)

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data" / "apache_access.log"
_PER_ENTRY = 50  # lines
_PER_TERM = 2_500
_TXN_EVERY = 10


@dataclass(frozen=True)
class Visit:
    """One line, taken apart by this file alone: by blanks and brackets."""

    line: bytes
    host: bytes
    time: datetime
    path: str
    status: int
    sent: int | None


def where() -> str:
    """Where the lines come from, in words."""
    return "the real access log" if _file() else "a generated access log (RAFTLOG_VISITS_FILE names no file)"


def _file() -> Path | None:
    named = os.environ.get("RAFTLOG_VISITS_FILE")
    path = Path(named) if named else _BESIDE
    return path if path.is_file() else None


@cache
def visits() -> list[Visit]:
    """All lines in order."""
    path = _file()
    lines = path.read_bytes().splitlines() if path else _generated()
    return [_visit(line) for line in lines]


def _visit(line: bytes) -> Visit:
    text = line.decode("utf-8", "surrogateescape")
    head, _, rest = text.partition("] ")
    host, time = head.split(" ", 1)[0], head.partition("[")[2]
    request, _, rest = rest[1:].partition('" ')
    status, sent = rest.split(" ")[:2]
    return Visit(
        line,
        host.encode(),
        datetime.strptime(time, "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC),
        request.split(" ")[1],
        int(status),
        None if sent == "-" else int(sent),
    )


def _generated(count: int = 10_000) -> list[bytes]:
    chance = random.Random(7)
    begin = datetime(2015, 5, 17, 10, 5, tzinfo=UTC)
    lines: list[bytes] = []
    host = ""
    for number in range(count):
        time = begin + timedelta(seconds=30 * number + chance.randrange(60))
        if not host or chance.random() < 0.5:  # else the visitor of the line before looks at another page
            host = f"10.0.{min(int(chance.paretovariate(0.6)), 250)}.{chance.randrange(4)}"
        path = f"/page/{min(int(chance.paretovariate(0.8)), 300)}"
        sent = chance.choice(["-", str(chance.randrange(100_000))])
        status = chance.choice([200] * 17 + [404, 404, 304])
        stamp = f"{time:%d/%b/%Y:%H:%M:%S} +0000"
        line = f'{host} - - [{stamp}] "GET {path} HTTP/1.1" {status} {sent} "-" "agent {number % 7}"'
        if number == 8_898:
            line = line[:-1]
        lines.append(lines[-1] if number % 530 == 529 else line.encode())
    return lines


@cache
def log() -> RealLog:
    """Each line appended with its host as key and its time as the client's; with it the table: hits/HOST counts the
    lines, page/HOST holds the last path and is deleted by a 404. Every tenth line changes both in one transaction."""
    made = RealLog()
    member = Member(1, "0" * 32, "127.0.0.1:1", "http://127.0.0.1:2")
    made.commit(kind=EntryKind.CONFIGURATION, data=encode_configuration(Configuration((member,), (1,))))
    hits: dict[bytes, int] = {}
    for start in range(0, len(visits()), _PER_ENTRY):
        if start % _PER_TERM == 0:
            made.commit(kind=EntryKind.NOOP)
        blocks = []
        for number, visit in enumerate(visits()[start : start + _PER_ENTRY], start):
            hits[visit.host] = hits.get(visit.host, 0) + 1
            time_ms = round(visit.time.timestamp() * 1000)
            blocks.append(encode_block([BlockRecord(Operation.APPEND, visit.host, visit.line, None, time_ms)]))
            blocks += _tables(number, visit, hits[visit.host])
        made.commit(*blocks)
    return made


def _tables(number: int, visit: Visit, count: int) -> list[bytes]:
    hits = TxnOperation(Operation.PUT, b"hits/" + visit.host, b"%d" % count)
    if visit.status == 404:
        page = TxnOperation(Operation.DELETE, b"page/" + visit.host)
    else:
        page = TxnOperation(Operation.PUT, b"page/" + visit.host, visit.path.encode("utf-8", "surrogateescape"))
    if number % _TXN_EVERY == 0:
        return [encode_block([BlockRecord(Operation.TXN, value=encode_txn(Txn((), (hits, page), ())))])]
    return [encode_block([BlockRecord(each.operation, each.key, each.value)]) for each in (hits, page)]
