"""Two threads without threads: what one does is done in between any two bytecodes of the other, each in turn."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, TypeVar

S = TypeVar("S")
R = TypeVar("R")

SHARED = ("raft/wal/journal.py", "raft/wal/storage.py", "raft/wal/ledger.py", "raft/wal/reading.py")
"""Where the state is that threads share: between two bytecodes elsewhere nothing else would come of it."""


class _Switch:
    """Does `other` before the bytecode of that number of the traced files."""

    def __init__(self, number: int, other: Callable[[], object], files: tuple[str, ...]) -> None:
        self.left = number
        self._other, self._files = other, files

    def run(self, one: Callable[[], R]) -> R:
        """What `one` gives."""
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # since Python 3.12 a frame must ask for them before tracing
        sys.settrace(self._called)
        try:
            return one()
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Callable[[FrameType, str, Any], Any] | None:
        file = frame.f_code.co_filename.removesuffix(" (planted)")  # of a mutant (chaos/sim/mutants/mutant.py)
        if self.left < 0 or not file.endswith(self._files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._reached

    def _reached(self, frame: FrameType, event: str, argument: Any) -> Callable[[FrameType, str, Any], Any]:
        if event == "opcode":
            if self.left == 0:
                self._other()  # untraced, as all that a tracer calls
            self.left -= 1
        return self._reached


def at_every_bytecode(
    start: S,
    one: Callable[[S], R],
    other: Callable[[S], object],
    check: Callable[[S, R], None],
    files: tuple[str, ...] = SHARED,
) -> int:
    """Runs `one` on copies of `start`, each time with `other` one bytecode (of `files`) later, until `one` ends first.
    Then runs `check` with the result of `one`. Returns how many switches there were.
    """
    number = 0
    while True:
        if sys.version_info >= (3, 13):  # it traces no bytecode of the first call of a function
            _Switch(sys.maxsize, int, files).run(partial(one, copy.deepcopy(start)))
        subject = copy.deepcopy(start)
        switch = _Switch(number, partial(other, subject), files)
        result = switch.run(partial(one, subject))
        if switch.left >= 0:
            return number
        check(subject, result)
        number += 1
