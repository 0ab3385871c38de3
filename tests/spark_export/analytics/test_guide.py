"""docs/analytics.md runs from its first block to its last, and prints what stands in it, where it says what.

`pytest tests/spark_export/analytics/test_guide.py --rewrite` writes what it prints now into the page; look at the
difference.
"""

import contextlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.types import EntryKind
from raftlog.statemachine.commands import Operation, Txn, TxnOperation
from raftlog.statemachine.txn import encode_txn
from tests.spark_export.logs import RealLog
from tests.spark_export.server import Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "analytics.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
CLICKS = (
    (0, b"ann", b"look"), (12, b"ann", b"buy"), (5, b"bob", b"look"), (40, b"bob", b"look"), (61, b"ann", b"look"),
    (65, b"ann", b"look"), (70, b"ann", b"buy"), (70, b"ann", b"buy"), (200, b"eve", b"look"),
)  # fmt: skip


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


def test_guide_runs(spark: "SparkSession", request: pytest.FixtureRequest) -> None:
    """Each block prints what the page says, in one namespace, as a reader would run them."""
    text = PAGE.read_text(encoding="utf-8")
    wrong: list[str] = []
    names: dict[str, Any] = {}

    def run(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[1], str(PAGE), "exec"), names)  # noqa: S102  # the page itself
        told = "".join(f"{line.rstrip()}\n" for line in printed.getvalue().strip().splitlines())
        if block[2] is not None and told != block[2]:
            wrong.append(f"{block[1]}prints\n{told}and the page says\n{block[2]}")
        return f"```python\n{block[1]}```\n" + (f"\n```text\n{told}```\n" if told else "")

    with serving(Served(shop())) as url:
        names["endpoints"] = url
        try:
            written = BLOCK.sub(run, text)
        finally:
            for query in spark.streams.active:
                query.stop()
            if "listener" in names:
                spark.streams.removeListener(names["listener"])
            spark.catalog.clearCache()
    if request.config.getoption("--rewrite"):
        PAGE.write_text(written, encoding="utf-8")
    elif wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)
    assert names["listener"].latest != {}
