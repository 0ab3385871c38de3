"""The measure of the loop's time: each kind of load runs, is answered, and ends."""

from __future__ import annotations

import re

import pytest

from bench.studies import loop_cost


@pytest.mark.parametrize("row", ["commit 1", "write 64", "read 64"])
async def test_a_row_is_measured(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Three nodes commit or answer from memory connections; a row with a time comes out. An answer that is not 200
    would raise."""
    await loop_cost._measure(row, 0.2, None)
    # Anywhere in a line: the nodes' requests are logged there too, by a thread that may have written half a line.
    (least,) = re.findall(rf"{row} +least +([0-9.]+) µs", capsys.readouterr().out)
    assert float(least) > 0
