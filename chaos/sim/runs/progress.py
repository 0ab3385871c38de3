"""Shows the progress of a run: a live line on a terminal, sparse lines in a pipe or a log.

All of it goes to standard error; what a run found goes to standard output.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from raftlog.chaos.sim.runs.summary import Summary

EVERY_S: Final = 10.0
"""How often a line is printed where no terminal shows a live one."""


class Display:
    """Shows the summary as it grows. A context manager: the live line goes when it ends."""

    def __init__(self, total: int | None, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.began = self._said = time.monotonic()
        self._live: Progress | None = None
        if self.console.is_terminal:
            self._live = Progress(
                BarColumn(bar_width=10),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[words]}"),
                console=self.console,
                transient=True,
                refresh_per_second=4,
            )
            self._task = self._live.add_task("", total=total, words="")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed_s(self) -> float:
        return max(time.monotonic() - self.began, 1e-3)

    def update(self, summary: Summary) -> None:
        failed = f", {len(summary.failures)} FAILED" if summary.failures else ""
        words = speed_text(summary, self.elapsed_s) + failed
        if self._live is not None:
            speed = summary.simulated_ms / 1000 / self.elapsed_s
            short = f"{summary.seeds / self.elapsed_s:.1f} seeds/s, {summary.hours:.2f} h, {speed:.0f} s/s{failed}"
            self._live.update(self._task, completed=summary.seeds, words=short)
        elif time.monotonic() - self._said >= EVERY_S:
            self._said = time.monotonic()
            self.console.print(f"{summary.seeds} seeds, {words}", markup=False)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)


def speed_text(summary: Summary, elapsed_s: float) -> str:
    """How fast it goes, and how much simulated time there was."""
    return (
        f"{summary.seeds / elapsed_s:.2f} seeds/s, {summary.hours:.2f} simulated hours, "
        f"{summary.simulated_ms / 1000 / elapsed_s:.0f} simulated seconds per second"
    )
