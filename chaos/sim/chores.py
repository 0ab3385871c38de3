"""What a process does step by step beside its turns: snapshots, scrubbing, what follows damage."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.sim.replica import Replica


class Chore:
    """One thing at a time that goes on step by step beside everything else, and ends with its process."""

    __slots__ = ("_ended", "_replica", "_steps")

    def __init__(self, replica: Replica, ended: Callable[[], None] = lambda: None) -> None:
        self._replica = replica
        self._ended = ended
        self._steps: Generator[int, None, None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is something to do."""
        return self._steps is not None

    def begin(self, steps: Generator[int, None, None], *, is_later: bool = False) -> None:
        """Takes the first step now, or after what is to happen now."""
        self._steps = steps
        if is_later:
            self._replica.world.after(0, self._advance, self._replica.life)
        else:
            self._advance(self._replica.life)

    def drop(self) -> None:
        """Goes no further."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def _advance(self, life: int) -> None:
        if life != self._replica.life or self._steps is None:
            return
        delay_us = self._replica.work.advance(self._steps)
        if delay_us is None:
            self._steps = None
            self._ended()
        elif delay_us >= 0:
            self._replica.world.after(delay_us, self._advance, life)
