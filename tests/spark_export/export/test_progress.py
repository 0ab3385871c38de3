"""The bar of an export says how much, how fast, how far behind and for how long yet."""

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from raftlog.spark_export.export import batch
from raftlog.spark_export.export.destination.folder import Folder
from raftlog.spark_export.export.manifest import Layout, Plan
from raftlog.spark_export.export.progress import bar, line


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ((1_200_000, 5_000_000, 240_000.0), "1,200,000 of 5,000,000 records, 240,000/s, lag 3,800,000, 0:16 to go"),
        ((0, 100, 0.0), "0 of 100 records, 0/s, lag 100"),
        ((100, 100, 50.0), "100 of 100 records, 50/s, lag 0"),
        ((10, 36_010, 10.0), "10 of 36,010 records, 10/s, lag 36,000, 60:00 to go"),
    ],
)
def test_the_progress_line_has_no_time_left_without_a_rate(told: tuple[int, int, float], shown: str) -> None:
    """No time to go while the rate is not known, or where nothing is left."""
    assert line(*told) == shown


def test_bar_is_for_terminals() -> None:
    """On a terminal it is drawn; elsewhere nothing is written."""
    for is_terminal in (True, False):
        written = io.StringIO()
        with bar("exporting", Console(file=written, force_terminal=is_terminal, width=150)) as tell:
            tell(10, 40)
        assert ("10 of 40 records" in written.getvalue()) is is_terminal


def test_progress_is_reported_by_one_thread_and_the_end_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that watches the files may still report when the last task ends. Guard: `_watched` of
    spark_export/export/batch.py waits for its end before it reports the whole.
    """
    monkeypatch.setattr(batch, "_TOLD_EVERY_S", 0.001)
    inside, entered, other = threading.Lock(), threading.Event(), threading.Event()
    told: list[int] = []
    met: list[int] = []

    def tell(done: int, total: int) -> None:
        if not inside.acquire(blocking=False):
            met.append(done)
            other.set()
            return
        entered.set()
        if done < total:
            other.wait(0.1)  # for a thread that does not come
        told.append(done)
        inside.release()

    with batch._watched(Folder(tmp_path), Plan("ab" * 16, 1, 10, Layout()), tell):
        assert entered.wait(10)
    assert met == []
    assert told[-1] == 10
