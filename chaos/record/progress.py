"""Shows how a run is going: a live line on a terminal, a line now and then in a pipe or a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape

PIPE_EVERY_S: Final = 10.0
"""Time in seconds between lines of progress when the output is no terminal."""


class Progress:
    """A context manager: the live line goes when it ends."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status = console.status("") if console.is_terminal else None
        self._next = 0.0

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, text: str) -> None:
        """Shows how it is going now, unless it is too soon for another line."""
        if self._status is not None:
            self._status.update(escape(text))
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + PIPE_EVERY_S
            self.say(text)

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self.console.print(text, markup=False)
