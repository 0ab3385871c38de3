"""Tests the reading of strace's lines, and that a cluster passes where strace is available."""

import shutil
from pathlib import Path

import pytest

from bench.studies.strace import answered_at, durable_at, events, margins

LINES = """\
70 100.000000 pwrite64(9, "RLEN value-1.", 99, 4096) = 99 <0.000100>
71 100.000150 write(5, "\\1", 8) = 8 <0.000010>
70 100.000200 fdatasync(9 <unfinished ...>
71 100.000300 write(7, "HTTP/1.1 200 OK traced-1.", 99) = 99 <0.000020>
70 100.000500 <... fdatasync resumed>) = 0 <0.000300>
70 100.000600 pwrite64(9, "RLEN value-2.", 99, 8192 <unfinished ...>
--- nothing of ours
""".splitlines()


def test_a_value_is_durable_when_a_sync_behind_its_write_has_returned() -> None:
    """Calls that other threads come between count from their first line to their last; one that never ends does not."""
    calls = list(events(LINES))
    assert [call.name for call in calls] == ["pwrite64", "write", "write", "fdatasync"]
    assert durable_at("value-1.", calls) == 100.0005
    assert durable_at("value-2.", calls) is None
    assert answered_at("traced-1.", calls) == 100.0003
    assert answered_at("traced-2.", calls) is None


def test_a_sync_that_began_before_the_write_is_no_promise() -> None:
    """It may have missed it."""
    lines = ["7 5.0 fdatasync(9) = 0 <0.5>", '7 5.1 pwrite64(9, "v.", 2, 0) = 2 <0.1>']
    assert durable_at("v.", events(lines)) is None
    assert durable_at("v.", events([*lines, "7 6.0 fdatasync(9) = 0 <0.25>"])) == 6.25


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here: apt-get install strace")
def test_no_write_is_answered_before_a_majority_has_synced_it(tmp_path: Path) -> None:
    """What the kernel saw of three nodes: two fdatasync, then the answer."""
    try:
        found = margins(tmp_path, 5)
    except RuntimeError as error:
        if "ptrace_scope" in str(error):
            pytest.skip(str(error))
        raise
    assert len(found) == 5
    assert min(found) > 0
