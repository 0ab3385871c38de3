"""Writes the table of metrics in docs/operations/watch.md, "What to watch", from the code.

`make fix` runs it. tests/cluster/runtime/test_metrics.py compares the page.
"""

from __future__ import annotations

import re
from typing import Final

from raftlog.cluster.runtime.metric_table import METRICS, MetricRow
from tests.house.rules import ROOT

PAGE: Final = ROOT / "docs" / "operations" / "watch.md"
_HEAD: Final = "| metric | type | unit | meaning | look closer when |\n| --- | --- | --- | --- | --- |\n"
_TABLE: Final = re.compile(re.escape(_HEAD) + r"(\|.*\n)*")
_UNITS: Final = {"_seconds": "s", "_bytes": "bytes", "_records": "records", "_lag": "records", "_missing": "records"}


def unit_of(name: str, row: MetricRow) -> str:
    """The unit of its values; empty: they are numbers of things, or an index."""
    if row.meaning.startswith(("1 ", "1:")):
        return "0 or 1"
    return next((unit for end, unit in _UNITS.items() if name.removesuffix("_total").endswith(end)), "")


def table() -> str:
    """The table."""
    rows = []
    for name, row in METRICS.items():
        shown = f"{name}{{{row.label}}}" if row.label else name
        rows.append(f"| `{shown}` | {row.kind} | {unit_of(name, row)} | {row.meaning} | {row.worry} |\n")
    return _HEAD + "".join(rows)


def page(text: str) -> str:
    """The page with that table in the place of its own."""
    written, count = _TABLE.subn(lambda _: table(), text)
    assert count == 1, "docs/operations/watch.md has one table of metrics"
    return written


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
