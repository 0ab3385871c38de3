"""Reports the failure of a world: the broken property, the seed, and the world itself.

`run_seed` turns every error into one of these, so that its callers catch one type.
"""

from __future__ import annotations

from typing import Any


class Failure(AssertionError):
    """A property does not hold. `property` is its name, `detail` the evidence; `world` is as it was at that moment.

    The atlas, the faults so far and the trace are the world's (`world.atlas`, `world.faults`, `world.trace`).
    """

    def __init__(self, what: str, detail: object = "") -> None:
        super().__init__(f"{what}: {detail}" if detail else what)
        self.property = what
        self.detail = detail
        self.seed = -1
        self.world: Any = None  # the `raftlog.chaos.sim.world.world.World`


class NoProgress(Failure):
    """A healed cluster does not agree in time."""


class Crash(Failure):
    """Production code raised an unexpected error: a bug, or a broken invariant of its own."""


def failure_of(error: Exception) -> Failure:
    """Any error as a Failure. A Failure stays itself; a broken invariant keeps its name."""
    if isinstance(error, Failure):
        return error
    name = getattr(error, "property", None) or getattr(error, "what", None) or type(error).__name__
    failure = Crash(str(name), error)
    failure.__cause__ = error
    return failure
