"""Tests the reserve file: what it says that the disk lacks."""

from __future__ import annotations

from pathlib import Path

from raftlog.cluster.files.reserve import Reserve

SEGMENT = 65_536


def test_a_reserve_that_was_just_given_up_lacks_its_own_size(tmp_path: Path) -> None:
    """A report between giving it up and the next measurement names the bytes. Giving up twice changes nothing."""
    reserve = Reserve(tmp_path, SEGMENT)
    reserve.keep(100, may_make=True)
    assert (reserve.bytes, reserve.lacks_bytes) == (2 * SEGMENT + 100, 0)
    reserve.give_up()
    assert (reserve.bytes, reserve.lacks_bytes) == (0, 2 * SEGMENT + 100)
    reserve.give_up()
    assert reserve.lacks_bytes == 2 * SEGMENT + 100
    reserve.keep(100, may_make=False)
    assert reserve.lacks_bytes == 0, "measured: this disk has room for it"
