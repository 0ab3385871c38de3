"""Shows the live bar of an export: how much is done, how fast, how far behind the log's end, and the time left."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress as Bars,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from raftlog.spark_export.export.batch import Progress

_WINDOW_S: Final = 30.0
"""The rate is that of so many last seconds: records are counted when their files are whole, that is in jumps."""


def line(done: int, total: int, per_s: float) -> str:
    """What stands behind the bar: `1,200,000 of 5,000,000, 240,000/s, lag 3,800,000, 0:16 to go`."""
    lag = max(total - done, 0)
    parts = [f"{done:,} of {total:,} records", f"{per_s:,.0f}/s", f"lag {lag:,}"]
    if lag and per_s >= 1:
        minutes, seconds = divmod(round(lag / per_s), 60)
        parts.append(f"{minutes}:{seconds:02} to go")
    return ", ".join(parts)


class _Line(ProgressColumn):
    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        return Text(line(int(task.completed), int(task.total), task.speed or 0.0))


@contextmanager
def bar(what: str, console: Console | None = None) -> "Iterator[Progress]":
    """A progress bar on a terminal; nothing elsewhere."""
    console = console or Console(file=sys.stderr, force_terminal=sys.stderr.isatty())
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Line(), TimeElapsedColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=_WINDOW_S) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
