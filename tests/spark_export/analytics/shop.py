"""Makes the log of the examples in the docs: a small shop's visitors, prices and stock."""

from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import EntryKind
from raftlog.statemachine.commands import Operation, Txn, TxnOperation
from raftlog.statemachine.txn import encode_txn
from tests.spark_export.logs import RealLog

NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
CLICKS = (
    (0, b"ann", b"look"),
    (12, b"ann", b"buy"),
    (5, b"bob", b"look"),
    (40, b"bob", b"look"),
    (61, b"ann", b"look"),
    (65, b"ann", b"look"),
    (70, b"ann", b"buy"),
    (70, b"ann", b"buy"),
    (200, b"eve", b"look"),
)


def shop() -> RealLog:
    """The log of the page: second of the click, visitor, what for; and two tables, one changed by transactions."""
    made = RealLog()
    member = Member(1, "0" * 32, "127.0.0.1:1", "http://127.0.0.1:2")
    made.commit(kind=EntryKind.CONFIGURATION, data=encode_configuration(Configuration((member,), (1,))))
    made.commit(kind=EntryKind.NOOP)
    for key, value in ((b"price/tea", b"3"), (b"stock/tea", b"10"), (b"price/cup", b"8")):
        made.commit(encode_block([BlockRecord(Operation.PUT, key, value)]))
    for number, (second, visitor, what) in enumerate(CLICKS):
        click = BlockRecord(Operation.APPEND, visitor, what, None, NOON_MS + 1000 * second)
        made.commit(encode_block([click]))
        if number == 4:
            made.commit(kind=EntryKind.NOOP)
        if what == b"buy":
            sold = TxnOperation(Operation.PUT, b"stock/tea", b"%d" % (10 - number))
            made.commit(encode_block([BlockRecord(Operation.TXN, value=encode_txn(Txn((), (sold,), ())))]))
    made.commit(encode_block([BlockRecord(Operation.DELETE, b"price/cup")]))
    return made
